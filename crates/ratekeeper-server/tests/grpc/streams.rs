//! `CheckStream`: many checks on one stream.

use crate::generated::ratekeeper::v1::check_stream_response::Outcome;
use crate::generated::ratekeeper::v1::{CheckRequest, CheckStreamRequest, CheckStreamResponse};
use crate::server::{GrpcTestServer, check};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

/// The client side of a `CheckStream` call.
struct CheckStreamClient {
    out: mpsc::Sender<CheckStreamRequest>,
    answers: Streaming<CheckStreamResponse>,
}

impl CheckStreamClient {
    async fn open(server: &GrpcTestServer) -> CheckStreamClient {
        let (out, sent) = mpsc::channel(10_000);
        let answers = server.client().await.check_stream(ReceiverStream::new(sent)).await.unwrap();
        CheckStreamClient { out, answers: answers.into_inner() }
    }

    async fn send(&self, id: u64, check: CheckRequest) {
        self.out.send(CheckStreamRequest { id, check: Some(check) }).await.unwrap();
    }

    async fn next(&mut self) -> (u64, Outcome) {
        let answer = self.answers.message().await.unwrap().unwrap();
        (answer.id, answer.outcome.unwrap())
    }
}

fn remaining(outcome: &Outcome) -> Option<u32> {
    match outcome {
        Outcome::Result(result) if result.allowed => result.remaining,
        _ => None,
    }
}

#[tokio::test]
async fn an_answer_never_waits_for_the_next_check() {
    let server = GrpcTestServer::start("default: {limit: 100/h}").await;
    let mut stream = CheckStreamClient::open(&server).await;
    for number in 0..100 {
        stream.send(number + 7, check("a")).await;
        let (id, outcome) = stream.next().await;
        assert_eq!((id, remaining(&outcome)), (number + 7, Some(99 - u32::try_from(number).unwrap())));
    }
    drop(stream.out);
    assert!(stream.answers.message().await.unwrap().is_none(), "the stream ends without an error");
}

#[tokio::test]
async fn every_check_is_answered_once_and_invalid_ones_do_not_end_the_stream() {
    let server = GrpcTestServer::start("default: {limit: 1000/h}").await;
    let mut stream = CheckStreamClient::open(&server).await;
    for id in 1..=9_000 {
        let request = match id % 3 {
            0 => check(""),
            1 => CheckRequest { ip: "nowhere".to_owned(), ..check("a") },
            _ => check("a"),
        };
        stream.send(id, request).await;
    }
    drop(stream.out);
    let (mut seen, mut left) = (HashMap::new(), Vec::new());
    while let Some(answer) = stream.answers.message().await.unwrap() {
        let outcome = answer.outcome.unwrap();
        match (answer.id % 3, &outcome) {
            (0, Outcome::Error(message)) => {
                assert!(message.starts_with("the check has no client: "), "{message}");
            }
            (1, Outcome::Error(message)) => {
                assert!(message.starts_with("ip is \"nowhere\": send"), "{message}");
            }
            (2, Outcome::Result(_)) => left.extend(remaining(&outcome)),
            (_, outcome) => panic!("{} was answered with {outcome:?}", answer.id),
        }
        assert_eq!(seen.insert(answer.id, ()), None, "{} was answered twice", answer.id);
    }
    assert_eq!(seen.len(), 9_000);
    assert_eq!(left, (0..1000).rev().collect::<Vec<_>>(), "each check took one unit, in order of arrival");
}

#[tokio::test]
async fn a_missing_check_is_an_error_of_its_own() {
    let server = GrpcTestServer::start("default: {limit: 2/h}").await;
    let mut stream = CheckStreamClient::open(&server).await;
    stream.out.send(CheckStreamRequest { id: u64::MAX, check: None }).await.unwrap();
    let (id, outcome) = stream.next().await;
    assert!(id == u64::MAX && matches!(&outcome, Outcome::Error(_)), "{id} {outcome:?}");
    stream.send(0, check("a")).await;
    assert_eq!(remaining(&stream.next().await.1), Some(1));
}

#[tokio::test]
async fn several_streams_share_a_connection_but_not_too_many() {
    let server = GrpcTestServer::start("default: {limit: 1000/h}").await;
    let client = server.client().await;
    let mut open = Vec::new();
    for _ in 0..16 {
        let (out, sent) = mpsc::channel(1);
        let answers = client.clone().check_stream(ReceiverStream::new(sent)).await.unwrap().into_inner();
        open.push(CheckStreamClient { out, answers });
    }
    let (_out, sent) = mpsc::channel(1);
    let rejected = client.clone().check_stream(ReceiverStream::new(sent)).await.unwrap_err();
    assert_eq!(rejected.code(), Code::ResourceExhausted, "{rejected}");
    for (number, stream) in (0..).zip(&mut open) {
        stream.send(number, check("a")).await;
        assert_eq!(stream.next().await.0, number);
    }
    open.pop();
    // Its slot is free once the server has seen the reset.
    let again = async {
        loop {
            let (out, sent) = mpsc::channel::<CheckStreamRequest>(1);
            if client.clone().check_stream(ReceiverStream::new(sent)).await.is_ok() {
                return drop(out);
            }
        }
    };
    timeout(Duration::from_secs(10), again).await.unwrap();
}

#[tokio::test]
async fn a_shutdown_answers_received_checks_and_ends_the_stream() {
    let mut server = GrpcTestServer::start("default: {limit: 1000/h}").await;
    let mut stream = CheckStreamClient::open(&server).await;
    for id in 0..500 {
        stream.send(id, check("a")).await;
    }
    assert_eq!(stream.next().await.0, 0);
    server.stop();
    let mut answered = 1;
    let ended = loop {
        match stream.answers.message().await {
            Ok(Some(_)) => answered += 1,
            Ok(None) => panic!("the stream ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!((ended.code(), answered), (Code::Unavailable, 500), "{ended}");
    timeout(Duration::from_secs(5), server.serving)
        .await
        .expect("an open stream does not delay the shutdown")
        .unwrap();
}
