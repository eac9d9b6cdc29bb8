//! A TCP proxy that adds latency: it delivers each byte a fixed time after it was sent, without limiting throughput.

use anyhow::Result;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// The maximum number of delayed chunks per direction.
const CHUNKS: usize = 1024;
const CHUNK_BYTES: usize = 64 << 10;

/// The bytes, and when they are due for delivery.
type Chunk = (Instant, Vec<u8>);

/// Accepts connections and forwards them to a server for the lifetime of this process. Its threads inherit the caller's
/// CPU affinity.
pub(crate) fn start(server: SocketAddr, delay: Duration) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming() {
            // A connection that can't be forwarded is closed.
            let _ = client.map_err(Into::into).and_then(|client| forward(&client, server, delay));
        }
    });
    Ok(address)
}

fn forward(client: &TcpStream, server: SocketAddr, delay: Duration) -> Result<()> {
    let server = TcpStream::connect(server)?;
    for (from, to) in [(client, &server), (&server, client)] {
        to.set_nodelay(true)?;
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        let (send, sent) = sync_channel(CHUNKS);
        thread::spawn(move || receive(from, &send, delay));
        thread::spawn(move || deliver(&sent, to));
    }
    Ok(())
}

/// Reads bytes and queues them with their delivery time.
fn receive(mut from: TcpStream, send: &SyncSender<Chunk>, delay: Duration) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if send.send((Instant::now() + delay, buffer[..count].to_vec())).is_err() {
            return;
        }
    }
}

/// Writes queued bytes when they are due.
fn deliver(sent: &Receiver<Chunk>, mut to: TcpStream) {
    for (due, bytes) in sent {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
