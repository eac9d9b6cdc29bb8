//! Fuzzes the RESP decoder: it never panics, its result does not depend on how the bytes are split, and it agrees with
//! the `redis-protocol` crate on what a command is.

#[path = "../src/resp/arguments.rs"]
#[expect(dead_code, reason = "only the decoding of commands is tested here")]
mod arguments;
#[path = "../src/resp/decode.rs"]
#[expect(dead_code, reason = "only the decoding of commands is tested here")]
mod decode;
#[path = "../src/resp/inline.rs"]
mod inline;

use decode::{DecodedFront, Decoder, MAX_COMMAND_BYTES, ProtocolError};
use redis_protocol::resp2::decode::decode as decode_frame;
use redis_protocol::resp2::types::OwnedFrame;

/// The result of decoding a byte string.
#[derive(Debug, PartialEq, Eq)]
struct DecodedInput {
    commands: Vec<Vec<Vec<u8>>>,
    error: Option<ProtocolError>,
    /// Number of bytes consumed.
    consumed: usize,
}

/// Decodes bytes that arrive in pieces, each ending at one of `cuts`.
fn decode_pieces(bytes: &[u8], cuts: impl IntoIterator<Item = usize>) -> DecodedInput {
    let mut decoder = Decoder::default();
    let mut decoded = DecodedInput { commands: Vec::new(), error: None, consumed: 0 };
    for arrived in cuts.into_iter().chain([bytes.len()]) {
        if decoded.error.is_some() {
            break;
        }
        loop {
            let rest = &bytes[decoded.consumed..arrived];
            match decoder.decode(rest) {
                DecodedFront::Command { bytes } => {
                    decoded.commands.push(decoder.args(rest).starting_at(0).map(<[u8]>::to_vec).collect());
                    decoded.consumed += bytes;
                    assert!(bytes > 0 && bytes <= rest.len());
                }
                DecodedFront::Empty { bytes } => {
                    decoded.consumed += bytes;
                    assert!(bytes > 0 && bytes <= rest.len());
                }
                DecodedFront::Incomplete => {
                    assert!(
                        rest.len() < MAX_COMMAND_BYTES,
                        "a command longer than the limit is not rejected"
                    );
                    break;
                }
                DecodedFront::Invalid(error) => {
                    decoded.error = Some(error);
                    break;
                }
            }
        }
    }
    decoded
}

/// Maps arbitrary choices to sorted positions in `bytes`.
fn cuts(bytes: &[u8], choices: &[u16]) -> Vec<usize> {
    let mut cuts: Vec<usize> =
        choices.iter().map(|choice| usize::from(*choice) % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    cuts
}

fn check(bytes: &[u8], choices: &[u16]) {
    let whole = decode_pieces(bytes, []);
    assert_eq!(decode_pieces(bytes, cuts(bytes, choices)), whole);
    if bytes.len() < 200 {
        assert_eq!(decode_pieces(bytes, 0..bytes.len()), whole, "byte by byte");
    }
    check_against_redis_protocol(bytes);
}

/// Compares the first command with the result of the `redis-protocol` crate.
fn check_against_redis_protocol(bytes: &[u8]) {
    if bytes.first() != Some(&b'*') {
        return;
    }
    let mut decoder = Decoder::default();
    let found = decoder.decode(bytes);
    let theirs = decode_frame(bytes);
    if let DecodedFront::Command { bytes: length } = found {
        let ours: Vec<&[u8]> = decoder.args(bytes).starting_at(0).collect();
        let Ok(Some((OwnedFrame::Array(frames), taken))) = &theirs else {
            panic!("{ours:?}, but redis-protocol decodes {theirs:?}")
        };
        let args: Option<Vec<&[u8]>> = frames.iter().map(argument).collect();
        assert_eq!((Some(ours), length), (args, *taken));
    }
    // Every command that redis-protocol decodes from the canonical encoding must be accepted.
    if let Ok(Some((OwnedFrame::Array(frames), taken))) = theirs
        && let Some(args) = frames.iter().map(argument).collect::<Option<Vec<_>>>()
        && encode(&args) == bytes[..taken]
        && (1..=1024).contains(&args.len())
        && taken <= MAX_COMMAND_BYTES
    {
        assert_eq!(found, DecodedFront::Command { bytes: taken });
    }
}

fn argument(frame: &OwnedFrame) -> Option<&[u8]> {
    match frame {
        OwnedFrame::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

fn encode(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

#[test]
fn resp_commands_of_any_bytes() {
    bolero::check!()
        .with_type::<(Vec<u8>, Vec<u16>)>()
        .for_each(|(bytes, choices): &(Vec<u8>, Vec<u16>)| check(bytes, choices));
}

#[test]
fn valid_resp_commands() {
    bolero::check!().with_type::<(Vec<Vec<Vec<u8>>>, Vec<u16>)>().for_each(
        |(commands, choices): &(Vec<Vec<Vec<u8>>>, Vec<u16>)| {
            let commands: Vec<&Vec<Vec<u8>>> =
                commands.iter().filter(|command| !command.is_empty()).collect();
            let bytes: Vec<u8> = commands
                .iter()
                .flat_map(|command| encode(&command.iter().map(Vec::as_slice).collect::<Vec<_>>()))
                .collect();
            let decoded = decode_pieces(&bytes, cuts(&bytes, choices));
            assert_eq!(decoded.commands.iter().collect::<Vec<_>>(), commands);
            assert_eq!((decoded.error, decoded.consumed), (None, bytes.len()));
            check_against_redis_protocol(&bytes);
        },
    );
}

#[test]
fn nearly_valid_resp_commands() {
    let pieces: [&[u8]; 48] = [
        b"*1\r\n",
        b"*2\r\n",
        b"*5\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"*1000000\r\n",
        b"*99999999999999999999\r\n",
        b"*",
        b"*\r\n",
        b"*+1\r\n",
        b"*01\r\n",
        b"*1\n",
        b"*1\r",
        b"$",
        b"$0\r\n\r\n",
        b"$1\r\nx\r\n",
        b"$1\r\nxx\r\n",
        b"$4\r\nPING\r\n",
        b"$4\r\nPIN",
        b"$11\r\nCL.THROTTLE\r\n",
        b"$-1\r\n",
        b"$-0\r\n",
        b"$+1\r\nx\r\n",
        b"$01\r\nx\r\n",
        b"$2\r\n\r\n\r\n",
        b"$65537\r\n",
        b"$99999999999\r\n",
        b"$1\r\n\n\r\n",
        b":1\r\n",
        b"+OK\r\n",
        b"%1\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\0",
        b"\xff",
        b"PING\r\n",
        b"ECHO \"a b\"\r\n",
        b"ECHO 'a b'\n",
        b"ECHO \"\\x41\\",
        b"\"",
        b"'",
        b"\\",
        b"\\x4",
        b"x",
        b"POST / HTTP/1.1\r\n",
        b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n",
    ];
    bolero::check!().with_type::<(Vec<u8>, Vec<u16>)>().for_each(
        |(chosen, choices): &(Vec<u8>, Vec<u16>)| {
            let bytes: Vec<u8> = chosen
                .iter()
                .flat_map(|choice| pieces[usize::from(*choice) % pieces.len()])
                .copied()
                .collect();
            check(&bytes, choices);
        },
    );
}
