//! One multiplexed connection, shared by all calls.
//!
//! Calls are written as they arrive and answered in order. The connection closes when its last reference is dropped, so
//! dropping a connection also fails its pending calls, but no earlier than their deadlines.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use tokio::task::AbortHandle;

/// Consecutive timeouts after which a connection is dropped, so that its queue can't grow.
const MAX_CONSECUTIVE_TIMEOUTS: u32 = 3;

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

/// Commands that are sent in one write.
pub(crate) struct CommandBatch {
    pipeline: Pipeline,
    is_asking: bool,
}

impl CommandBatch {
    pub(crate) fn new(commands: impl IntoIterator<Item = Cmd>) -> CommandBatch {
        let mut pipeline = Pipeline::new();
        for command in commands {
            pipeline.add_command(command);
        }
        CommandBatch { pipeline, is_asking: false }
    }

    /// A batch for the target of a slot migration: each command is preceded by `ASKING`.
    pub(crate) fn with_asking(commands: impl IntoIterator<Item = Cmd>) -> CommandBatch {
        let mut pipeline = Pipeline::new();
        for command in commands {
            pipeline.cmd("ASKING");
            pipeline.add_command(command);
        }
        CommandBatch { pipeline, is_asking: true }
    }

    /// The number of commands, not counting `ASKING`.
    pub(crate) fn len(&self) -> usize {
        self.pipeline.len() / if self.is_asking { 2 } else { 1 }
    }

    /// A batch with copies of some of the commands, to send them again.
    pub(crate) fn select(&self, indices: &[usize]) -> CommandBatch {
        let commands = self.commands(indices);
        if self.is_asking { CommandBatch::with_asking(commands) } else { CommandBatch::new(commands) }
    }

    /// Copies of some of the commands.
    pub(crate) fn commands(&self, indices: &[usize]) -> Vec<Cmd> {
        let step = if self.is_asking { 2 } else { 1 };
        let commands = self.pipeline.cmd_iter().skip(step - 1).step_by(step).enumerate();
        commands.filter(|(index, _)| indices.contains(index)).map(|(_, command)| command.clone()).collect()
    }
}
