//! Sentinel: who the master is now.
//!
//! Every sentinel is asked once a second and tells by itself when a master is replaced. The word of the latest election
//! counts; an older one counts only if more than half of the sentinels give it, so that one of them coming back with an
//! old memory can't lead calls to a master that was deposed. The node of a deposed master is retired at once: calls
//! that are still meant for it fail. Every connection to a master begins with the question whether it is one, and goes
//! on asking.

use super::discovery::DiscoveryServer;
use super::node::{
    CommandBatch, Connector, LoginContext, RedisConnection, RedisNode, ServerFailure, ServerOptions,
};
use super::url::ServerAddress;
use crate::health::StoreErrorCause;
use ::redis::{PushInfo, PushKind, Value, cmd};
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

/// How often each sentinel is asked.
const POLL: Duration = Duration::from_secs(1);
/// How long a sentinel may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long after a failure a sentinel is spoken to again.
const PAUSE: Duration = Duration::from_millis(500);
/// How old a sentinel's word may be to count in a majority.
const FRESH: Duration = Duration::from_secs(3);

/// A master that sentinels watch.
pub(super) struct SentinelMaster {
    shared: Arc<SentinelInner>,
    tasks: Vec<AbortHandle>,
}

struct SentinelInner {
    terms: ServerOptions,
    /// What the sentinels call the master.
    name: String,
    sentinels: Vec<DiscoveryServer>,
    node: ArcSwapOption<RedisNode>,
    words: Mutex<SentinelVotes>,
    is_known: watch::Sender<bool>,
}

impl SentinelMaster {
    pub(super) fn start(
        sentinels: Vec<ServerAddress>,
        name: String,
        dialer: &Connector,
        terms: ServerOptions,
    ) -> SentinelMaster {
        let shared = Arc::new(SentinelInner {
            terms,
            name,
            words: Mutex::new(SentinelVotes::new(sentinels.len())),
            sentinels: sentinels.into_iter().map(DiscoveryServer::new).collect(),
            node: ArcSwapOption::empty(),
            is_known: watch::Sender::new(false),
        });
        let follow = |index| tokio::spawn(follow(Arc::clone(&shared), index, dialer.clone())).abort_handle();
        let tasks = (0..shared.sentinels.len()).map(follow).collect();
        SentinelMaster { shared, tasks }
    }

    /// The master, as far as is known.
    pub(super) fn node(&self) -> Option<Arc<RedisNode>> {
        self.shared.node.load_full()
    }

    /// Waits until a master is known.
    pub(super) async fn wait_until_known(&self) {
        // It can't end otherwise: the sender lives as long as this.
        let _ = self.shared.is_known.subscribe().wait_for(|is_known| *is_known).await;
    }

    /// The sentinels, and whether each has answered of late.
    pub(super) fn sentinels(&self) -> Vec<(ServerAddress, bool)> {
        let (now, words) = (Instant::now(), self.shared.words.lock());
        let servers = self.shared.sentinels.iter().map(|sentinel| sentinel.server().clone());
        servers.zip(words.fresh(now).map(|word| word.is_some())).collect()
    }

    /// The sentinels.
    pub(super) fn contacts(&self) -> &[DiscoveryServer] {
        &self.shared.sentinels
    }
}

impl Drop for SentinelMaster {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Follows what one sentinel says for ever.
async fn follow(shared: Arc<SentinelInner>, index: usize, dialer: Connector) {
    let mut is_there = None;
    loop {
        let found = shared.listen(index, &dialer, &mut is_there).await;
        let sentinel = &shared.sentinels[index];
        if let Some(trouble) = sentinel.note_failure(&dialer, found).await {
            let server = sentinel.server();
            match is_there {
                Some(false) => warn!(sentinel = %server, "sentinel can't be used: {trouble}"),
                _ => warn!(sentinel = %server, "sentinel is away: {trouble}"),
            }
            is_there = Some(false);
        }
        sleep(PAUSE).await;
    }
}

impl SentinelInner {
    /// Listens to one sentinel as long as it can be heard, and says why that ended.
    async fn listen(&self, index: usize, dialer: &Connector, is_there: &mut Option<bool>) -> ServerFailure {
        let news = Arc::new(Notify::new());
        let (on_news, on_close) = (Arc::clone(&news), Arc::clone(&news));
        let on_push = move |push: PushInfo| {
            if push.kind == PushKind::Message {
                on_news.notify_one();
            }
            Ok::<(), std::convert::Infallible>(())
        };
        let dialed = dialer
            .dial_for_news(self.sentinels[index].server(), on_push, move || on_close.notify_one())
            .await;
        let link = match dialed {
            Ok(link) => link,
            Err(trouble) => return trouble,
        };
        let mut connection = link.connection();
        match timeout(PATIENCE, connection.subscribe("+switch-master")).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return dialer.asker().explain_connect(&error),
            Err(_) => return ServerFailure::too_slow(PATIENCE),
        }
        loop {
            match self.ask(&link, dialer.asker()).await {
                Ok((server, epoch)) => self.hear(index, server, epoch),
                Err(trouble) => return trouble,
            }
            self.sentinels[index].note_answer();
            if *is_there != Some(true) {
                info!(sentinel = %self.sentinels[index].server(), "sentinel is there");
                *is_there = Some(true);
            }
            // Whether there is news or time passed, it is asked again.
            let _ = timeout(POLL, news.notified()).await;
        }
    }

    /// Asks who the master is, and since which election.
    async fn ask(
        &self,
        link: &RedisConnection,
        asker: &LoginContext,
    ) -> Result<(ServerAddress, u64), ServerFailure> {
        let questions = ["MASTER", "GET-MASTER-ADDR-BY-NAME"].map(|question| {
            let mut command = cmd("SENTINEL");
            command.arg(question).arg(&self.name);
            command
        });
        let answer = timeout(PATIENCE, link.send(&CommandBatch::new(questions))).await;
        let answer = answer.map_err(|_| ServerFailure::too_slow(PATIENCE))?;
        let values = answer.map_err(|error| asker.explain_connect(&error))?;
        let unreadable =
            || ServerFailure::new(StoreErrorCause::Other, "what it says of the master can't be read");
        match values.as_slice() {
            [Value::ServerError(error), _] => {
                let details = error.details().unwrap_or_default();
                Err(match asker.explain(error) {
                    trouble if trouble.cause == StoreErrorCause::Unsupported => asker.not_a_sentinel(),
                    _ if details.starts_with("No such master") => asker.no_such_master(&self.name),
                    trouble => trouble,
                })
            }
            [master, address] => read_master(master, address).ok_or_else(unreadable),
            _ => Err(unreadable()),
        }
    }

    fn hear(&self, index: usize, server: ServerAddress, epoch: u64) {
        // Held until the node is there, so that two sentinels' words are acted upon one after the other.
        let mut words = self.words.lock();
        let Some(server) = words.hear(index, server, epoch, Instant::now()) else { return };
        info!(master = %server, epoch, "store's master is known");
        let node = RedisNode::start(server, self.terms.clone());
        if let Some(deposed) = self.node.swap(Some(Arc::new(node))) {
            deposed.retire();
        }
        self.is_known.send_replace(true);
    }
}

/// What each sentinel said last, and what is believed.
#[derive(Debug)]
struct SentinelVotes {
    said: Vec<Option<(ServerAddress, u64, Instant)>>,
    believed: Option<(ServerAddress, u64)>,
}

impl SentinelVotes {
    fn new(sentinels: usize) -> SentinelVotes {
        SentinelVotes { said: vec![None; sentinels], believed: None }
    }

    /// Hears what one sentinel says, and gives the new master if there is one.
    fn hear(
        &mut self,
        index: usize,
        server: ServerAddress,
        epoch: u64,
        now: Instant,
    ) -> Option<ServerAddress> {
        self.said[index] = Some((server.clone(), epoch, now));
        let is_believed = match &self.believed {
            None => true,
            Some((_, latest)) if epoch > *latest => true,
            Some((believed, latest)) => {
                // Elections may have begun anew; but as long as somebody still names the one of the latest, it is the
                // others who have not heard of it.
                let is_named =
                    self.fresh(now).flatten().any(|(named, epoch)| named == believed && epoch >= latest);
                *believed != server && !is_named && self.has_majority(&server, now)
            }
        };
        if !is_believed {
            return None;
        }
        let is_news = self.believed.as_ref().is_none_or(|(believed, _)| *believed != server);
        self.believed = Some((server.clone(), epoch));
        is_news.then_some(server)
    }

    fn has_majority(&self, server: &ServerAddress, now: Instant) -> bool {
        let agree = self.fresh(now).flatten().filter(|(said, _)| *said == server).count();
        agree * 2 > self.said.len()
    }

    /// What each sentinel has said of late.
    fn fresh(&self, now: Instant) -> impl Iterator<Item = Option<(&ServerAddress, &u64)>> {
        let is_fresh = move |at: Instant| now.saturating_duration_since(at) <= FRESH;
        self.said.iter().map(move |said| match said {
            Some((server, epoch, at)) if is_fresh(*at) => Some((server, epoch)),
            _ => None,
        })
    }
}

/// Reads where the master is, and since which election: from names and values, and from the address alone.
///
/// A sentinel that leads a failover counts the new election as soon as the new master is one, but gives the old one among
/// names and values until the last replica follows the new one, which may take minutes. What it gives clients who ask for
/// the address alone is the new one at once. So that is what counts; the election comes first, and so is never newer.
fn read_master(master: &Value, address: &Value) -> Option<(ServerAddress, u64)> {
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
        // Somebody may have allowed the one question and not the other.
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
    fn the_latest_election_counts_and_an_old_memory_does_not() {
        let now = Instant::now();
        let mut words = SentinelVotes::new(3);
        assert_eq!(words.hear(0, server(1), 0, now), Some(server(1)));
        assert_eq!(words.hear(1, server(1), 0, now), None);
        assert_eq!(words.hear(1, server(2), 1, now), Some(server(2)));
        // The others have not heard yet, and one of them comes back with what it knew.
        assert_eq!(words.hear(0, server(1), 0, now), None);
        assert_eq!(words.hear(0, server(2), 1, now), None);
        assert_eq!(words.hear(2, server(1), 0, now), None);
        assert_eq!(words.hear(2, server(2), 1, now), None);
    }

    #[test]
    fn two_who_have_not_heard_of_the_latest_election_do_not_outvote_the_one_who_has() {
        let now = Instant::now();
        let mut words = SentinelVotes::new(3);
        words.hear(1, server(1), 0, now);
        assert_eq!(words.hear(2, server(2), 1, now), Some(server(2)));
        // It was away and comes back before anybody has told it; the other hears of everything late.
        assert_eq!(words.hear(0, server(1), 0, now), None);
        assert_eq!(words.hear(1, server(1), 0, now), None);
    }

    #[test]
    fn a_majority_is_believed_even_if_elections_begin_anew() {
        let now = Instant::now();
        let mut words = SentinelVotes::new(3);
        words.hear(0, server(1), 9, now);
        assert_eq!(words.hear(0, server(2), 0, now), None);
        assert_eq!(words.hear(1, server(2), 0, now), Some(server(2)));
        // Words that are too old are no part of one.
        let later = now + 2 * FRESH;
        assert_eq!(words.hear(0, server(3), 0, later), None);
        assert_eq!(words.hear(1, server(3), 0, later + 2 * FRESH), None);
    }

    #[test]
    fn the_answer_of_a_sentinel_is_read_in_either_protocol() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let pairs = [("name", "m"), ("ip", "10.0.0.1"), ("port", "7000"), ("config-epoch", "4")];
        let map = Value::Map(pairs.map(|(name, value)| (bulk(name), bulk(value))).into());
        let array = Value::Array(pairs.iter().flat_map(|(name, value)| [bulk(name), bulk(value)]).collect());
        let address = Value::Array(vec![bulk("10.0.0.1"), bulk("7000")]);
        let expected = Some((ServerAddress::Tcp { host: "10.0.0.1".into(), port: 7000 }, 4));
        for master in [&map, &array] {
            assert_eq!(read_master(master, &address), expected);
            assert_eq!(read_master(master, &Value::Nil), expected);
        }
        assert_eq!(read_master(&Value::Nil, &address), None);
    }

    #[test]
    fn a_sentinel_that_still_has_replicas_to_turn_tells_of_the_new_master() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let pairs = [("ip", "10.0.0.1"), ("port", "7000"), ("config-epoch", "1")];
        let master = Value::Map(pairs.map(|(name, value)| (bulk(name), bulk(value))).into());
        let address = Value::Array(vec![bulk("10.0.0.2"), bulk("7001")]);
        let promoted = ServerAddress::Tcp { host: "10.0.0.2".into(), port: 7001 };
        assert_eq!(read_master(&master, &address), Some((promoted, 1)));
    }
}
