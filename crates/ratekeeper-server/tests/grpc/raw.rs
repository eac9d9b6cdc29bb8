//! A client that decides itself which frames of HTTP/2 it sends, and when.

use h2::SendStream;
use h2::client::{Builder, ResponseFuture, SendRequest};
use hyper::body::Bytes;
use hyper::{HeaderMap, Request};
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A message behind its length.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    [&[0], &u32::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
}

/// The head of a call, with further fields.
pub(crate) fn call(path: &str, fields: &[(&str, &str)]) -> Request<()> {
    let mut call = Request::post(format!("http://a{path}")).header("te", "trailers");
    if fields.iter().all(|(name, _)| *name != "content-type") {
        call = call.header("content-type", "application/grpc");
    }
    fields.iter().fold(call, |call, (name, value)| call.header(*name, *value)).body(()).unwrap()
}

/// What was answered to a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The code of gRPC, if one was said.
    pub(crate) code: Option<u8>,
    pub(crate) message: String,
    pub(crate) body: Vec<u8>,
    headers: HeaderMap,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A call that has begun.
pub(crate) struct Begun {
    pub(crate) body: SendStream<Bytes>,
    answer: ResponseFuture,
}

impl Begun {
    pub(crate) fn send(&mut self, bytes: &[u8], is_last: bool) {
        self.body.send_data(Bytes::copy_from_slice(bytes), is_last).unwrap();
    }

    pub(crate) async fn answer(self) -> Answer {
        let (head, mut body) = self.answer.await.unwrap().into_parts();
        let mut answer = Answer { status: head.status.as_u16(), headers: head.headers, ..Answer::default() };
        while let Some(piece) = body.data().await {
            let piece = piece.unwrap();
            body.flow_control().release_capacity(piece.len()).unwrap();
            answer.body.extend_from_slice(&piece);
        }
        answer.headers.extend(body.trailers().await.unwrap().unwrap_or_default());
        answer.code = answer.header("grpc-status").map(|code| code.parse().unwrap());
        answer.message =
            answer.header("grpc-message").unwrap_or_default().replace("%20", " ").replace("%22", "\"");
        answer
    }
}

/// One connection.
pub(crate) struct Connection {
    requests: SendRequest<Bytes>,
    pub(crate) ended: JoinHandle<Result<(), h2::Error>>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Connection {
        Connection::open_with(address, 1 << 20).await
    }

    /// One that has room for so many bytes of each answer.
    pub(crate) async fn open_with(address: SocketAddr, window: u32) -> Connection {
        let stream = TcpStream::connect(address).await.unwrap();
        let (requests, connection) =
            Builder::new().initial_window_size(window).handshake(stream).await.unwrap();
        Connection { requests, ended: tokio::spawn(connection) }
    }

    /// Begins a call.
    pub(crate) async fn begin(&mut self, call: Request<()>) -> Begun {
        let mut requests = self.requests.clone().ready().await.unwrap();
        let (answer, body) = requests.send_request(call, false).unwrap();
        Begun { body, answer }
    }

    /// Makes a call with these pieces of a body, each in a frame of its own.
    pub(crate) async fn ask(&mut self, call: Request<()>, pieces: &[&[u8]]) -> Answer {
        let mut begun = self.begin(call).await;
        for piece in pieces {
            begun.send(piece, false);
        }
        begun.send(b"", true);
        begun.answer().await
    }

    /// Until the server has said that it takes no more calls here.
    pub(crate) async fn until_going_away(&mut self) {
        while std::future::poll_fn(|cx| self.requests.poll_ready(cx)).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}
