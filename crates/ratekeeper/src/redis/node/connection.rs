//! One connection, shared by all calls.
//!
//! Calls are written as they come and answered in order. The connection ends when the last of those who hold it lets
//! go, so a connection that is given up takes its unanswered calls with it, but no earlier than their deadlines.

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, Pipeline, RedisResult, Value};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use tokio::task::AbortHandle;

/// This many calls in a row without an answer, and a connection is given up: its queue must not grow.
const SILENCES_IN_A_ROW: u32 = 3;

/// One connection.
pub(in crate::redis) struct RedisConnection {
    connection: MultiplexedConnection,
    driver: AbortHandle,
    is_closed: Arc<AtomicBool>,
    silences: AtomicU32,
}

impl RedisConnection {
    pub(super) fn new(
        connection: MultiplexedConnection,
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
        RedisConnection { connection, driver: driver.abort_handle(), is_closed, silences: AtomicU32::new(0) }
    }

    /// A handle on the connection itself.
    pub(in crate::redis) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// Sends commands at once, and gives each one's answer, errors of the server among them.
    pub(in crate::redis) async fn send(&self, batch: &CommandBatch) -> RedisResult<Vec<Value>> {
        let mut connection = self.connection.clone();
        let mut values = connection.send_packed_commands(&batch.pipeline, 0, batch.pipeline.len()).await?;
        if batch.is_asking {
            values = values.into_iter().skip(1).step_by(2).collect();
        }
        Ok(values)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Notes that it is broken, and says whether that is news.
    pub(super) fn close(&self) -> bool {
        !self.is_closed.swap(true, Relaxed)
    }

    pub(super) fn note_answer(&self) {
        self.silences.store(0, Relaxed);
    }

    /// Notes that a call got no answer in time, and says whether the connection is to be given up.
    pub(super) fn note_silence(&self) -> bool {
        self.silences.fetch_add(1, Relaxed) + 1 >= SILENCES_IN_A_ROW
    }
}

impl Drop for RedisConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Commands that are written at once.
pub(in crate::redis) struct CommandBatch {
    pipeline: Pipeline,
    is_asking: bool,
}

impl CommandBatch {
    pub(in crate::redis) fn new(commands: impl IntoIterator<Item = Cmd>) -> CommandBatch {
        let mut pipeline = Pipeline::new();
        for command in commands {
            pipeline.add_command(command);
        }
        CommandBatch { pipeline, is_asking: false }
    }

    /// The same for a Cluster's node that is taking over a slot: each command is preceded by `ASKING`.
    pub(in crate::redis) fn asking(commands: impl IntoIterator<Item = Cmd>) -> CommandBatch {
        let mut pipeline = Pipeline::new();
        for command in commands {
            pipeline.cmd("ASKING");
            pipeline.add_command(command);
        }
        CommandBatch { pipeline, is_asking: true }
    }

    /// How many commands there are, `ASKING` not counted.
    pub(in crate::redis) fn len(&self) -> usize {
        self.pipeline.len() / if self.is_asking { 2 } else { 1 }
    }

    /// A copy of some of the commands, to be sent again.
    pub(in crate::redis) fn select(&self, indices: &[usize]) -> CommandBatch {
        let commands = self.commands(indices);
        if self.is_asking { CommandBatch::asking(commands) } else { CommandBatch::new(commands) }
    }

    /// Copies of some of the commands.
    pub(in crate::redis) fn commands(&self, indices: &[usize]) -> Vec<Cmd> {
        let step = if self.is_asking { 2 } else { 1 };
        let commands = self.pipeline.cmd_iter().skip(step - 1).step_by(step).enumerate();
        commands.filter(|(index, _)| indices.contains(index)).map(|(_, command)| command.clone()).collect()
    }
}
