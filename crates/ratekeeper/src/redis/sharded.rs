//! Which of several independent servers a key is on.
//!
//! Every server gives every tag a score, and the highest has the key: rendezvous hashing. A server that is added takes
//! keys only for itself, each from whoever had it; one that is taken away leaves its keys to all others alike. Scores
//! depend on the servers' names as they are written and on nothing else, so that every node of every version agrees;
//! the order in which they are written does not matter.

use super::url::ServerAddress;
use siphasher::sip::SipHasher13;

/// An odd number without a pattern, which spreads what it multiplies over all bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Which of several servers a tag belongs to.
#[derive(Debug)]
pub(super) struct ServerShards {
    /// Each server's hash, in the order of the servers.
    names: Vec<u64>,
}

impl ServerShards {
    pub(super) fn new(servers: &[ServerAddress]) -> ServerShards {
        ServerShards { names: servers.iter().map(|server| hash(server.to_string().as_bytes())).collect() }
    }

    /// The index of the server that has this tag; 0 if there are no servers.
    pub(super) fn place(&self, tag: &[u8]) -> usize {
        let tag = hash(tag);
        let scores = self.names.iter().map(|name| score(*name, tag));
        scores.enumerate().max_by_key(|(_, score)| *score).map_or(0, |(index, _)| index)
    }
}

/// The keys are nobody's secret: clients choose no server names, and a crowded shard is no worse than a hot key.
fn hash(bytes: &[u8]) -> u64 {
    SipHasher13::new_with_keys(0x746f_6c6c_6761_7465, 0x7368_6172_6473_0001).hash(bytes)
}

/// Mixes until every bit depends on every other.
fn score(name: u64, tag: u64) -> u64 {
    let mut mixed = (name ^ tag).wrapping_mul(SPREAD);
    mixed = (mixed ^ (mixed >> 32)).wrapping_add(name).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGS: usize = 100_000;

    fn servers(count: u16) -> Vec<ServerAddress> {
        (0..count).map(|index| ServerAddress::Tcp { host: format!("redis-{index}"), port: 6379 }).collect()
    }

    fn places(servers: &[ServerAddress]) -> Vec<ServerAddress> {
        let shards = ServerShards::new(servers);
        (0..TAGS).map(|tag| servers[shards.place(format!("user:{tag}").as_bytes())].clone()).collect()
    }

    fn count(places: &[ServerAddress], server: &ServerAddress) -> usize {
        places.iter().filter(|place| *place == server).count()
    }

    #[test]
    fn every_server_has_its_share() {
        for many in [2, 3, 5, 16] {
            let servers = servers(many);
            let places = places(&servers);
            let fair = TAGS / usize::from(many);
            for server in &servers {
                let share = count(&places, server);
                assert!(share.abs_diff(fair) < fair / 10, "{server} has {share} of {fair}");
            }
        }
    }

    #[test]
    fn adding_a_server_moves_only_its_share_and_only_to_it() {
        let (before, after) = (places(&servers(4)), places(&servers(5)));
        let new = &servers(5)[4];
        let moved: Vec<_> = before.iter().zip(&after).filter(|(was, is)| was != is).collect();
        assert!(moved.iter().all(|(_, is)| *is == new));
        assert_eq!(moved.len(), count(&after, new));
        assert!(moved.len().abs_diff(TAGS / 5) < TAGS / 50, "{} moved", moved.len());
    }

    #[test]
    fn the_order_of_the_servers_does_not_matter() {
        let servers = servers(7);
        let turned: Vec<ServerAddress> = servers.iter().rev().cloned().collect();
        assert_eq!(places(&servers), places(&turned));
    }

    /// Nodes of different versions share servers, so where a key is must never change.
    #[test]
    fn places_are_the_same_for_ever() {
        let shards = ServerShards::new(&servers(8));
        let places: Vec<usize> = (0..16).map(|tag| shards.place(format!("user:{tag}").as_bytes())).collect();
        assert_eq!(places, [4, 0, 5, 7, 2, 2, 6, 7, 3, 6, 1, 2, 2, 3, 6, 0]);
    }
}
