//! An HTTP/1.1 client that reads and writes raw bytes.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A byte stream: plain TCP or TLS.
pub(crate) trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// One HTTP/1.1 connection.
pub(crate) struct Client(BufReader<Box<dyn Stream>>);

/// Opens a client socket with a read timeout, so that a test cannot hang.
pub(crate) fn socket(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

impl Client {
    pub(crate) fn connect(address: &str) -> Client {
        Client::over(socket(address))
    }

    pub(crate) fn over(stream: impl Stream + 'static) -> Client {
        Client(BufReader::new(Box::new(stream)))
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
        self.0.get_mut().flush().unwrap();
    }

    /// Sends a request and waits for the response.
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Answer {
        self.send(request(method, path, fields, body));
        self.answer()
    }

    pub(crate) fn post(&mut self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.request("POST", path, &[], body)
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.request("GET", path, &[], "")
    }

    pub(crate) fn check(&mut self, body: impl AsRef<[u8]>) -> Answer {
        self.post("/check", body)
    }

    /// Reads exactly one response.
    pub(crate) fn answer(&mut self) -> Answer {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.0.read_line(&mut head).unwrap(), 0, "the connection ended within {head:?}");
        }
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let fields = lines.map(|line| {
            let (name, value) = line.split_once(": ").expect(line);
            (name.to_ascii_lowercase(), value.to_owned())
        });
        let mut answer = Answer { status, fields: fields.collect(), body: String::new() };
        let length = answer.field("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        answer.body = String::from_utf8(body).unwrap();
        answer
    }

    /// Whether the server has closed the connection and sent nothing more.
    pub(crate) fn has_ended(&mut self) -> bool {
        match self.0.read(&mut [0]) {
            Ok(read) => read == 0,
            // A connection that was never accepted is reset when the listener closes.
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

/// One HTTP response.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The header fields in order, names in lower case.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    /// Returns a header field by its lower-case name, `None` if it is missing. A duplicate field fails the test.
    #[track_caller]
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut found =
            self.fields.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let first = found.next();
        assert_eq!(found.next(), None, "duplicate {name}: {self:?}");
        first
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).expect(&self.body)
    }

    /// A numeric field of the JSON body.
    #[track_caller]
    pub(crate) fn number(&self, field: &str) -> u64 {
        self.json()[field].as_u64().expect(&self.body)
    }

    /// The `allowed` field of a decision.
    #[track_caller]
    pub(crate) fn is_allowed(&self) -> bool {
        self.json()["allowed"].as_bool().expect(&self.body)
    }
}

/// The bytes of a check.
pub(crate) fn check(body: impl AsRef<[u8]>) -> Vec<u8> {
    request("POST", "/check", &[], body)
}

/// The bytes of a request.
pub(crate) fn request(method: &str, path: &str, fields: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    [head.as_bytes(), b"\r\n", body].concat()
}
