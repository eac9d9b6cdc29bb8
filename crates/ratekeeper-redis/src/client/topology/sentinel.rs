//! Redis Sentinel: discovers the current master and follows failovers.
//!
//! Every sentinel is polled once a second, and pushes a message when the master is switched. The reply with the
//! latest epoch wins. A reply with an older epoch wins only if more than half of the sentinels give it, so a sentinel
//! that returns with outdated state can't direct calls to a deposed master. The node of a deposed master is retired
//! at once: further calls to it fail. The role of the master is checked on every new connection and then repeatedly.

use crate::client::connection::{REPLY_TIMEOUT, RedisConnection, command};
use crate::client::connector::Connector;
use crate::client::failure::{LoginContext, ServerFailure};
use crate::client::node::{RedisNode, ServerOptions};
use crate::client::topology::discovery::DiscoveryServer;
use crate::client::url::ServerAddress;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use ratekeeper::StoreErrorCause;
use redis::{PushInfo, PushKind, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

/// Interval between two polls of a sentinel.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before reconnecting to a sentinel after a failure.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);
/// Maximum age of a sentinel's vote to count in a majority.
const MAX_VOTE_AGE: Duration = Duration::from_secs(3);

/// The master that a set of sentinels monitors.
pub(crate) struct SentinelMaster {
    inner: Arc<SentinelInner>,
    tasks: Vec<AbortHandle>,
}

struct SentinelInner {
    options: ServerOptions,
    /// The name of the master, as configured in the sentinels.
    master_name: String,
    sentinels: Vec<DiscoveryServer>,
    node: ArcSwapOption<RedisNode>,
    votes: Mutex<SentinelVotes>,
    has_master: watch::Sender<bool>,
}

impl SentinelMaster {
    pub(crate) fn start(
        sentinel_status: Vec<ServerAddress>,
        name: String,
        connector: &Connector,
        options: ServerOptions,
    ) -> SentinelMaster {
        let inner = Arc::new(SentinelInner {
            options,
            master_name: name,
            votes: Mutex::new(SentinelVotes::new(sentinel_status.len())),
            sentinels: sentinel_status.into_iter().map(DiscoveryServer::new).collect(),
            node: ArcSwapOption::empty(),
            has_master: watch::Sender::new(false),
        });
        let watch =
            |index| tokio::spawn(watch_sentinel(Arc::clone(&inner), index, connector.clone())).abort_handle();
        let tasks = (0..inner.sentinels.len()).map(watch).collect();
        SentinelMaster { inner, tasks }
    }

    /// The current master. Returns `None` until one is known.
    pub(crate) fn node(&self) -> Option<Arc<RedisNode>> {
        self.inner.node.load_full()
    }

    /// Waits until a master is known.
    pub(crate) async fn wait_for_master(&self) {
        // Cannot fail: the sender lives as long as `self`.
        let _ = self.inner.has_master.subscribe().wait_for(|is_known| *is_known).await;
    }

    /// The sentinels, and whether each has replied recently.
    #[cfg(test)]
    pub(crate) fn sentinels(&self) -> Vec<(String, bool)> {
        let (now, votes) = (Instant::now(), self.inner.votes.lock());
        let servers = self.inner.sentinels.iter().map(|sentinel| sentinel.server().to_string());
        servers.zip(votes.fresh_votes(now).map(|vote| vote.is_some())).collect()
    }

    /// The sentinels, as servers of a health report.
    pub(crate) fn discovery_servers(&self) -> &[DiscoveryServer] {
        &self.inner.sentinels
    }
}

impl Drop for SentinelMaster {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Polls one sentinel forever, and reconnects to it after failures.
async fn watch_sentinel(inner: Arc<SentinelInner>, index: usize, connector: Connector) {
    // `None` before the first attempt.
    let mut is_connected = None;
    loop {
        let found = inner.poll(index, &connector, &mut is_connected).await;
        let sentinel = &inner.sentinels[index];
        if let Some(failure) = sentinel.record_failure(&connector, found).await {
            let server = sentinel.server();
            match is_connected {
                Some(false) => warn!(sentinel = %server, "sentinel unusable: {failure}"),
                _ => warn!(sentinel = %server, "sentinel down: {failure}"),
            }
            is_connected = Some(false);
        }
        sleep(RECONNECT_DELAY).await;
    }
}

impl SentinelInner {
    /// Polls one sentinel until it fails, and returns the failure.
    async fn poll(
        &self,
        index: usize,
        connector: &Connector,
        is_connected: &mut Option<bool>,
    ) -> ServerFailure {
        let wake = Arc::new(Notify::new());
        let (on_message, on_close) = (Arc::clone(&wake), Arc::clone(&wake));
        let on_push = move |push: PushInfo| {
            if push.kind == PushKind::Message {
                on_message.notify_one();
            }
            Ok::<(), std::convert::Infallible>(())
        };
        let connected = connector
            .connect_with_pushes(self.sentinels[index].server(), on_push, move || on_close.notify_one())
            .await;
        let connection = match connected {
            Ok(connection) => connection,
            Err(failure) => return failure,
        };
        let mut handle = connection.handle();
        match timeout(REPLY_TIMEOUT, handle.subscribe("+switch-master")).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return connector.login_context().explain_connection_error(&error),
            Err(_) => return ServerFailure::timeout(REPLY_TIMEOUT),
        }
        loop {
            match self.query_master(&connection, connector.login_context()).await {
                Ok((server, epoch)) => self.apply_vote(index, server, epoch),
                Err(failure) => return failure,
            }
            self.sentinels[index].record_success();
            if *is_connected != Some(true) {
                info!(sentinel = %self.sentinels[index].server(), "connected to sentinel");
                *is_connected = Some(true);
            }
            // Poll again on a push message or at the next interval.
            let _ = timeout(POLL_INTERVAL, wake.notified()).await;
        }
    }

    /// Queries the address of the master and the epoch of its election.
    async fn query_master(
        &self,
        connection: &RedisConnection,
        login: &LoginContext,
    ) -> Result<(ServerAddress, u64), ServerFailure> {
        let commands = ["MASTER", "GET-MASTER-ADDR-BY-NAME"]
            .map(|subcommand| command(&["SENTINEL", subcommand, &self.master_name]));
        let values = connection.query(commands, login).await?;
        let unreadable = || ServerFailure::new(StoreErrorCause::Other, "unreadable reply to SENTINEL MASTER");
        match values.as_slice() {
            [Value::ServerError(error), _] => {
                let details = error.details().unwrap_or_default();
                Err(match login.explain(error) {
                    failure if failure.cause == StoreErrorCause::Unsupported => login.not_a_sentinel(),
                    _ if details.starts_with("No such master") => login.unknown_master(&self.master_name),
                    failure => failure,
                })
            }
            [master, address] => parse_master(master, address).ok_or_else(unreadable),
            _ => Err(unreadable()),
        }
    }

    fn apply_vote(&self, index: usize, server: ServerAddress, epoch: u64) {
        // Held until the node is swapped, so that two sentinels' votes are applied one after the other.
        let mut votes = self.votes.lock();
        let Some(server) = votes.record(index, server, epoch, Instant::now()) else { return };
        info!(master = %server, epoch, "store master selected");
        let node = RedisNode::start(server, self.options.clone());
        if let Some(deposed) = self.node.swap(Some(Arc::new(node))) {
            deposed.retire();
        }
        self.has_master.send_replace(true);
    }
}

/// The last vote of each sentinel, and the master currently trusted.
#[derive(Debug)]
struct SentinelVotes {
    votes: Vec<Option<(ServerAddress, u64, Instant)>>,
    current: Option<(ServerAddress, u64)>,
}

impl SentinelVotes {
    fn new(sentinels: usize) -> SentinelVotes {
        SentinelVotes { votes: vec![None; sentinels], current: None }
    }

    /// Records the vote of a sentinel. Returns the new master if the vote changes it.
    fn record(
        &mut self,
        index: usize,
        server: ServerAddress,
        epoch: u64,
        now: Instant,
    ) -> Option<ServerAddress> {
        self.votes[index] = Some((server.clone(), epoch, now));
        let is_accepted = match &self.current {
            None => true,
            Some((_, latest)) if epoch > *latest => true,
            Some((current, latest)) => {
                // Epochs may have restarted. But while a sentinel still names the master of the latest epoch, the
                // others have merely not learnt of it yet.
                let is_named =
                    self.fresh_votes(now).flatten().any(|(named, epoch)| named == current && epoch >= latest);
                *current != server && !is_named && self.has_majority(&server, now)
            }
        };
        if !is_accepted {
            return None;
        }
        let is_new = self.current.as_ref().is_none_or(|(current, _)| *current != server);
        self.current = Some((server.clone(), epoch));
        is_new.then_some(server)
    }

    fn has_majority(&self, server: &ServerAddress, now: Instant) -> bool {
        let agree = self.fresh_votes(now).flatten().filter(|(named, _)| *named == server).count();
        agree * 2 > self.votes.len()
    }

    /// The vote of each sentinel. `None` if it has none, or if it is too old.
    fn fresh_votes(&self, now: Instant) -> impl Iterator<Item = Option<(&ServerAddress, &u64)>> {
        let is_fresh = move |at: Instant| now.saturating_duration_since(at) <= MAX_VOTE_AGE;
        self.votes.iter().map(move |vote| match vote {
            Some((server, epoch, at)) if is_fresh(*at) => Some((server, epoch)),
            _ => None,
        })
    }
}

/// Parses the master's address and epoch from the replies to `SENTINEL MASTER` and `SENTINEL GET-MASTER-ADDR-BY-NAME`.
///
/// During a failover, the leading sentinel counts the new epoch as soon as the new master is promoted. But its reply
/// to `SENTINEL MASTER` names the old master until the last replica follows the new one, which may take minutes,
/// while `SENTINEL GET-MASTER-ADDR-BY-NAME` names the new master at once. So the latter decides. The epoch is queried
/// first, so it is never newer than the address.
fn parse_master(master: &Value, address: &Value) -> Option<(ServerAddress, u64)> {
    let fields: Vec<(String, String)> = match master {
        Value::Map(fields) => fields.iter().filter_map(|(name, value)| text(name).zip(text(value))).collect(),
        Value::Array(parts) => {
            parts.chunks_exact(2).filter_map(|pair| text(&pair[0]).zip(text(&pair[1]))).collect()
        }
        _ => return None,
    };
    let field = |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone());
    let (host, port) = match address {
        Value::Array(parts) => (text(parts.first()?)?, text(parts.get(1)?)?),
        // The user may have the permission for one of the commands only.
        _ => (field("ip")?, field("port")?),
    };
    Some((ServerAddress::Tcp { host, port: port.parse().ok()? }, field("config-epoch")?.parse().ok()?))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(port: u16) -> ServerAddress {
        ServerAddress::Tcp { host: "h".into(), port }
    }

    #[test]
    fn the_latest_epoch_wins_over_outdated_votes() {
        let now = Instant::now();
        let mut votes = SentinelVotes::new(3);
        assert_eq!(votes.record(0, server(1), 0, now), Some(server(1)));
        assert_eq!(votes.record(1, server(1), 0, now), None);
        assert_eq!(votes.record(1, server(2), 1, now), Some(server(2)));
        // The others have not learnt of it yet, and one of them returns with outdated state.
        assert_eq!(votes.record(0, server(1), 0, now), None);
        assert_eq!(votes.record(0, server(2), 1, now), None);
        assert_eq!(votes.record(2, server(1), 0, now), None);
        assert_eq!(votes.record(2, server(2), 1, now), None);
    }

    #[test]
    fn two_outdated_sentinels_do_not_outvote_the_one_with_the_latest_epoch() {
        let now = Instant::now();
        let mut votes = SentinelVotes::new(3);
        votes.record(1, server(1), 0, now);
        assert_eq!(votes.record(2, server(2), 1, now), Some(server(2)));
        // One sentinel was down and returns before it is updated; the other is updated late.
        assert_eq!(votes.record(0, server(1), 0, now), None);
        assert_eq!(votes.record(1, server(1), 0, now), None);
    }

    #[test]
    fn a_majority_wins_even_if_epochs_restart() {
        let now = Instant::now();
        let mut votes = SentinelVotes::new(3);
        votes.record(0, server(1), 9, now);
        assert_eq!(votes.record(0, server(2), 0, now), None);
        assert_eq!(votes.record(1, server(2), 0, now), Some(server(2)));
        // Votes that are too old don't count.
        let later = now + 2 * MAX_VOTE_AGE;
        assert_eq!(votes.record(0, server(3), 0, later), None);
        assert_eq!(votes.record(1, server(3), 0, later + 2 * MAX_VOTE_AGE), None);
    }

    #[test]
    fn a_sentinel_reply_is_parsed_in_either_protocol() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let pairs = [("name", "m"), ("ip", "10.0.0.1"), ("port", "7000"), ("config-epoch", "4")];
        let map = Value::Map(pairs.map(|(name, value)| (bulk(name), bulk(value))).into());
        let array = Value::Array(pairs.iter().flat_map(|(name, value)| [bulk(name), bulk(value)]).collect());
        let address = Value::Array(vec![bulk("10.0.0.1"), bulk("7000")]);
        let expected = Some((ServerAddress::Tcp { host: "10.0.0.1".into(), port: 7000 }, 4));
        for master in [&map, &array] {
            assert_eq!(parse_master(master, &address), expected);
            assert_eq!(parse_master(master, &Value::Nil), expected);
        }
        assert_eq!(parse_master(&Value::Nil, &address), None);
    }

    #[test]
    fn a_sentinel_in_the_middle_of_a_failover_names_the_new_master() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let pairs = [("ip", "10.0.0.1"), ("port", "7000"), ("config-epoch", "1")];
        let master = Value::Map(pairs.map(|(name, value)| (bulk(name), bulk(value))).into());
        let address = Value::Array(vec![bulk("10.0.0.2"), bulk("7001")]);
        let promoted = ServerAddress::Tcp { host: "10.0.0.2".into(), port: 7001 };
        assert_eq!(parse_master(&master, &address), Some((promoted, 1)));
    }
}
