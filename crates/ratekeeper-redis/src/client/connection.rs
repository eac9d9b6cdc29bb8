//! One multiplexed connection, shared by all calls.
//!
//! Calls are written as they arrive and answered in order. The connection closes when its last reference is dropped, so
//! dropping a connection also fails its pending calls, but no earlier than their deadlines.

use crate::client::failure::{LoginContext, ServerFailure};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Consecutive timeouts after which a connection is dropped, so that its queue can't grow.
const MAX_CONSECUTIVE_TIMEOUTS: u32 = 3;

/// Timeout of a command that no client's call waits for: checks, and queries of the topology.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// One multiplexed connection to a server.
pub(crate) struct RedisConnection {
    inner: MultiplexedConnection,
    driver: AbortHandle,
    is_closed: Arc<AtomicBool>,
    consecutive_timeouts: AtomicU32,
}

impl RedisConnection {
    pub(crate) fn new(
        inner: MultiplexedConnection,
        driver: impl Future<Output = ()> + Send + 'static,
        on_close: impl FnOnce() + Send + 'static,
    ) -> RedisConnection {
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&is_closed);
        let driver = tokio::spawn(async move {
            driver.await;
            closed.store(true, Relaxed);
            on_close();
        });
        RedisConnection {
            inner,
            driver: driver.abort_handle(),
            is_closed,
            consecutive_timeouts: AtomicU32::new(0),
        }
    }

    /// A handle to the underlying connection of the client library.
    pub(crate) fn handle(&self) -> MultiplexedConnection {
        self.inner.clone()
    }

    /// Sends commands in one write, and returns the reply to each, error replies included.
    pub(crate) async fn send(&self, batch: &CommandBatch) -> RedisResult<Vec<Value>> {
        let mut connection = self.inner.clone();
        let mut values = connection.send_packed_commands(&batch.pipeline, 0, batch.pipeline.len()).await?;
        if batch.is_asking {
            values = values.into_iter().skip(1).step_by(2).collect();
        }
        Ok(values)
    }

    /// Sends commands that no client's call waits for, and explains a failure to the operator.
    pub(crate) async fn query(
        &self,
        commands: impl IntoIterator<Item = Cmd>,
        login: &LoginContext,
    ) -> Result<Vec<Value>, ServerFailure> {
        match timeout(REPLY_TIMEOUT, self.send(&CommandBatch::new(commands))).await {
            Ok(reply) => reply.map_err(|error| login.explain_connection_error(&error)),
            Err(_) => Err(ServerFailure::timeout(REPLY_TIMEOUT)),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Marks the connection as closed. Returns whether it was open before.
    pub(crate) fn mark_closed(&self) -> bool {
        !self.is_closed.swap(true, Relaxed)
    }

    pub(crate) fn record_reply(&self) {
        self.consecutive_timeouts.store(0, Relaxed);
    }

    /// Records that a call timed out. Returns whether the connection should be dropped.
    pub(crate) fn record_timeout(&self) -> bool {
        self.consecutive_timeouts.fetch_add(1, Relaxed) + 1 >= MAX_CONSECUTIVE_TIMEOUTS
    }
}

impl Drop for RedisConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A command made of words.
pub(crate) fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(word);
    }
    command
}

/// Commands that are sent in one write.
pub(crate) struct CommandBatch {
    pipeline: Pipeline,
    /// Whether each command is preceded by `ASKING`.
    pub(crate) is_asking: bool,
}

impl CommandBatch {
    pub(crate) fn new(commands: impl IntoIterator<Item = Cmd>) -> CommandBatch {
        CommandBatch::with(commands, false)
    }

    /// With `is_asking`, the batch is for the target of a slot migration: each command is preceded by `ASKING`.
    pub(crate) fn with(commands: impl IntoIterator<Item = Cmd>, is_asking: bool) -> CommandBatch {
        let mut pipeline = Pipeline::new();
        for command in commands {
            if is_asking {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(command);
        }
        CommandBatch { pipeline, is_asking }
    }

    /// The number of commands, not counting `ASKING`.
    pub(crate) fn len(&self) -> usize {
        self.pipeline.len() / self.step()
    }

    /// A batch with copies of some of the commands, to send them again.
    pub(crate) fn select(&self, indices: &[usize], is_asking: bool) -> CommandBatch {
        let commands = self.pipeline.cmd_iter().skip(self.step() - 1).step_by(self.step()).enumerate();
        let selected = commands.filter(|(index, _)| indices.contains(index));
        CommandBatch::with(selected.map(|(_, command)| command.clone()), is_asking)
    }

    /// The number of commands on the wire for each command.
    fn step(&self) -> usize {
        if self.is_asking { 2 } else { 1 }
    }
}
