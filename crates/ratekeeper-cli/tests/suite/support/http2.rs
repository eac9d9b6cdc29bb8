//! An HTTP/2 client with prior knowledge.

use super::client::Answer;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// One HTTP/2 connection, driven by its own runtime.
pub(crate) struct Http2 {
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
    connection: JoinHandle<hyper::Result<()>>,
}

impl Http2 {
    pub(crate) fn connect(address: &str) -> Http2 {
        Http2::over(async { TcpStream::connect(address).await.unwrap() })
    }

    pub(crate) fn over<S>(stream: impl Future<Output = S>) -> Http2
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (sender, connection) = runtime.block_on(async {
            let (sender, connection) =
                handshake(TokioExecutor::new(), TokioIo::new(stream.await)).await.unwrap();
            (sender, tokio::spawn(connection))
        });
        Http2 { runtime, sender, connection }
    }

    /// Sends a request and waits for the response.
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(format!("http://test{path}"));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::from(body.to_owned())).unwrap();
        self.runtime.block_on(async {
            let answer = self.sender.send_request(request).await.unwrap();
            assert_eq!(answer.version(), hyper::Version::HTTP_2);
            let fields = answer
                .headers()
                .iter()
                .map(|(name, value)| (name.as_str().to_owned(), value.to_str().unwrap().to_owned()));
            let (status, fields) = (answer.status().as_u16(), fields.collect());
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            Answer { status, fields, body: String::from_utf8(body.to_vec()).unwrap() }
        })
    }

    /// Waits until the server closes the connection, and fails unless it closes cleanly.
    pub(crate) fn end(self) {
        self.runtime.block_on(self.connection).unwrap().unwrap();
    }
}
