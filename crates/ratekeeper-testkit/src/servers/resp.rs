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
pub enum Reply {
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
    Array(Vec<Reply>),
}

impl Reply {
    /// The number it is, or that it says. Anything else fails the test.
    #[track_caller]
    pub fn integer(&self) -> i64 {
        match self {
            Reply::Integer(number) => *number,
            Reply::Simple(_) | Reply::Error(_) | Reply::Bulk(_) | Reply::Nil | Reply::Array(_) => {
                self.text().parse().must(&format!("{self:?} is no number"))
            }
        }
    }

    /// The text it is. Anything else fails the test.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Reply::Simple(text) => text.clone(),
            Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Reply::Integer(number) => number.to_string(),
            Reply::Error(_) | Reply::Nil | Reply::Array(_) => fail(&format!("{self:?} is no text")),
        }
    }

    /// Its parts. Anything but an array fails the test.
    #[track_caller]
    pub fn array(&self) -> &[Reply] {
        match self {
            Reply::Array(parts) => parts,
            Reply::Simple(_) | Reply::Error(_) | Reply::Integer(_) | Reply::Bulk(_) | Reply::Nil => {
                fail(&format!("{self:?} is no array"))
            }
        }
    }

    /// The error it is, if it is one.
    pub fn error(&self) -> Option<&str> {
        match self {
            Reply::Error(text) => Some(text),
            Reply::Simple(_) | Reply::Integer(_) | Reply::Bulk(_) | Reply::Nil | Reply::Array(_) => None,
        }
    }

    /// The same, unless it is an error, which fails the test.
    #[track_caller]
    pub fn done(self) -> Reply {
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
impl Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Simple(text) => f.write_str(text),
            Reply::Error(text) => write!(f, "error {text:?}"),
            Reply::Integer(number) => write!(f, "{number}"),
            Reply::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Reply::Nil => f.write_str("nil"),
            Reply::Array(parts) => f.debug_list().entries(parts).finish(),
        }
    }
}

/// One connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<Stream>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    /// Connects to an address and a port.
    ///
    /// # Errors
    /// Nobody listens there, or nobody answers.
    pub fn tcp(address: &str) -> io::Result<Connection> {
        Connection::over(Stream::Tcp(connect(address, PATIENCE)?))
    }

    /// Speaks through a connection that was made by somebody else.
    pub(crate) fn over_tcp(stream: TcpStream, patience: Duration) -> io::Result<Connection> {
        let connection = Connection::over(Stream::Tcp(stream))?;
        connection.set_patience(patience)?;
        Ok(connection)
    }

    /// Connects to a socket in the file system.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn unix(path: &Path) -> io::Result<Connection> {
        Connection::over(Stream::Unix(UnixStream::connect(path)?))
    }

    fn over(stream: Stream) -> io::Result<Connection> {
        let connection = Connection { stream: BufReader::new(stream) };
        connection.set_patience(PATIENCE)?;
        Ok(connection)
    }

    /// How long to wait for an answer before it counts as an error.
    ///
    /// # Errors
    /// The system refuses, as it does for no time at all.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        match self.stream.get_ref() {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))
            }
        }
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// The connection breaks, or there is no answer in time. An error that the server tells is an answer.
    pub fn ask<A: AsRef<[u8]>>(&mut self, words: &[A]) -> io::Result<Reply> {
        self.send(words)?;
        self.read()
    }

    /// Sends a command, whose answer is to be [read](Connection::read) later.
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
    pub fn read(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
        let number = || rest.parse::<i64>().map_err(io::Error::other);
        Ok(match kind {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => Reply::Bulk(self.bytes(length)?),
                Err(_) => Reply::Nil,
            },
            "*" => match usize::try_from(number()?) {
                Ok(length) => Reply::Array((0..length).map(|_| self.read()).collect::<io::Result<_>>()?),
                Err(_) => Reply::Nil,
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

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
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
