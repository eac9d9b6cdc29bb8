//! Attacks on the RESP listener.

use crate::attack::under_attack;
use crate::server::{RespTestClient, command};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The number of connections to open: `wanted`, or fewer if the limit on open files is low. Both ends are in this
/// process.
fn connection_count(wanted: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let most = files.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    most.map_or(wanted, |most| wanted.min(most.saturating_sub(200) / 2))
}

/// Sends `begin`, then `more` `times` times or until the server closes, and reads to the end.
async fn send_and_read(address: SocketAddr, begin: &[u8], more: &[u8], times: usize) -> String {
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

/// The reply with the remaining units of a key that only attacks use.
async fn remaining_reply(address: SocketAddr, key: &str) -> String {
    RespTestClient::connect(address).await.send_command(&format!("CL.THROTTLE {key} 99 1 86400 0"), 6).await
}

#[test]
fn oversized_and_invalid_lengths_are_rejected_at_once() {
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
    under_attack(16, async |address| {
        for (sent, message) in cases {
            for before in ["", "PING\r\n", "*1\r\n$4\r\nPING\r\n"] {
                let mut client = RespTestClient::connect(address).await;
                client.0.write_all([before, sent].concat().as_bytes()).await.unwrap();
                let lines = usize::from(!before.is_empty()) + 1;
                let reply = client.read_lines(lines).await;
                let reply = reply.strip_prefix("+PONG\r\n").unwrap_or(&reply);
                assert!(reply.starts_with(&format!("-ERR Protocol error: {message}")), "{sent:?}: {reply:?}");
                assert_eq!(client.read_lines(1).await, "", "the connection is open after {sent:?}");
            }
        }
    });
}

#[test]
fn endless_commands_are_cut_off() {
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
    under_attack(32, async |address| {
        for (name, begin, more) in cases {
            let more = more.repeat(64 * 1024 / more.len());
            let mut clients = JoinSet::new();
            for _ in 0..8 {
                let (begin, more) = (begin.to_owned(), more.clone());
                clients.spawn(
                    async move { send_and_read(address, begin.as_bytes(), more.as_bytes(), 500).await },
                );
            }
            // Some connections may have been reset in mid-write, before their reply was read.
            let reply: Vec<_> =
                clients.join_all().await.into_iter().filter(|reply| !reply.is_empty()).collect();
            assert!(!reply.is_empty(), "{name}");
            assert!(
                reply.iter().all(|reply| reply.starts_with("-ERR Protocol error: ")),
                "{name}: {reply:?}"
            );
        }
        // Blank lines and empty arrays are ignored, however many arrive.
        assert_eq!(send_and_read(address, b"", &b"\r\n*0\r\n".repeat(10_000), 100).await, "");
    });
}

#[test]
fn a_thousand_clients_with_incomplete_commands() {
    let whole = command("CL.THROTTLE victim 99 1 86400 7");
    under_attack(64, async |address| {
        let mut clients = Vec::new();
        for index in 0..connection_count(1000) {
            let mut client = RespTestClient::connect(address).await;
            client.0.write_all(&whole[..index % whole.len()]).await.unwrap();
            clients.push(client);
        }
        for _ in 0..100 {
            assert_eq!(RespTestClient::connect(address).await.send_command("PING", 1).await, "+PONG\r\n");
        }
        // Then each announces a large command.
        for client in &mut clients {
            let _ = client.0.write_all(b"*1024\r\n$60000\r\n").await;
        }
        drop(clients);
        assert!(remaining_reply(address, "victim").await.starts_with("*5\r\n:0\r\n:100\r\n:100\r\n"));
    });
}

#[test]
fn invalid_commands_get_an_error_or_close_and_charge_nothing() {
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
    under_attack(32, async |address| {
        let mut client = RespTestClient::connect(address).await;
        for round in 0..200 {
            let mut pipeline = Vec::new();
            for line in bad {
                pipeline.extend(command(line));
                pipeline.extend(command("PING"));
            }
            client.0.write_all(&pipeline).await.unwrap();
            let reply = client.read_lines(2 * bad.len()).await;
            let lines: Vec<&str> = reply.split_terminator("\r\n").collect();
            assert_eq!(lines.len(), 2 * bad.len(), "round {round}");
            for pair in lines.chunks(2) {
                assert!(pair[0].starts_with('-') && pair[1] == "+PONG", "{pair:?}");
            }
        }
        // Pseudo-random bytes with a fixed seed.
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..300 {
            let bytes: Vec<u8> = (0..512)
                .map(|_| {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    seed.to_be_bytes()[0]
                })
                .collect();
            let reply = send_and_read(address, &command("PING"), &bytes, 1).await;
            assert!(reply.is_empty() || reply.starts_with("+PONG\r\n"), "{reply}");
        }
        assert!(remaining_reply(address, "victim").await.starts_with("*5\r\n:0\r\n:100\r\n:100\r\n"));
    });
}

#[test]
fn five_hundred_clients_that_disconnect_without_reading() {
    let pipeline = command("CL.THROTTLE passer-by 99 1 86400").repeat(500);
    under_attack(48, async |address| {
        for _ in 0..500 {
            let mut client = RespTestClient::connect(address).await;
            client.0.write_all(&pipeline).await.unwrap();
            // Closed with unread replies, which the server sees as a connection reset.
            drop(client);
        }
        assert!(remaining_reply(address, "passer-by").await.starts_with("*5\r\n:0\r\n:100\r\n:0\r\n"));
    });
}

#[test]
fn two_hundred_clients_that_never_read() {
    let pipelines = [
        command("CL.THROTTLE a 99 1 86400").repeat(500),
        b"COMMAND DOCS\r\n".repeat(500),
        b"INFO\r\n".repeat(1000),
        [&b"MULTI\r\n"[..], &command("CL.THROTTLE a 99 1 86400").repeat(900), b"EXEC\r\n"].concat(),
        command(&format!("ECHO {}", "x".repeat(50_000))),
    ];
    under_attack(96, async |address| {
        let mut clients = JoinSet::new();
        for index in 0..connection_count(200) {
            let socket = TcpSocket::new_v4().unwrap();
            // The default socket buffers would take megabytes per connection, on both sides.
            socket.set_recv_buffer_size(4096).unwrap();
            socket.set_send_buffer_size(64 * 1024).unwrap();
            let mut stream = socket.connect(address).await.unwrap();
            let pipeline = pipelines[index % pipelines.len()].clone();
            clients.spawn(async move {
                // Write until the server has stopped reading too.
                let stuck = async { while stream.write_all(&pipeline).await.is_ok() {} };
                let _ = timeout(Duration::from_secs(1), stuck).await;
                stream
            });
        }
        let clients = clients.join_all().await;
        for _ in 0..100 {
            assert_eq!(RespTestClient::connect(address).await.send_command("PING", 1).await, "+PONG\r\n");
        }
        drop(clients);
    });
}

#[test]
fn a_flood_of_keys_and_limits_is_answered() {
    under_attack(64, async |address| {
        let mut client = RespTestClient::connect(address).await;
        for round in 0..200 {
            let keys = (0..500).map(|index| command(&format!("CL.THROTTLE k{round}-{index} 9 1 1")));
            let limits = (0..500)
                .map(|index| command(&format!("CL.THROTTLE l {} {} 1", round * 500 + index, index + 1)));
            let pipeline: Vec<u8> = keys.chain(limits).flatten().collect();
            client.0.write_all(&pipeline).await.unwrap();
            // Each reply is five integers or, once there are too many limits, an error.
            let mut reply = String::new();
            while reply.matches("*5\r\n").count() + reply.matches("-ERR").count() < 1000
                || !reply.ends_with("\r\n")
            {
                reply += &client.read_lines(1).await;
            }
            while reply.matches(':').count() < 5 * reply.matches("*5\r\n").count() {
                reply += &client.read_lines(1).await;
            }
        }
    });
}
