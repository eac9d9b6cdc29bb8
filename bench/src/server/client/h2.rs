//! The client side of HTTP/2, with one stream at a time and without reading headers.
//!
//! The server gets the largest flow-control windows, which are replenished long before they run out, so it never waits
//! for the generator. The generator respects the server's windows: frames that exceed them are held back.

use anyhow::{Result, bail, ensure};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of a frame header: length, type, flags and stream id.
pub(crate) const FRAME_HEAD: usize = 9;
/// The maximum frame size, unless SETTINGS change it.
pub(crate) const MAX_FRAME: usize = 16384;
/// The initial window of either side, and the maximum window.
const FIRST_WINDOW: i64 = 65535;
const MAX_WINDOW: u32 = (1 << 31) - 1;
/// How many received bytes are acknowledged with one WINDOW_UPDATE.
const WINDOW_UPDATE_BYTES: u32 = 1 << 20;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
const PADDED: u8 = 8;

/// Frame types.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
}

/// Settings identifiers.
const ENABLE_PUSH: u16 = 2;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// Writes a frame.
pub(crate) fn put_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, content: &[u8]) {
    let length = content.len() as u32;
    out.extend_from_slice(&length.to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(content);
}

/// What a frame brought for the open stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    Data(&'a [u8]),
    /// Headers or trailers, and whether they end the stream.
    Headers {
        is_end: bool,
    },
    /// A frame of the connection, or of a stream that has ended.
    Other,
}

/// A connection and its open stream.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// The open stream, or the last one; 0 before the first.
    stream: u32,
    is_open: bool,
    connection_credit: i64,
    stream_credit: i64,
    /// The initial window of every stream.
    first_credit: i64,
    /// Bytes received since the last WINDOW_UPDATE: on the connection, and on the stream.
    used: u32,
    used_of_stream: u32,
    /// Frames that wait for credit, and how much they need.
    held: Option<(Vec<u8>, i64)>,
}

impl Session {
    pub(crate) fn new() -> Session {
        Session {
            stream: 0,
            is_open: false,
            connection_credit: FIRST_WINDOW,
            stream_credit: 0,
            first_credit: FIRST_WINDOW,
            used: 0,
            used_of_stream: 0,
            held: None,
        }
    }

    /// Opens the next stream, and with the first one the connection. Returns its id.
    pub(crate) fn open_stream(&mut self, out: &mut Vec<u8>) -> Result<u32> {
        self.stream = match self.stream {
            0 => {
                write_preface(out);
                1
            }
            last => last + 2,
        };
        ensure!(self.stream <= MAX_WINDOW, "a connection has no stream ids left: run for less time");
        (self.stream_credit, self.used_of_stream, self.is_open) = (self.first_credit, 0, true);
        Ok(self.stream)
    }

    /// Whether there is a stream that the server has not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Sends frames with `data` bytes of flow-controlled data on the open stream, as soon as the server's windows
    /// allow.
    pub(crate) fn send(&mut self, frames: &[u8], data: usize, out: &mut Vec<u8>) -> Result<()> {
        let data = data as i64;
        if self.take_credit(data) {
            out.extend_from_slice(frames);
            return Ok(());
        }
        ensure!(self.held.is_none(), "a request was written before the last one was sent");
        self.held = Some((frames.to_vec(), data));
        Ok(())
    }

    fn take_credit(&mut self, data: i64) -> bool {
        let is_enough = self.connection_credit.min(self.stream_credit) >= data;
        if is_enough {
            self.connection_credit -= data;
            self.stream_credit -= data;
        }
        is_enough
    }

    /// Reads the first frame in `bytes`, and replies to it where the protocol requires that. Returns its length and
    /// content; `None` if it is incomplete.
    pub(crate) fn read<'a>(
        &mut self,
        bytes: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(usize, Event<'a>)>> {
        let Some(frame) = Frame::split(bytes)? else { return Ok(None) };
        let event = self.handle_frame(frame, out)?;
        Ok(Some((FRAME_HEAD + frame.content.len(), event)))
    }

    fn handle_frame<'a>(&mut self, frame: Frame<'a>, out: &mut Vec<u8>) -> Result<Event<'a>> {
        let is_ours = frame.stream == self.stream && self.is_open;
        match frame.kind {
            kind::DATA => {
                ensure!(is_ours, "data came for a stream that is not open");
                ensure!(frame.flags & (PADDED | END_STREAM) == 0, "data came padded, or without trailers");
                self.replenish(frame.content.len() as u32, out);
                Ok(Event::Data(frame.content))
            }
            kind::HEADERS if is_ours => {
                let is_end = frame.flags & END_STREAM != 0;
                self.is_open = !is_end;
                Ok(Event::Headers { is_end })
            }
            kind::SETTINGS if frame.flags & ACK == 0 => {
                self.apply_settings(frame.content);
                put_frame(out, kind::SETTINGS, ACK, 0, &[]);
                self.send_held(out);
                Ok(Event::Other)
            }
            kind::PING if frame.flags & ACK == 0 => {
                put_frame(out, kind::PING, ACK, 0, frame.content);
                Ok(Event::Other)
            }
            kind::WINDOW_UPDATE => {
                let more = i64::from(frame.number(0)?);
                match frame.stream {
                    0 => self.connection_credit += more,
                    _ if is_ours => self.stream_credit += more,
                    _ => {}
                }
                self.send_held(out);
                Ok(Event::Other)
            }
            kind::RST_STREAM if is_ours => bail!("a stream was reset with error {}", frame.number(0)?),
            kind::GOAWAY => bail!("the server sent GOAWAY with error {}", frame.number(4)?),
            _ => Ok(Event::Other),
        }
    }

    fn apply_settings(&mut self, content: &[u8]) {
        for setting in content.as_chunks::<6>().0 {
            let [name @ .., a, b, c, d] = *setting;
            if u16::from_be_bytes(name) == INITIAL_WINDOW_SIZE {
                let first = i64::from(u32::from_be_bytes([a, b, c, d]));
                self.stream_credit += first - self.first_credit;
                self.first_credit = first;
            }
        }
    }

    fn send_held(&mut self, out: &mut Vec<u8>) {
        if let Some((frames, data)) = self.held.take() {
            if self.take_credit(data) {
                out.extend_from_slice(&frames);
            } else {
                self.held = Some((frames, data));
            }
        }
    }

    /// Counts received bytes, and replenishes the windows when enough have been received.
    fn replenish(&mut self, length: u32, out: &mut Vec<u8>) {
        for (stream, used) in [(0, &mut self.used), (self.stream, &mut self.used_of_stream)] {
            *used += length;
            if *used >= WINDOW_UPDATE_BYTES {
                put_frame(out, kind::WINDOW_UPDATE, 0, stream, &used.to_be_bytes());
                *used = 0;
            }
        }
    }
}

/// The connection preface: no server push, and maximum windows.
fn write_preface(out: &mut Vec<u8>) {
    out.extend_from_slice(PREFACE);
    let mut settings = Vec::new();
    for (name, value) in [(ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, MAX_WINDOW)] {
        settings.extend_from_slice(&name.to_be_bytes());
        settings.extend_from_slice(&value.to_be_bytes());
    }
    put_frame(out, kind::SETTINGS, 0, 0, &settings);
    let more = MAX_WINDOW - FIRST_WINDOW as u32;
    put_frame(out, kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
}

#[derive(Clone, Copy, Debug)]
struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    content: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The first frame in `bytes`, if it is complete.
    fn split(bytes: &'a [u8]) -> Result<Option<Frame<'a>>> {
        let Some(([a, b, c, kind, flags, stream @ ..], rest)) = bytes.split_first_chunk::<FRAME_HEAD>()
        else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        ensure!(length <= MAX_FRAME, "a frame is longer than {MAX_FRAME} bytes: not HTTP/2");
        let Some(content) = rest.get(..length) else { return Ok(None) };
        // The first bit is reserved.
        let stream = u32::from_be_bytes(*stream) & MAX_WINDOW;
        Ok(Some(Frame { kind: *kind, flags: *flags, stream, content }))
    }

    /// The 31-bit number at an offset of the content.
    fn number(&self, place: usize) -> Result<u32> {
        match self.content.get(place..place + 4) {
            Some(&[a, b, c, d]) => Ok(u32::from_be_bytes([a, b, c, d]) & MAX_WINDOW),
            _ => bail!("a frame is too short"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, kind, flags, stream, content);
        bytes
    }

    /// A session with an open stream and nothing left to send.
    fn session() -> Session {
        let (mut session, mut out) = (Session::new(), Vec::new());
        assert_eq!(session.open_stream(&mut out).unwrap(), 1);
        assert!(out.starts_with(PREFACE));
        session
    }

    /// What a session replies to a frame.
    fn reply(session: &mut Session, frame: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let (length, _) = session.read(frame, &mut out).unwrap().unwrap();
        assert_eq!(length, frame.len());
        out
    }

    #[test]
    fn frames_are_read_once_they_are_complete() {
        let mut session = session();
        let bytes = frame(kind::DATA, 0, 1, b"hello");
        for length in 0..bytes.len() {
            assert_eq!(session.read(&bytes[..length], &mut Vec::new()).unwrap(), None);
        }
        let twice = [&bytes[..], b"more"].concat();
        let read = session.read(&twice, &mut Vec::new()).unwrap();
        assert_eq!(read, Some((bytes.len(), Event::Data(b"hello"))));
        assert!(session.read(b"HTTP/1.1 400 Bad Request\r\n\r\n", &mut Vec::new()).is_err());
    }

    #[test]
    fn settings_and_pings_are_acknowledged_once() {
        let mut session = session();
        let settings = frame(kind::SETTINGS, 0, 0, &[]);
        assert_eq!(reply(&mut session, &settings), frame(kind::SETTINGS, ACK, 0, &[]));
        assert_eq!(reply(&mut session, &frame(kind::SETTINGS, ACK, 0, &[])), b"");
        let ping = frame(kind::PING, 0, 0, b"12345678");
        assert_eq!(reply(&mut session, &ping), frame(kind::PING, ACK, 0, b"12345678"));
        assert_eq!(reply(&mut session, &frame(kind::PING, ACK, 0, b"12345678")), b"");
    }

    #[test]
    fn frames_beyond_the_window_are_held_back() {
        let mut session = session();
        let more = |stream, more: u32| frame(kind::WINDOW_UPDATE, 0, stream, &more.to_be_bytes());
        let mut out = Vec::new();
        session.send(b"first", 65000, &mut out).unwrap();
        session.send(b"second", 1000, &mut out).unwrap();
        assert_eq!(out, b"first");
        assert_eq!(reply(&mut session, &more(0, 1000)), b"", "the stream has no credit");
        assert_eq!(reply(&mut session, &more(3, 1000)), b"", "another stream's credit is not its own");
        assert_eq!(reply(&mut session, &more(1, 1000)), b"second");

        session.send(b"third", 1000, &mut out).unwrap();
        let [a, b, c, d] = (65535_u32 + 1000).to_be_bytes();
        let settings = frame(kind::SETTINGS, 0, 0, &[0, 4, a, b, c, d]);
        assert_eq!(reply(&mut session, &settings), frame(kind::SETTINGS, ACK, 0, &[]));
        assert_eq!(reply(&mut session, &more(0, 1000)), b"third");
        assert_eq!(session.open_stream(&mut out).unwrap(), 3);
        assert_eq!(session.stream_credit, 66535);
    }

    #[test]
    fn received_data_replenishes_the_windows() {
        let mut session = session();
        let data = frame(kind::DATA, 0, 1, &[0; MAX_FRAME]);
        let replies: Vec<_> = (0..64).map(|_| reply(&mut session, &data)).collect();
        let (last, others) = replies.split_last().unwrap();
        assert!(others.iter().all(Vec::is_empty));
        let all = WINDOW_UPDATE_BYTES.to_be_bytes();
        let both = [0, 1].map(|stream| frame(kind::WINDOW_UPDATE, 0, stream, &all));
        assert_eq!(*last, both.concat());
    }

    #[test]
    fn a_reset_or_goaway_ends_the_load() {
        let mut session = session();
        for bytes in [frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 7]), frame(kind::GOAWAY, 0, 0, &[0; 8])] {
            assert!(session.read(&bytes, &mut Vec::new()).is_err());
        }
        reply(&mut session, &frame(kind::HEADERS, END_STREAM, 1, &[]));
        assert_eq!(reply(&mut session, &frame(kind::RST_STREAM, 0, 1, &[0; 4])), b"", "the stream has ended");
    }
}
