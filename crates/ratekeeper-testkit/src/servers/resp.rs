//! A minimal blocking RESP2 client.
//!
//! It shares no code with the code under test.

use crate::wait::{OrFail, TEST_TIMEOUT, fail};
use std::fmt::{self, Debug};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The reply of a server.
#[derive(Clone, PartialEq, Eq)]
pub enum RespReply {
    /// A simple string like `OK`.
    Simple(String),
    /// An error, starting with its kind.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A bulk string.
    Bulk(Vec<u8>),
    /// A null bulk string or array.
    Nil,
    /// An array of replies.
    Array(Vec<RespReply>),
}

impl RespReply {
    /// The integer, also if written as a string. Fails the test for any other reply.
    #[track_caller]
    pub fn integer(&self) -> i64 {
        match self {
            RespReply::Integer(number) => *number,
            RespReply::Simple(_)
            | RespReply::Error(_)
            | RespReply::Bulk(_)
            | RespReply::Nil
            | RespReply::Array(_) => self.text().parse().or_fail(&format!("{self:?} is not a number")),
        }
    }

    /// The text. Fails the test for errors, nil and arrays.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            RespReply::Simple(text) => text.clone(),
            RespReply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            RespReply::Integer(number) => number.to_string(),
            RespReply::Error(_) | RespReply::Nil | RespReply::Array(_) => {
                fail(&format!("{self:?} is not text"))
            }
        }
    }

    /// The elements of an array. Fails the test for any other reply.
    #[track_caller]
    pub fn array(&self) -> &[RespReply] {
        match self {
            RespReply::Array(parts) => parts,
            RespReply::Simple(_)
            | RespReply::Error(_)
            | RespReply::Integer(_)
            | RespReply::Bulk(_)
            | RespReply::Nil => fail(&format!("{self:?} is not an array")),
        }
    }

    /// The error message, or `None` if it is not an error.
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

    /// Returns the reply. Fails the test if it is an error.
    #[track_caller]
    pub fn expect_ok(self) -> RespReply {
        match self.error() {
            Some(error) => fail(&format!("the server replied with an error: {error}")),
            None => self,
        }
    }

    /// The value of a line `name:value`, as in `INFO` and `CLUSTER INFO`; `None` if absent.
    #[track_caller]
    pub fn field(&self, name: &str) -> Option<String> {
        let text = self.text();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.trim_end().to_owned())
    }
}

/// Shows bytes as text, with non-ASCII bytes escaped.
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
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// If there is no listener, or it does not accept in time.
    pub fn connect_tcp(address: &str) -> io::Result<RespClient> {
        RespClient::from_stream(RespStream::Tcp(connect(address, TEST_TIMEOUT)?))
    }

    /// Uses an existing connection.
    pub(crate) fn from_tcp(stream: TcpStream, timeout: Duration) -> io::Result<RespClient> {
        let connection = RespClient::from_stream(RespStream::Tcp(stream))?;
        connection.set_timeout(timeout)?;
        Ok(connection)
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// If there is no listener.
    pub fn connect_unix(path: &Path) -> io::Result<RespClient> {
        RespClient::from_stream(RespStream::Unix(UnixStream::connect(path)?))
    }

    fn from_stream(stream: RespStream) -> io::Result<RespClient> {
        let connection = RespClient { stream: BufReader::new(stream) };
        connection.set_timeout(TEST_TIMEOUT)?;
        Ok(connection)
    }

    /// Sets the timeout for reads and writes.
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self.stream.get_ref() {
            RespStream::Tcp(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
            RespStream::Unix(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
        }
    }

    /// Sends a command and returns the reply. An error reply is returned, too.
    ///
    /// # Errors
    /// If the connection breaks, or the timeout passes.
    pub fn call<A: AsRef<[u8]>>(&mut self, words: &[A]) -> io::Result<RespReply> {
        self.send(words)?;
        self.read()
    }

    /// Sends a command whose reply is to be [read](RespClient::read) later.
    ///
    /// # Errors
    /// If the connection breaks.
    pub fn send<A: AsRef<[u8]>>(&mut self, words: &[A]) -> io::Result<()> {
        self.stream.get_mut().write_all(&encode(words))
    }

    /// Sends commands that are already [encoded](encode).
    pub(crate) fn send_encoded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads the next reply.
    ///
    /// # Errors
    /// If the connection breaks, or the timeout passes.
    pub fn read(&mut self) -> io::Result<RespReply> {
        let line = self.read_line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
        let number = || rest.parse::<i64>().map_err(io::Error::other);
        Ok(match kind {
            "+" => RespReply::Simple(rest.to_owned()),
            "-" => RespReply::Error(rest.to_owned()),
            ":" => RespReply::Integer(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => RespReply::Bulk(self.read_bytes(length)?),
                Err(_) => RespReply::Nil,
            },
            "*" => match usize::try_from(number()?) {
                Ok(length) => RespReply::Array((0..length).map(|_| self.read()).collect::<io::Result<_>>()?),
                Err(_) => RespReply::Nil,
            },
            _ => return Err(io::Error::other(format!("{line:?} does not start a reply"))),
        })
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn read_bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
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

/// Connects to `host:port` within the timeout, with `TCP_NODELAY`.
pub(crate) fn connect(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let address = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Encodes a command as an array of bulk strings.
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
