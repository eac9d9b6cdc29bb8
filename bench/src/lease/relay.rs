//! A way to a server that takes a while: each byte arrives so much later than it was sent, however many are on their way.

use anyhow::Result;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// How many chunks are on their way at most, in each direction.
const CHUNKS: usize = 1024;
const CHUNK_BYTES: usize = 64 << 10;

/// What was sent, and when it is to arrive.
type Chunk = (Instant, Vec<u8>);

/// Listens for connections, and carries them on to a server for as long as this process lives. Its threads are where the
/// one is that calls this.
pub(crate) fn start(server: SocketAddr, delay: Duration) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming() {
            // A connection that can't be carried on is closed, which is all that there is to say.
            let _ = client.map_err(Into::into).and_then(|client| carry(&client, server, delay));
        }
    });
    Ok(address)
}

fn carry(client: &TcpStream, server: SocketAddr, delay: Duration) -> Result<()> {
    let server = TcpStream::connect(server)?;
    for (from, to) in [(client, &server), (&server, client)] {
        to.set_nodelay(true)?;
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        let (send, sent) = sync_channel(CHUNKS);
        thread::spawn(move || take_in(from, &send, delay));
        thread::spawn(move || hand_on(&sent, to));
    }
    Ok(())
}

/// Notes of what comes when it is due.
fn take_in(mut from: TcpStream, send: &SyncSender<Chunk>, delay: Duration) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if send.send((Instant::now() + delay, buffer[..count].to_vec())).is_err() {
            return;
        }
    }
}

/// Waits for what is due, and passes it on.
fn hand_on(sent: &Receiver<Chunk>, mut to: TcpStream) {
    for (due, bytes) in sent {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
