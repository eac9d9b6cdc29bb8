//! The slot map of a Cluster, and the topology replies it is built from.

use super::resolve_endpoint;
use crate::client::node::RedisNode;
use crate::client::slot::SLOTS;
use crate::client::url::ServerAddress;
use redis::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// Owner index of a slot without a node.
const UNASSIGNED: u16 = u16::MAX;

/// The slot map: which node serves which slot.
pub(crate) struct SlotMap {
    epoch: u64,
    nodes: Vec<Arc<RedisNode>>,
    /// The index into `nodes` for each slot.
    owners: Box<[u16]>,
}

impl SlotMap {
    pub(crate) fn empty() -> SlotMap {
        SlotMap { epoch: 0, nodes: Vec::new(), owners: vec![UNASSIGNED; SLOTS].into() }
    }

    /// The cluster's epoch when the map was read.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn node(&self, slot: u16) -> Option<Arc<RedisNode>> {
        let owner = *self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(owner)).cloned()
    }

    /// The nodes that serve slots.
    pub(crate) fn nodes(&self) -> &[Arc<RedisNode>] {
        &self.nodes
    }

    pub(crate) fn uncovered_slots(&self) -> usize {
        self.owners.iter().filter(|owner| **owner == UNASSIGNED).count()
    }
}

/// The cluster topology as one node reports it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TopologyReply {
    pub(crate) epoch: u64,
    /// Whether the node accepts commands. A node that is cut off from the others does not.
    accepts_commands: bool,
    /// First slot, last slot, and their master.
    ranges: Vec<(u16, u16, ServerAddress)>,
}

impl TopologyReply {
    /// Parses the replies to `CLUSTER INFO` and `CLUSTER SLOTS` of the node at `asked`.
    ///
    /// Returns `None` if the epoch or the list of slots is missing.
    pub(crate) fn parse(info: &str, slots: &Value, asked: &ServerAddress) -> Option<TopologyReply> {
        let field = |name: &str| {
            let mut fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
            fields.find(|(field, _)| *field == name).map(|(_, value)| value)
        };
        let epoch = field("cluster_current_epoch")?.parse().ok()?;
        let is_ok = field("cluster_state") == Some("ok");
        let Value::Array(entries) = slots else { return None };
        // Skip excess ranges and ranges that can't be parsed, and keep the others.
        let ranges = entries.iter().take(SLOTS).filter_map(|entry| parse_range(entry, asked)).collect();
        Some(TopologyReply { epoch, accepts_commands: is_ok, ranges })
    }

    pub(crate) fn masters(&self) -> Vec<&ServerAddress> {
        let mut masters: Vec<&ServerAddress> = self.ranges.iter().map(|(_, _, master)| master).collect();
        masters.sort();
        masters.dedup();
        masters
    }

    /// Each master with its first slot.
    pub(crate) fn first_slots(&self) -> impl Iterator<Item = (&ServerAddress, u16)> {
        let mut ranges: Vec<_> = self.ranges.iter().map(|(first, _, master)| (master, *first)).collect();
        ranges.sort();
        ranges.dedup_by_key(|(master, _)| *master);
        ranges.into_iter()
    }

    /// The slot map, with these nodes as the masters.
    pub(crate) fn slot_map(&self, nodes: &HashMap<ServerAddress, Arc<RedisNode>>) -> SlotMap {
        let mut map = SlotMap { epoch: self.epoch, ..SlotMap::empty() };
        let mut indices: HashMap<&ServerAddress, u16> = HashMap::new();
        for (first, last, server) in &self.ranges {
            let Some(node) = nodes.get(server) else { continue };
            let index = *indices.entry(server).or_insert_with(|| {
                map.nodes.push(Arc::clone(node));
                u16::try_from(map.nodes.len() - 1).unwrap_or(UNASSIGNED)
            });
            map.owners[usize::from(*first)..=usize::from(*last)].fill(index);
        }
        map
    }
}

/// Detects that the known topology is stale although its epoch is the highest.
///
/// A cluster that was set up anew restarts its epochs, and would otherwise never be accepted.
#[derive(Default)]
pub(crate) struct StaleTopology {
    /// The epoch on which all nodes agreed in the last refresh.
    agreed_epoch: Option<u64>,
}

impl StaleTopology {
    /// Accepts a reply whose epoch is at least the known one.
    pub(crate) fn accept(&mut self, reply: TopologyReply) -> Option<TopologyReply> {
        self.agreed_epoch = None;
        Some(reply)
    }

    /// Considers replies whose epochs are all lower than the known one.
    ///
    /// Nodes that accept commands are trusted if all of them report the same epoch in two refreshes in a row. A node
    /// that missed an election either learns of it from the others before that, or does not accept commands.
    pub(crate) fn consider(&mut self, replies: Vec<TopologyReply>) -> Option<TopologyReply> {
        let before = self.agreed_epoch.take();
        let mut usable = replies.into_iter().filter(|reply| reply.accepts_commands);
        let reply = usable.next()?;
        if usable.any(|other| other.epoch != reply.epoch) {
            return None;
        }
        self.agreed_epoch = Some(reply.epoch);
        (before == self.agreed_epoch).then_some(reply)
    }
}

/// Parses a range: first slot, last slot, its master, its replicas.
fn parse_range(entry: &Value, asked: &ServerAddress) -> Option<(u16, u16, ServerAddress)> {
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
    let server = resolve_endpoint(host, u16::try_from(*port).ok()?, asked)?;
    (first <= last).then_some((first, last, server))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::topology::cluster::parse_endpoint;

    fn tcp(host: &str, port: u16) -> ServerAddress {
        ServerAddress::Tcp { host: host.into(), port }
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        Value::Array(vec![Value::Int(first), Value::Int(last), Value::Array(vec![host, Value::Int(port)])])
    }

    fn read(ranges: Vec<Value>) -> TopologyReply {
        let info = "cluster_state:ok\r\ncluster_current_epoch:7\r\n";
        TopologyReply::parse(info, &Value::Array(ranges), &tcp("asked", 1)).expect("the reply has an epoch")
    }

    #[test]
    fn a_node_without_a_name_is_on_the_queried_host() {
        let reply = read(vec![
            range(0, 99, Value::BulkString(b"10.0.0.1".into()), 7000),
            range(100, 199, Value::BulkString(Vec::new()), 7001),
            range(200, 299, Value::Nil, 7002),
        ]);
        assert_eq!(reply.epoch, 7);
        assert_eq!(reply.masters(), [&tcp("10.0.0.1", 7000), &tcp("asked", 7001), &tcp("asked", 7002)]);
    }

    fn reply(epoch: u64, is_ok: bool) -> TopologyReply {
        TopologyReply { epoch, accepts_commands: is_ok, ranges: Vec::new() }
    }

    #[test]
    fn a_lower_epoch_is_accepted_only_if_all_nodes_report_it_twice() {
        let mut stale = StaleTopology::default();
        let mut consider = |replies: &[(u64, bool)]| {
            let replies = replies.iter().map(|(epoch, is_ok)| reply(*epoch, *is_ok)).collect();
            stale.consider(replies).map(|reply| reply.epoch)
        };
        assert_eq!(consider(&[]), None);
        // A cluster that was set up anew: all nodes agree, and keep agreeing, except for a leftover one that is down.
        let anew = [(3, true), (0, false), (3, true)];
        assert_eq!((consider(&anew), consider(&anew)), (None, Some(3)));
        // Each of these replies breaks the agreement and discards the previous one.
        for other in [&[(3, true), (2, true)][..], &[(3, false)], &[(4, true)], &[]] {
            consider(&[(9, true)]);
            assert_eq!(consider(&[(3, true)]), None);
            assert_eq!(consider(other), None, "{other:?}");
            assert_eq!(consider(&[(3, true)]), None, "{other:?}");
        }
        // A dead master that returns and is cut off from the others.
        for _ in 0..5 {
            assert_eq!(consider(&[(3, false)]), None);
        }
        stale.consider(vec![reply(3, true)]);
        assert_eq!(stale.accept(reply(7, true)).map(|reply| reply.epoch), Some(7));
        assert_eq!(stale.consider(vec![reply(3, true)]), None);
    }

    #[test]
    fn invalid_ranges_are_skipped() {
        let name = || Value::BulkString(b"h".into());
        let reply = read(vec![
            range(5, 4, name(), 1),
            range(-1, 4, name(), 1),
            range(0, 16_384, name(), 1),
            range(0, 1, name(), 70_000),
            range(0, 1, Value::Int(3), 1),
            Value::Nil,
        ]);
        assert!(reply.masters().is_empty());
        assert_eq!(TopologyReply::parse("", &Value::Array(Vec::new()), &tcp("h", 1)), None);
        assert_eq!(TopologyReply::parse("cluster_current_epoch:1", &Value::Nil, &tcp("h", 1)), None);
    }

    #[test]
    fn redirect_targets_are_parsed_as_servers_write_them() {
        let asked = tcp("asked", 1);
        assert_eq!(parse_endpoint("10.0.0.1:7000", &asked), Some(tcp("10.0.0.1", 7000)));
        assert_eq!(parse_endpoint("fe80::1:7000", &asked), Some(tcp("fe80::1", 7000)));
        assert_eq!(parse_endpoint(":7000", &asked), Some(tcp("asked", 7000)));
        assert_eq!(parse_endpoint("?:7000", &asked), Some(tcp("asked", 7000)));
        assert_eq!(parse_endpoint("nonsense", &asked), None);
    }
}
