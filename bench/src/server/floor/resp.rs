//! RESP without decisions: it reads commands as arrays of bulk strings, and answers each with the same five integers.

use anyhow::{Context, Result, ensure};
use std::hint::black_box;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The maximum length of a command; longer ones are errors.
const MAX_BYTES: usize = 1 << 20;
/// The read buffer: a pipeline of 64 commands fits.
const INPUT_BYTES: usize = 16 << 10;

/// The reply to every command: not limited.
const ANSWER: &[u8] = b"*5\r\n:0\r\n:1000000\r\n:999999\r\n:-1\r\n:1\r\n";

pub(super) async fn serve(mut stream: TcpStream) -> Result<()> {
    let (mut input, mut output) = (Vec::with_capacity(INPUT_BYTES), Vec::with_capacity(INPUT_BYTES));
    while stream.read_buf(&mut input).await? > 0 {
        let mut taken = 0;
        while let Some(length) = read_command(&input[taken..])? {
            taken += length;
            output.extend_from_slice(ANSWER);
        }
        input.drain(..taken);
        ensure!(input.len() < MAX_BYTES, "a command is too long");
        if !output.is_empty() {
            stream.write_all(&output).await?;
            output.clear();
        }
    }
    Ok(())
}

/// The length of the first command in `input`; `None` if it is incomplete.
fn read_command(input: &[u8]) -> Result<Option<usize>> {
    let Some((words, mut place)) = read_number(input, b'*')? else { return Ok(None) };
    for _ in 0..words {
        let Some((length, begin)) = read_number(&input[place..], b'$')? else { return Ok(None) };
        place += begin;
        let Some(word) = input[place..].get(..length + 2) else { return Ok(None) };
        ensure!(word.ends_with(b"\r\n"), "a bulk string is longer than its length");
        black_box(word);
        place += word.len();
    }
    Ok(Some(place))
}

/// Reads a line of a type byte and a number. Returns the number and the length of the line.
fn read_number(input: &[u8], sign: u8) -> Result<Option<(usize, usize)>> {
    let Some(end) = memchr::memchr(b'\n', input) else { return Ok(None) };
    let line = input[..end].strip_suffix(b"\r").context("a line does not end in CRLF")?;
    let digits = line.strip_prefix(&[sign]).context("not an array of bulk strings")?;
    let number: usize = str::from_utf8(digits)?.parse()?;
    ensure!(number < MAX_BYTES, "a command is too long");
    Ok(Some((number, end + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_once_it_is_complete() {
        let command = b"*2\r\n$3\r\nGET\r\n$11\r\nuser:000001\r\n";
        for length in 0..command.len() {
            assert_eq!(read_command(&command[..length]).unwrap(), None, "with {length} bytes");
        }
        let twice = [&command[..], b"*2\r\n"].concat();
        assert_eq!(read_command(&twice).unwrap(), Some(command.len()));
        assert!(read_command(b"GET user:000001\r\n").is_err());
    }
}
