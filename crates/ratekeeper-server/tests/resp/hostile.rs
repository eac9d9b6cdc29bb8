//! Attacks.

use crate::server::{Client, command};
use crate::siege::siege;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How many connections to open where so many are wanted. Both ends are this process's, which may have no more open
/// files than the system says.
fn affordable(wanted: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let most = files.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    most.map_or(wanted, |most| wanted.min(most.saturating_sub(200) / 2))
}

/// Sends everything, however often, until the server has had enough, and reads to the end.
async fn last_words(address: SocketAddr, begin: &[u8], more: &[u8], times: usize) -> String {
    let (mut from, mut to) = TcpStream::connect(address).await.unwrap().into_split();
    let send = async {
        let mut is_open = to.write_all(begin).await.is_ok();
        for _ in 0..times {
            is_open = is_open && to.write_all(more).await.is_ok();
        }
        let _ = to.shutdown().await;
    };
    let mut read = Vec::new();
    let (_, ()) = tokio::join!(from.read_to_end(&mut read), send);
    String::from_utf8_lossy(&read).into_owned()
}

/// How much is left under a key that only attacks have asked for.
async fn left(address: SocketAddr, key: &str) -> String {
    Client::connect(address).await.ask(&format!("CL.THROTTLE {key} 99 1 86400 0"), 6).await
}

#[test]
fn what_announces_too_much_is_refused_at_once() {
    let cases = [
        ("*1000000\r\n", "invalid multibulk length"),
        ("*1025\r\n", "invalid multibulk length"),
        ("*99999999999999999999\r\n", "invalid multibulk length"),
        ("*1\r\n$65537\r\n", "invalid bulk length"),
        ("*1\r\n$1073741824\r\n", "invalid bulk length"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1024\r\n$65000\r\n", "a command has at most 65536 bytes"),
        ("*1\r\n:1\r\n", "expected '$', got ':'"),
        ("*1\r\n$1\r\nxyz", "an argument does not end where its length says"),
        ("ECHO \"a\r\n", "unbalanced quotes in request"),
        ("POST / HTTP/1.1\r\n", "this port speaks RESP, not HTTP"),
    ];
    siege(16, async |address| {
        for (sent, said) in cases {
            for before in ["", "PING\r\n", "*1\r\n$4\r\nPING\r\n"] {
                let mut client = Client::connect(address).await;
                client.0.write_all([before, sent].concat().as_bytes()).await.unwrap();
                let lines = usize::from(!before.is_empty()) + 1;
                let heard = client.lines(lines).await;
                let heard = heard.strip_prefix("+PONG\r\n").unwrap_or(&heard);
                assert!(heard.starts_with(&format!("-ERR Protocol error: {said}")), "{sent:?}: {heard:?}");
                assert_eq!(client.lines(1).await, "", "it is closed after {sent:?}");
            }
        }
    });
}

#[test]
fn what_never_ends_is_cut_off() {
    let cases: [(&str, &str, &str); 6] = [
        ("a line", "", "x"),
        ("a line of words", "", "x "),
        ("a length", "*", "1"),
        ("another length", "*1\r\n$", "0"),
        (
            "arguments",
            "*1024\r\n",
            "$100\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n",
        ),
        ("a quote", "ECHO \"", "\\x41"),
    ];
    siege(32, async |address| {
        for (name, begin, more) in cases {
            let more = more.repeat(64 * 1024 / more.len());
            let mut asking = JoinSet::new();
            for _ in 0..8 {
                let (begin, more) = (begin.to_owned(), more.clone());
                asking
                    .spawn(async move { last_words(address, begin.as_bytes(), more.as_bytes(), 500).await });
            }
            // Some may have been closed on in the middle of a word, and have heard nothing.
            let heard: Vec<_> =
                asking.join_all().await.into_iter().filter(|heard| !heard.is_empty()).collect();
            assert!(!heard.is_empty(), "{name}");
            assert!(
                heard.iter().all(|heard| heard.starts_with("-ERR Protocol error: ")),
                "{name}: {heard:?}"
            );
        }
        // Blank lines and empty lists mean nothing, and may go on for as long as somebody likes to send them.
        assert_eq!(last_words(address, b"", &b"\r\n*0\r\n".repeat(10_000), 100).await, "");
    });
}

#[test]
fn a_thousand_who_send_half_a_command() {
    let whole = command("CL.THROTTLE victim 99 1 86400 7");
    siege(64, async |address| {
        let mut crowd = Vec::new();
        for index in 0..affordable(1000) {
            let mut client = Client::connect(address).await;
            client.0.write_all(&whole[..index % whole.len()]).await.unwrap();
            crowd.push(client);
        }
        for _ in 0..100 {
            assert_eq!(Client::connect(address).await.ask("PING", 1).await, "+PONG\r\n");
        }
        // A part of them announce much and drip it.
        for client in &mut crowd {
            let _ = client.0.write_all(b"*1024\r\n$60000\r\n").await;
        }
        drop(crowd);
        assert!(left(address, "victim").await.starts_with("*5\r\n:0\r\n:100\r\n:100\r\n"));
    });
}

#[test]
fn garbage_among_commands_is_answered_or_ends_it_and_takes_nothing() {
    let bad = [
        "CL.THROTTLE victim 99 1",
        "CL.THROTTLE victim x 1 86400",
        "CL.THROTTLE victim 99 1 86400 1.5",
        "CL.THROTTLE victim -1 1 86400",
        "CL.THROTTLE victim 99 0 86400",
        "CL.THROTTLE victim 99 1 86400 1 1",
        "RK.CHECK victim",
        "RK.CHECK victim / -1",
        "RK.CHECK victim / 1 IP nowhere",
        "RK.CHECK victim / ATTR a",
        "GET victim",
        "EXEC",
        "HELLO 9",
        "AUTH x",
        "CLIENT KILL 1",
    ];
    siege(32, async |address| {
        let mut client = Client::connect(address).await;
        for round in 0..200 {
            let mut pipeline = Vec::new();
            for line in bad {
                pipeline.extend(command(line));
                pipeline.extend(command("PING"));
            }
            client.0.write_all(&pipeline).await.unwrap();
            let heard = client.lines(2 * bad.len()).await;
            let lines: Vec<&str> = heard.split_terminator("\r\n").collect();
            assert_eq!(lines.len(), 2 * bad.len(), "round {round}");
            for pair in lines.chunks(2) {
                assert!(pair[0].starts_with('-') && pair[1] == "+PONG", "{pair:?}");
            }
        }
        // Bytes of no kind at all: the same ones every time, and each its own way.
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..300 {
            let bytes: Vec<u8> = (0..512)
                .map(|_| {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    seed.to_be_bytes()[0]
                })
                .collect();
            let heard = last_words(address, &command("PING"), &bytes, 1).await;
            assert!(heard.is_empty() || heard.starts_with("+PONG\r\n"), "{heard}");
        }
        assert!(left(address, "victim").await.starts_with("*5\r\n:0\r\n:100\r\n:100\r\n"));
    });
}

#[test]
fn five_hundred_who_ask_much_and_leave() {
    let pipeline = command("CL.THROTTLE passer-by 99 1 86400").repeat(500);
    siege(48, async |address| {
        for _ in 0..500 {
            let mut client = Client::connect(address).await;
            client.0.write_all(&pipeline).await.unwrap();
            // Closed with answers unread, which the server hears of as a broken connection.
            drop(client);
        }
        assert!(left(address, "passer-by").await.starts_with("*5\r\n:0\r\n:100\r\n:0\r\n"));
    });
}

#[test]
fn two_hundred_who_ask_and_never_read() {
    let pipelines = [
        command("CL.THROTTLE a 99 1 86400").repeat(500),
        b"COMMAND DOCS\r\n".repeat(500),
        b"INFO\r\n".repeat(1000),
        [&b"MULTI\r\n"[..], &command("CL.THROTTLE a 99 1 86400").repeat(900), b"EXEC\r\n"].concat(),
        command(&format!("ECHO {}", "x".repeat(50_000))),
    ];
    siege(96, async |address| {
        let mut crowd = JoinSet::new();
        for index in 0..affordable(200) {
            let socket = TcpSocket::new_v4().unwrap();
            // The system would take megabytes for each, on both sides.
            socket.set_recv_buffer_size(4096).unwrap();
            socket.set_send_buffer_size(64 * 1024).unwrap();
            let mut stream = socket.connect(address).await.unwrap();
            let pipeline = pipelines[index % pipelines.len()].clone();
            crowd.spawn(async move {
                // Until the server has stopped reading too.
                let stuck = async { while stream.write_all(&pipeline).await.is_ok() {} };
                let _ = timeout(Duration::from_secs(1), stuck).await;
                stream
            });
        }
        let crowd = crowd.join_all().await;
        for _ in 0..100 {
            assert_eq!(Client::connect(address).await.ask("PING", 1).await, "+PONG\r\n");
        }
        drop(crowd);
    });
}

#[test]
fn a_flood_of_keys_and_of_limits_is_borne() {
    siege(64, async |address| {
        let mut client = Client::connect(address).await;
        for round in 0..200 {
            let keys = (0..500).map(|index| command(&format!("CL.THROTTLE k{round}-{index} 9 1 1")));
            let limits = (0..500)
                .map(|index| command(&format!("CL.THROTTLE l {} {} 1", round * 500 + index, index + 1)));
            let pipeline: Vec<u8> = keys.chain(limits).flatten().collect();
            client.0.write_all(&pipeline).await.unwrap();
            // Each is answered with five integers or, once there were too many limits, with an error.
            let mut heard = String::new();
            while heard.matches("*5\r\n").count() + heard.matches("-ERR").count() < 1000
                || !heard.ends_with("\r\n")
            {
                heard += &client.lines(1).await;
            }
            while heard.matches(':').count() < 5 * heard.matches("*5\r\n").count() {
                heard += &client.lines(1).await;
            }
        }
    });
}
