//! As much of the Redis protocol as it takes to tell a server what to do and to read what it says.
//!
//! It blocks, knows version 2 only, and shares no code with what is tested.

use crate::patience::{Must, PATIENCE, fail};
use std::fmt::{self, Debug};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// What a server answered.
#[derive(Clone, PartialEq, Eq)]
pub enum RespReply {
    /// A word like `OK`.
    Simple(String),
    /// An error, beginning with its kind.
    Error(String),
    /// A number.
    Integer(i64),
    /// A string, of text or not.
    Bulk(Vec<u8>),
    /// No value.
    Nil,
    /// Several answers.
    Array(Vec<RespReply>),
}

impl RespReply {
    /// The number it is, or that it says. Anything else fails the test.
    #[track_caller]
    pub fn integer(&self) -> i64 {
        match self {
            RespReply::Integer(number) => *number,
            RespReply::Simple(_)
            | RespReply::Error(_)
            | RespReply::Bulk(_)
            | RespReply::Nil
            | RespReply::Array(_) => self.text().parse().must(&format!("{self:?} is no number")),
        }
    }

    /// The text it is. Anything else fails the test.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            RespReply::Simple(text) => text.clone(),
            RespReply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            RespReply::Integer(number) => number.to_string(),
            RespReply::Error(_) | RespReply::Nil | RespReply::Array(_) => {
                fail(&format!("{self:?} is no text"))
            }
        }
    }

    /// Its parts. Anything but an array fails the test.
    #[track_caller]
    pub fn array(&self) -> &[RespReply] {
        match self {
            RespReply::Array(parts) => parts,
            RespReply::Simple(_)
            | RespReply::Error(_)
            | RespReply::Integer(_)
            | RespReply::Bulk(_)
            | RespReply::Nil => fail(&format!("{self:?} is no array")),
        }
    }

    /// The error it is, if it is one.
    pub fn error(&self) -> Option<&str> {
        match self {
            RespReply::Error(text) => Some(text),
            RespReply::Simple(_)
            | RespReply::Integer(_)
            | RespReply::Bulk(_)
            | RespReply::Nil
            | RespReply::Array(_) => None,
        }
    }

    /// The same, unless it is an error, which fails the test.
    #[track_caller]
    pub fn done(self) -> RespReply {
        match self.error() {
            Some(error) => fail(&format!("the server said: {error}")),
            None => self,
        }
    }

    /// One line of the form `name:value`, as `INFO` and `CLUSTER INFO` have them.
    #[track_caller]
    pub fn field(&self, name: &str) -> Option<String> {
        let text = self.text();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.trim_end().to_owned())
    }
}

/// Bytes are shown as text, with escapes for what is none.
impl Debug for RespReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RespReply::Simple(text) => f.write_str(text),
            RespReply::Error(text) => write!(f, "error {text:?}"),
            RespReply::Integer(number) => write!(f, "{number}"),
            RespReply::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            RespReply::Nil => f.write_str("nil"),
            RespReply::Array(parts) => f.debug_list().entries(parts).finish(),
        }
    }
}

/// One connection to a server.
#[derive(Debug)]
pub struct RespClient {
    stream: BufReader<RespStream>,
}

#[derive(Debug)]
enum RespStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl RespClient {
    /// Connects to an address and a port.
    ///
    /// # Errors
    /// Nobody listens there, or nobody answers.
    pub fn tcp(address: &str) -> io::Result<RespClient> {
        RespClient::over(RespStream::Tcp(connect(address, PATIENCE)?))
    }

    /// Speaks through a connection that was made by somebody else.
    pub(crate) fn over_tcp(stream: TcpStream, patience: Duration) -> io::Result<RespClient> {
        let connection = RespClient::over(RespStream::Tcp(stream))?;
        connection.set_patience(patience)?;
        Ok(connection)
    }

    /// Connects to a socket in the file system.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn unix(path: &Path) -> io::Result<RespClient> {
        RespClient::over(RespStream::Unix(UnixStream::connect(path)?))
    }

    fn over(stream: RespStream) -> io::Result<RespClient> {
        let connection = RespClient { stream: BufReader::new(stream) };
        connection.set_patience(PATIENCE)?;
        Ok(connection)
    }

    /// How long to wait for an answer before it counts as an error.
    ///
    /// # Errors
    /// The system refuses, as it does for no time at all.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        match self.stream.get_ref() {
            RespStream::Tcp(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))
            }
            RespStream::Unix(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))
            }
        }
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// The connection breaks, or there is no answer in time. An error that the server tells is an answer.
    pub fn ask<A: AsRef<[u8]>>(&mut self, words: &[A]) -> io::Result<RespReply> {
        self.send(words)?;
        self.read()
    }

    /// Sends a command, whose answer is to be [read](RespClient::read) later.
    ///
    /// # Errors
    /// The connection breaks.
    pub fn send<A: AsRef<[u8]>>(&mut self, words: &[A]) -> io::Result<()> {
        self.stream.get_mut().write_all(&encode(words))
    }

    /// Sends what was [encoded](encode) before.
    pub(crate) fn send_encoded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads the next answer.
    ///
    /// # Errors
    /// The connection breaks, or there is no answer in time.
    pub fn read(&mut self) -> io::Result<RespReply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
        let number = || rest.parse::<i64>().map_err(io::Error::other);
        Ok(match kind {
            "+" => RespReply::Simple(rest.to_owned()),
            "-" => RespReply::Error(rest.to_owned()),
            ":" => RespReply::Integer(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => RespReply::Bulk(self.bytes(length)?),
                Err(_) => RespReply::Nil,
            },
            "*" => match usize::try_from(number()?) {
                Ok(length) => RespReply::Array((0..length).map(|_| self.read()).collect::<io::Result<_>>()?),
                Err(_) => RespReply::Nil,
            },
            _ => return Err(io::Error::other(format!("{line:?} begins no answer"))),
        })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }
}

impl Read for RespStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            RespStream::Tcp(stream) => stream.read(buffer),
            RespStream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for RespStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            RespStream::Tcp(stream) => stream.write(bytes),
            RespStream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection to an address and a port, made within this time and with no delay of its own.
pub(crate) fn connect(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let address = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The bytes of a command.
pub(crate) fn encode<A: AsRef<[u8]>>(words: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
