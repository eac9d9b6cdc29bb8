//! A connection over which one client asks, in one of the languages.

use super::AnswerKind;
use crate::servers::{RespClient, RespReply, connect};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Whom to ask, and in which language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The RESP port, at this address.
    Resp(String),
    /// The HTTP port, at this address.
    Http(String),
}

/// What was said to one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChannelReply {
    pub(super) verdict: AnswerKind,
    pub(super) is_degraded: bool,
}

#[derive(Debug)]
pub(super) enum Channel {
    Resp(RespClient),
    Http(BufReader<TcpStream>),
}

impl Channel {
    pub(super) fn open(target: &Target, patience: Duration) -> io::Result<Channel> {
        match target {
            Target::Resp(address) => {
                RespClient::over_tcp(connect(address, patience)?, patience).map(Channel::Resp)
            }
            Target::Http(address) => {
                let stream = connect(address, patience)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Ok(Channel::Http(BufReader::new(stream)))
            }
        }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Channel::Resp(connection) => connection.send_encoded(bytes),
            Channel::Http(stream) => stream.get_mut().write_all(bytes),
        }
    }

    /// Reads one answer. One that is no decision is an error.
    pub(super) fn read(&mut self) -> io::Result<ChannelReply> {
        match self {
            Channel::Resp(connection) => read_resp(&connection.read()?),
            Channel::Http(stream) => read_http(stream),
        }
    }
}

fn read_resp(reply: &RespReply) -> io::Result<ChannelReply> {
    if let Some(error) = reply.error() {
        return Err(io::Error::other(error.to_owned()));
    }
    let verdict = match reply.array().first().map(RespReply::integer) {
        Some(0) => AnswerKind::Allowed,
        Some(1) => AnswerKind::Denied,
        _ => return Err(io::Error::other(format!("{reply:?} is no decision"))),
    };
    // No limit holds less than one unit. What a share decided can't be told from what the whole limit did.
    let is_degraded = matches!(reply.array().get(1), Some(RespReply::Integer(..1)));
    Ok(ChannelReply { verdict, is_degraded })
}

fn read_http(stream: &mut BufReader<TcpStream>) -> io::Result<ChannelReply> {
    let (mut head, mut length, mut is_degraded) = (String::new(), 0, false);
    loop {
        head.clear();
        if stream.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = head.trim_end();
        if line.is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(": ") else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().map_err(io::Error::other)?;
        }
        is_degraded |= name.eq_ignore_ascii_case("x-ratelimit-policy") && value == "degraded";
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let body = String::from_utf8_lossy(&body);
    let verdict = match (body.contains(r#""allowed":true"#), body.contains(r#""allowed":false"#)) {
        (true, false) => AnswerKind::Allowed,
        (false, true) => AnswerKind::Denied,
        _ => return Err(io::Error::other(format!("{body:?} is no decision"))),
    };
    Ok(ChannelReply { verdict, is_degraded })
}
