//! Whatever a client sends, the decoder answers; the same however the bytes are cut; and what it takes for a command is
//! what others take for one.

#[path = "../src/resp/decode.rs"]
#[expect(dead_code, reason = "only how commands are found is tried here")]
mod decode;
#[path = "../src/resp/inline.rs"]
mod inline;

use decode::{DecodedFront, Decoder, MAX_COMMAND_BYTES, ProtocolError};
use redis_protocol::resp2::decode::decode as decode_frame;
use redis_protocol::resp2::types::OwnedFrame;

/// What was found in some bytes.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    commands: Vec<Vec<Vec<u8>>>,
    breach: Option<ProtocolError>,
    /// How many bytes were dealt with.
    taken: usize,
}

/// Hears bytes that come in pieces, of which each ends where one of `cuts` says.
fn hear(bytes: &[u8], cuts: impl IntoIterator<Item = usize>) -> Heard {
    let mut decoder = Decoder::default();
    let mut heard = Heard { commands: Vec::new(), breach: None, taken: 0 };
    for come in cuts.into_iter().chain([bytes.len()]) {
        if heard.breach.is_some() {
            break;
        }
        loop {
            let rest = &bytes[heard.taken..come];
            match decoder.find(rest) {
                DecodedFront::Command { bytes } => {
                    heard.commands.push(decoder.args(rest).from(0).map(<[u8]>::to_vec).collect());
                    heard.taken += bytes;
                    assert!(bytes > 0 && bytes <= rest.len());
                }
                DecodedFront::Nothing { bytes } => {
                    heard.taken += bytes;
                    assert!(bytes > 0 && bytes <= rest.len());
                }
                DecodedFront::Unfinished => {
                    assert!(rest.len() < MAX_COMMAND_BYTES, "it never ends");
                    break;
                }
                DecodedFront::Broken(breach) => {
                    heard.breach = Some(breach);
                    break;
                }
            }
        }
    }
    heard
}

/// Where bytes are cut: wherever the choices say, in order.
fn cuts(bytes: &[u8], choices: &[u16]) -> Vec<usize> {
    let mut cuts: Vec<usize> =
        choices.iter().map(|choice| usize::from(*choice) % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    cuts
}

fn check(bytes: &[u8], choices: &[u16]) {
    let whole = hear(bytes, []);
    assert_eq!(hear(bytes, cuts(bytes, choices)), whole);
    if bytes.len() < 200 {
        assert_eq!(hear(bytes, 0..bytes.len()), whole, "byte by byte");
    }
    check_by_others(bytes);
}

/// Holds the first command to what another decoder makes of it.
fn check_by_others(bytes: &[u8]) {
    if bytes.first() != Some(&b'*') {
        return;
    }
    let mut decoder = Decoder::default();
    let found = decoder.find(bytes);
    let theirs = decode_frame(bytes);
    if let DecodedFront::Command { bytes: length } = found {
        let ours: Vec<&[u8]> = decoder.args(bytes).from(0).collect();
        let Ok(Some((OwnedFrame::Array(frames), taken))) = &theirs else {
            panic!("{ours:?}, but others say {theirs:?}")
        };
        let args: Option<Vec<&[u8]>> = frames.iter().map(argument).collect();
        assert_eq!((Some(ours), length), (args, *taken));
    }
    // What others take for a command, spelled as every client spells it, is one.
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
fn resp_commands_that_are_right() {
    bolero::check!().with_type::<(Vec<Vec<Vec<u8>>>, Vec<u16>)>().for_each(
        |(commands, choices): &(Vec<Vec<Vec<u8>>>, Vec<u16>)| {
            let commands: Vec<&Vec<Vec<u8>>> =
                commands.iter().filter(|command| !command.is_empty()).collect();
            let bytes: Vec<u8> = commands
                .iter()
                .flat_map(|command| encode(&command.iter().map(Vec::as_slice).collect::<Vec<_>>()))
                .collect();
            let heard = hear(&bytes, cuts(&bytes, choices));
            assert_eq!(heard.commands.iter().collect::<Vec<_>>(), commands);
            assert_eq!((heard.breach, heard.taken), (None, bytes.len()));
            check_by_others(&bytes);
        },
    );
}

#[test]
fn resp_commands_that_nearly_read() {
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
