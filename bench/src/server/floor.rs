//! The least that a server can do on this machine: it reads the same checks and writes the same answers, and between the
//! two it decides nothing.
//!
//! Floors take a well-meaning client for granted and speak no more of a protocol than the generator does, so they are no
//! servers to use. Each runs on one thread.

mod grpc;
mod http;
mod resp;

use anyhow::Result;
use std::fmt;
use std::net::Ipv4Addr;
use tokio::net::TcpListener;

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// HTTP, by bare hyper: shows what is left to gain inside Ratekeeper's own code.
    Hyper,
    /// HTTP, written by hand around a parser of headers: shows what hyper costs.
    ByHand,
    /// RESP: shows what is left to gain at all.
    Resp,
    /// gRPC, by bare tonic: shows what is left to gain inside Ratekeeper's own code.
    Grpc,
}

impl Kind {
    /// As the command line has it.
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

/// Serves until it is killed, and says where.
pub(crate) fn serve(kind: Kind) -> Result<()> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("listens on http://{}", listener.local_addr()?);
    serve_all(kind, listener)
}

/// Serves in a thread of this process; where.
#[cfg(test)]
pub(crate) fn start(kind: Kind) -> Result<std::net::SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || serve_all(kind, listener));
    Ok(address)
}

/// Serves whoever comes.
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
