//! Signals that stop the process or reload its files.

use std::io;

/// Handlers for Ctrl-C, SIGTERM and SIGHUP, installed from creation on.
#[derive(Debug)]
pub(crate) struct Signals {
    stop: Stop,
    reload: Reload,
}

impl Signals {
    pub(crate) fn catch() -> io::Result<Signals> {
        Ok(Signals { stop: Stop::catch()?, reload: Reload::catch()? })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            () = self.stop.next() => Signal::Stop,
            () = self.reload.next() => Signal::Reload,
        }
    }

    /// Waits for the next stop signal.
    pub(crate) async fn stop(&mut self) {
        self.stop.next().await;
    }
}

/// The request of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Stop,
    Reload,
}

#[cfg(unix)]
#[derive(Debug)]
struct Stop {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Stop {
    fn catch() -> io::Result<Stop> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Stop { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(unix)]
#[derive(Debug)]
struct Reload(tokio::signal::unix::Signal);

#[cfg(unix)]
impl Reload {
    fn catch() -> io::Result<Reload> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Reload(signal(SignalKind::hangup())?))
    }

    async fn next(&mut self) {
        self.0.recv().await;
    }
}

#[cfg(windows)]
#[derive(Debug)]
struct Stop(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Stop {
    fn catch() -> io::Result<Stop> {
        Ok(Stop(tokio::signal::windows::ctrl_c()?))
    }

    async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// Windows has no reload signal; changed files are detected all the same.
#[cfg(windows)]
#[derive(Debug)]
struct Reload;

#[cfg(windows)]
impl Reload {
    fn catch() -> io::Result<Reload> {
        Ok(Reload)
    }

    async fn next(&mut self) {
        std::future::pending().await
    }
}
