//! Fuzzes connections with arbitrary bytes: replies do not depend on how the bytes are split.

use super::decode::Decoder;
use super::executor::AfterCommands;
use super::testing::{encode_array, encode_words, poll_now, test_shared};

/// All replies of a new connection to bytes that arrive in pieces, and whether it is closed then. A manual clock and a
/// fresh store make it deterministic.
fn replies_in_pieces(bytes: &[u8], ends: impl IntoIterator<Item = usize>) -> (Vec<u8>, bool) {
    let (shared, _) = test_shared("default: {limit: 5/h}", None);
    let (mut executor, mut decoder) = (shared.executor(), Decoder::default());
    let (mut replies, mut taken) = (Vec::new(), 0);
    for end in ends.into_iter().chain([bytes.len()]) {
        loop {
            let (length, next) = poll_now(executor.execute(&mut decoder, &bytes[taken..end.max(taken)]));
            taken += length;
            replies.append(&mut executor.out);
            match next {
                AfterCommands::More => {}
                AfterCommands::Read => break,
                AfterCommands::Close => return (replies, true),
            }
        }
    }
    (replies, false)
}

#[track_caller]
fn check(bytes: &[u8], choices: &[u16]) {
    let whole = replies_in_pieces(bytes, []);
    let mut ends: Vec<usize> =
        choices.iter().map(|choice| usize::from(*choice) % (bytes.len() + 1)).collect();
    ends.sort_unstable();
    assert_eq!(replies_in_pieces(bytes, ends), whole);
    // The last reply is complete.
    let text = String::from_utf8_lossy(&whole.0);
    assert!(text.is_empty() || text.ends_with("\r\n"), "{text}");
}

#[test]
fn resp_conversations_of_any_bytes() {
    bolero::check!()
        .with_type::<(Vec<u8>, Vec<u16>)>()
        .for_each(|(bytes, choices): &(Vec<u8>, Vec<u16>)| check(bytes, choices));
}

#[test]
fn resp_conversations_of_commands_and_garbage() {
    let lines = [
        "CL.THROTTLE a 3 1 60",
        "CL.THROTTLE b 3 1 60",
        "CL.THROTTLE a 3 1 60",
        "cl.throttle a 3 1 60",
        "CL.THROTTLE a 4 1 60",
        "CL.THROTTLE a 3 1 60 2",
        "CL.THROTTLE a 3 1 60 0",
        "CL.THROTTLE a 3 1 60 -1",
        "CL.THROTTLE '' 3 1 60",
        "CL.THROTTLE a x 1 60",
        "CL.THROTTLE a 3 0 60",
        "CL.THROTTLE",
        "RK.CHECK a /",
        "RK.CHECK a / 2 METHOD GET ATTR b c",
        "RK.CHECK a / IP nowhere",
        "PING",
        "ECHO CL.THROTTLE",
        "MULTI",
        "EXEC",
        "DISCARD",
        "RESET",
        "HELLO 3",
        "HELLO 2",
        "CLIENT SETNAME x",
        "CLIENT GETNAME",
        "CLIENT LIST",
        "COMMAND DOCS",
        "INFO",
        "NONSENSE",
        "QUIT",
    ];
    let mut pieces: Vec<Vec<u8>> = lines.iter().map(|line| encode_words(line)).collect();
    pieces.extend(
        [
            "CL.THROTTLE a 3 1 60\r\n",
            "PING\n",
            "\r\n",
            "*0\r\n",
            "*-1\r\n",
            "ECHO \"a b\"\r\n",
            "ECHO \"\r\n",
            "*1\r\n:1\r\n",
        ]
        .map(Into::into),
    );
    pieces.extend(["*5\r\n", "$11\r\nCL.THROTTLE\r\n", "$1\r\na\r\n", "\0", "$", "*"].map(Into::into));
    let with_key = |key: &[u8]| encode_array([&b"CL.THROTTLE"[..], key, b"3", b"1", b"60"]);
    pieces.extend([with_key(b"\xff"), with_key(&[b'k'; 5000]), with_key(b"\r\n$1\r\n3\r\n")]);
    bolero::check!().with_type::<(Vec<u8>, Vec<u16>)>().for_each(
        |(chosen, choices): &(Vec<u8>, Vec<u16>)| {
            let bytes: Vec<u8> = chosen
                .iter()
                .flat_map(|choice| &pieces[usize::from(*choice) % pieces.len()])
                .copied()
                .collect();
            check(&bytes, choices);
        },
    );
}
