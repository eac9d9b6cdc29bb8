//! Lower bounds for a server on this machine: they read the same requests and write the same responses, but decide
//! nothing.
//!
//! They trust the client and implement only what the generator uses of a protocol, so they are not usable as servers.
//! Each runs on one thread.

mod grpc;
mod http;
mod resp;

use anyhow::Result;
use std::fmt;
use std::net::Ipv4Addr;
use tokio::net::TcpListener;

/// The protocol and implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// HTTP with bare hyper: shows what could be gained in Ratekeeper's own code.
    Hyper,
    /// HTTP by hand with httparse: shows the cost of hyper.
    ByHand,
    /// RESP: shows what could be gained at all.
    Resp,
    /// gRPC with bare tonic: shows what could be gained in Ratekeeper's own code.
    Grpc,
}

impl Kind {
    /// The name on the command line.
    pub(crate) fn argument(self) -> &'static str {
        match self {
            Kind::Hyper => "hyper",
            Kind::ByHand => "by-hand",
            Kind::Resp => "resp",
            Kind::Grpc => "grpc",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Hyper => "bare hyper",
            Kind::ByHand => "written by hand",
            Kind::Resp => "bare tokio",
            Kind::Grpc => "bare tonic",
        })
    }
}

/// Serves until it is killed, and prints its address.
pub(crate) fn serve(kind: Kind) -> Result<()> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("listens on http://{}", listener.local_addr()?);
    serve_all(kind, listener)
}

/// Serves on a thread of this process. Returns the address.
#[cfg(test)]
pub(crate) fn start(kind: Kind) -> Result<std::net::SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || serve_all(kind, listener));
    Ok(address)
}

/// Serves all connections.
fn serve_all(kind: Kind, listener: std::net::TcpListener) -> Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            match kind {
                Kind::Hyper => drop(tokio::spawn(http::serve_by_hyper(stream))),
                Kind::ByHand => drop(tokio::spawn(http::serve_by_hand(stream))),
                Kind::Resp => drop(tokio::spawn(resp::serve(stream))),
                Kind::Grpc => drop(tokio::spawn(grpc::serve(stream))),
            }
        }
    })
}
