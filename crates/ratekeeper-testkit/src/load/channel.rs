//! A connection of one client, over RESP or HTTP.

use super::AnswerKind;
use crate::servers::{RespClient, RespReply, connect};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A server to send requests to, and the protocol to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The RESP listener at this address.
    Resp(String),
    /// The HTTP listener at this address.
    Http(String),
}

/// The reply to one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChannelReply {
    pub(super) kind: AnswerKind,
    pub(super) is_degraded: bool,
}

#[derive(Debug)]
pub(super) enum Channel {
    Resp(RespClient),
    Http(BufReader<TcpStream>),
}

impl Channel {
    pub(super) fn open(target: &Target, timeout: Duration) -> io::Result<Channel> {
        match target {
            Target::Resp(address) => {
                RespClient::from_tcp(connect(address, timeout)?, timeout).map(Channel::Resp)
            }
            Target::Http(address) => {
                let stream = connect(address, timeout)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
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

    /// Reads one answer. A reply without a decision is an error.
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
    let kind = match reply.array().first().map(RespReply::integer) {
        Some(0) => AnswerKind::Allowed,
        Some(1) => AnswerKind::Denied,
        _ => return Err(io::Error::other(format!("{reply:?} is not a decision"))),
    };
    // A limit below one unit marks a decision without a store. A decision by a node's share of the limit looks like any
    // other.
    let is_degraded = matches!(reply.array().get(1), Some(RespReply::Integer(..1)));
    Ok(ChannelReply { kind, is_degraded })
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
    let kind = match (body.contains(r#""allowed":true"#), body.contains(r#""allowed":false"#)) {
        (true, false) => AnswerKind::Allowed,
        (false, true) => AnswerKind::Denied,
        _ => return Err(io::Error::other(format!("{body:?} is not a decision"))),
    };
    Ok(ChannelReply { kind, is_degraded })
}
