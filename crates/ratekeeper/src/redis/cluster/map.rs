//! Which node has which slot.

use super::endpoint;
use super::slot::SLOTS;
use crate::redis::node::RedisNode;
use crate::redis::url::ServerAddress;
use ::redis::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// Stands for nobody.
const NOBODY: u16 = u16::MAX;

/// Which node has which slot.
pub(super) struct SlotMap {
    epoch: u64,
    nodes: Vec<Arc<RedisNode>>,
    /// For each slot the index of its node.
    owners: Box<[u16]>,
}

impl SlotMap {
    pub(super) fn empty() -> SlotMap {
        SlotMap { epoch: 0, nodes: Vec::new(), owners: vec![NOBODY; SLOTS].into() }
    }

    /// The election after which it was so.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn node(&self, slot: u16) -> Option<Arc<RedisNode>> {
        let owner = *self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(owner)).cloned()
    }

    /// The nodes that have slots.
    pub(super) fn nodes(&self) -> &[Arc<RedisNode>] {
        &self.nodes
    }

    pub(super) fn uncovered(&self) -> usize {
        self.owners.iter().filter(|owner| **owner == NOBODY).count()
    }
}

/// What a node said of the cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TopologyReply {
    pub(super) epoch: u64,
    /// Whether it takes commands: one that is cut off from the others does not.
    is_ok: bool,
    /// First slot, last slot, and who has them.
    ranges: Vec<(u16, u16, ServerAddress)>,
}

impl TopologyReply {
    /// Reads the answers to `CLUSTER INFO` and `CLUSTER SLOTS` of the node at `asked`.
    pub(super) fn read(info: &str, slots: &Value, asked: &ServerAddress) -> Option<TopologyReply> {
        let field = |name: &str| {
            let mut fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
            fields.find(|(field, _)| *field == name).map(|(_, value)| value)
        };
        let epoch = field("cluster_current_epoch")?.parse().ok()?;
        let is_ok = field("cluster_state") == Some("ok");
        let Value::Array(entries) = slots else { return None };
        // More ranges than slots is nonsense, and so is a range that can't be read: the rest still holds.
        let ranges = entries.iter().take(SLOTS).filter_map(|entry| read_range(entry, asked)).collect();
        Some(TopologyReply { epoch, is_ok, ranges })
    }

    pub(super) fn masters(&self) -> Vec<&ServerAddress> {
        let mut masters: Vec<&ServerAddress> = self.ranges.iter().map(|(_, _, master)| master).collect();
        masters.sort();
        masters.dedup();
        masters
    }

    /// Each master, with one of its slots.
    pub(super) fn first_slots(&self) -> impl Iterator<Item = (&ServerAddress, u16)> {
        let mut ranges: Vec<_> = self.ranges.iter().map(|(first, _, master)| (master, *first)).collect();
        ranges.sort();
        ranges.dedup_by_key(|(master, _)| *master);
        ranges.into_iter()
    }

    /// The map, with these nodes for servers.
    pub(super) fn map(&self, nodes: &HashMap<ServerAddress, Arc<RedisNode>>) -> SlotMap {
        let mut map = SlotMap { epoch: self.epoch, ..SlotMap::empty() };
        let mut indices: HashMap<&ServerAddress, u16> = HashMap::new();
        for (first, last, server) in &self.ranges {
            let Some(node) = nodes.get(server) else { continue };
            let index = *indices.entry(server).or_insert_with(|| {
                map.nodes.push(Arc::clone(node));
                u16::try_from(map.nodes.len() - 1).unwrap_or(NOBODY)
            });
            map.owners[usize::from(*first)..=usize::from(*last)].fill(index);
        }
        map
    }
}

/// Whether what is known is out of date though it is from the latest election anybody knew of: a cluster that was set up
/// anew begins to count elections anew, and so would be believed by nobody.
#[derive(Default)]
pub(super) struct StaleTopology {
    /// The election that all named when last asked.
    named: Option<u64>,
}

impl StaleTopology {
    /// Takes the word of a node that knows what is known, or more.
    pub(super) fn dispel(&mut self, word: TopologyReply) -> Option<TopologyReply> {
        self.named = None;
        Some(word)
    }

    /// Hears nodes that all know less than is known. Those that take commands are believed if they name the same election,
    /// twice in a row: one that missed an election hears of it from the others before that, or takes no commands.
    pub(super) fn weigh(&mut self, words: Vec<TopologyReply>) -> Option<TopologyReply> {
        let before = self.named.take();
        let mut well = words.into_iter().filter(|word| word.is_ok);
        let word = well.next()?;
        if well.any(|other| other.epoch != word.epoch) {
            return None;
        }
        self.named = Some(word.epoch);
        (before == self.named).then_some(word)
    }
}

/// Reads a range: first slot, last slot, its master, its replicas.
fn read_range(entry: &Value, asked: &ServerAddress) -> Option<(u16, u16, ServerAddress)> {
    let Value::Array(parts) = entry else { return None };
    let slot = |part: &Value| match part {
        Value::Int(slot) => u16::try_from(*slot).ok().filter(|slot| usize::from(*slot) < SLOTS),
        _ => None,
    };
    let (first, last) = (slot(parts.first()?)?, slot(parts.get(1)?)?);
    let Value::Array(master) = parts.get(2)? else { return None };
    let host = match master.first()? {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::Nil => "",
        _ => return None,
    };
    let Value::Int(port) = master.get(1)? else { return None };
    let server = endpoint(host, u16::try_from(*port).ok()?, asked)?;
    (first <= last).then_some((first, last, server))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::cluster::read_endpoint;

    fn tcp(host: &str, port: u16) -> ServerAddress {
        ServerAddress::Tcp { host: host.into(), port }
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        Value::Array(vec![Value::Int(first), Value::Int(last), Value::Array(vec![host, Value::Int(port)])])
    }

    fn read(ranges: Vec<Value>) -> TopologyReply {
        let info = "cluster_state:ok\r\ncluster_current_epoch:7\r\n";
        TopologyReply::read(info, &Value::Array(ranges), &tcp("asked", 1)).expect("it has an epoch")
    }

    #[test]
    fn a_node_without_a_name_is_on_the_host_that_was_asked() {
        let word = read(vec![
            range(0, 99, Value::BulkString(b"10.0.0.1".into()), 7000),
            range(100, 199, Value::BulkString(Vec::new()), 7001),
            range(200, 299, Value::Nil, 7002),
        ]);
        assert_eq!(word.epoch, 7);
        assert_eq!(word.masters(), [&tcp("10.0.0.1", 7000), &tcp("asked", 7001), &tcp("asked", 7002)]);
    }

    fn word(epoch: u64, is_ok: bool) -> TopologyReply {
        TopologyReply { epoch, is_ok, ranges: Vec::new() }
    }

    #[test]
    fn who_has_missed_an_election_is_not_believed_unless_all_have_again_and_again() {
        let mut doubt = StaleTopology::default();
        let mut weigh = |words: &[(u64, bool)]| {
            let words = words.iter().map(|(epoch, is_ok)| word(*epoch, *is_ok)).collect();
            doubt.weigh(words).map(|word| word.epoch)
        };
        assert_eq!(weigh(&[]), None);
        // Set up anew: all agree, and go on doing so, but for one that is left over.
        let anew = [(3, true), (0, false), (3, true)];
        assert_eq!((weigh(&anew), weigh(&anew)), (None, Some(3)));
        // Each of these stands in the way, and what was heard before counts no more.
        for other in [&[(3, true), (2, true)][..], &[(3, false)], &[(4, true)], &[]] {
            weigh(&[(9, true)]);
            assert_eq!(weigh(&[(3, true)]), None);
            assert_eq!(weigh(other), None, "{other:?}");
            assert_eq!(weigh(&[(3, true)]), None, "{other:?}");
        }
        // One that comes back from the dead and is cut off.
        for _ in 0..5 {
            assert_eq!(weigh(&[(3, false)]), None);
        }
        doubt.weigh(vec![word(3, true)]);
        assert_eq!(doubt.dispel(word(7, true)).map(|word| word.epoch), Some(7));
        assert_eq!(doubt.weigh(vec![word(3, true)]), None);
    }

    #[test]
    fn nonsense_is_left_out() {
        let name = || Value::BulkString(b"h".into());
        let word = read(vec![
            range(5, 4, name(), 1),
            range(-1, 4, name(), 1),
            range(0, 16_384, name(), 1),
            range(0, 1, name(), 70_000),
            range(0, 1, Value::Int(3), 1),
            Value::Nil,
        ]);
        assert!(word.masters().is_empty());
        assert_eq!(TopologyReply::read("", &Value::Array(Vec::new()), &tcp("h", 1)), None);
        assert_eq!(TopologyReply::read("cluster_current_epoch:1", &Value::Nil, &tcp("h", 1)), None);
    }

    #[test]
    fn redirections_are_read_as_servers_write_them() {
        let asked = tcp("asked", 1);
        assert_eq!(read_endpoint("10.0.0.1:7000", &asked), Some(tcp("10.0.0.1", 7000)));
        assert_eq!(read_endpoint("fe80::1:7000", &asked), Some(tcp("fe80::1", 7000)));
        assert_eq!(read_endpoint(":7000", &asked), Some(tcp("asked", 7000)));
        assert_eq!(read_endpoint("?:7000", &asked), Some(tcp("asked", 7000)));
        assert_eq!(read_endpoint("nonsense", &asked), None);
    }
}
