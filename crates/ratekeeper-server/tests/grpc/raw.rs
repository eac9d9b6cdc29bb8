//! A gRPC client on raw HTTP/2 frames, with full control over when each is sent.

use h2::SendStream;
use h2::client::{Builder, ResponseFuture, SendRequest};
use hyper::body::Bytes;
use hyper::{HeaderMap, Request};
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A message with its gRPC length prefix.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    [&[0], &u32::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
}

/// The headers of a call, with additional `fields`.
pub(crate) fn call_request(path: &str, fields: &[(&str, &str)]) -> Request<()> {
    let mut call = Request::post(format!("http://a{path}")).header("te", "trailers");
    if fields.iter().all(|(name, _)| *name != "content-type") {
        call = call.header("content-type", "application/grpc");
    }
    fields.iter().fold(call, |call, (name, value)| call.header(*name, *value)).body(()).unwrap()
}

/// The response to a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct GrpcResponse {
    pub(crate) status: u16,
    /// The gRPC status code; `None` if the response has none.
    pub(crate) code: Option<u8>,
    pub(crate) message: String,
    pub(crate) body: Vec<u8>,
    headers: HeaderMap,
}

impl GrpcResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A call whose headers have been sent.
pub(crate) struct OpenCall {
    pub(crate) body: SendStream<Bytes>,
    response: ResponseFuture,
}

impl OpenCall {
    pub(crate) fn send(&mut self, bytes: &[u8], is_last: bool) {
        self.body.send_data(Bytes::copy_from_slice(bytes), is_last).unwrap();
    }

    pub(crate) async fn response(self) -> GrpcResponse {
        let (head, mut body) = self.response.await.unwrap().into_parts();
        let mut answer =
            GrpcResponse { status: head.status.as_u16(), headers: head.headers, ..GrpcResponse::default() };
        while let Some(piece) = body.data().await {
            let piece = piece.unwrap();
            body.flow_control().release_capacity(piece.len()).unwrap();
            answer.body.extend_from_slice(&piece);
        }
        answer.headers.extend(body.trailers().await.unwrap().unwrap_or_default());
        answer.code = answer.header("grpc-status").map(|code| code.parse().unwrap());
        answer.message =
            answer.header("grpc-message").unwrap_or_default().replace("%20", " ").replace("%22", "\"");
        answer
    }
}

/// One HTTP/2 connection.
pub(crate) struct RawConnection {
    requests: SendRequest<Bytes>,
    pub(crate) driver: JoinHandle<Result<(), h2::Error>>,
}

impl RawConnection {
    pub(crate) async fn open(address: SocketAddr) -> RawConnection {
        RawConnection::open_with(address, 1 << 20).await
    }

    /// Opens a connection with a receive window of `window` bytes per stream.
    pub(crate) async fn open_with(address: SocketAddr, window: u32) -> RawConnection {
        let stream = TcpStream::connect(address).await.unwrap();
        let (requests, connection) =
            Builder::new().initial_window_size(window).handshake(stream).await.unwrap();
        RawConnection { requests, driver: tokio::spawn(connection) }
    }

    /// Sends the headers of a call.
    pub(crate) async fn start_call(&mut self, call: Request<()>) -> OpenCall {
        let mut requests = self.requests.clone().ready().await.unwrap();
        let (answer, body) = requests.send_request(call, false).unwrap();
        OpenCall { body, response: answer }
    }

    /// Makes a call with this body, each piece in its own DATA frame.
    pub(crate) async fn make_call(&mut self, call: Request<()>, pieces: &[&[u8]]) -> GrpcResponse {
        let mut begun = self.start_call(call).await;
        for piece in pieces {
            begun.send(piece, false);
        }
        begun.send(b"", true);
        begun.response().await
    }

    /// Waits until the server has sent `GOAWAY`.
    pub(crate) async fn until_goaway(&mut self) {
        while std::future::poll_fn(|cx| self.requests.poll_ready(cx)).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}
