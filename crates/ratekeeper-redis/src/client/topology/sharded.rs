//! Distributes keys over independent servers by rendezvous hashing.
//!
//! Each pair of server and hash tag has a score, and the server with the highest score holds the key. Adding a server
//! moves only the keys that it takes over; removing one spreads its keys evenly over the others. Scores depend only
//! on the servers' names as written in the URL, so nodes of every version agree. The order of the servers does not
//! matter.

use crate::client::url::ServerAddress;
use siphasher::sip::SipHasher13;

/// An odd constant without a pattern (2^64 divided by the golden ratio) that mixes bits by multiplication.
const MIX_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Maps hash tags to independent servers.
#[derive(Debug)]
pub(crate) struct ServerShards {
    /// The hash of each server's name, in the order of the servers.
    server_hashes: Vec<u64>,
}

impl ServerShards {
    pub(crate) fn new(servers: &[ServerAddress]) -> ServerShards {
        ServerShards {
            server_hashes: servers.iter().map(|server| hash(server.to_string().as_bytes())).collect(),
        }
    }

    /// The index of the server that holds this hash tag; 0 if there are no servers.
    pub(crate) fn index_of(&self, tag: &[u8]) -> usize {
        if self.server_hashes.len() == 1 {
            return 0;
        }
        let tag = hash(tag);
        let scores = self.server_hashes.iter().map(|name| score(*name, tag));
        scores.enumerate().max_by_key(|(_, score)| *score).map_or(0, |(index, _)| index)
    }
}

/// Hashes with fixed, public keys: clients do not choose server names, and an overloaded shard is no worse than a hot
/// key.
fn hash(bytes: &[u8]) -> u64 {
    SipHasher13::new_with_keys(0x746f_6c6c_6761_7465, 0x7368_6172_6473_0001).hash(bytes)
}

/// Mixes both hashes until every bit depends on all others.
fn score(name: u64, tag: u64) -> u64 {
    let mut mixed = (name ^ tag).wrapping_mul(MIX_MULTIPLIER);
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
        (0..TAGS).map(|tag| servers[shards.index_of(format!("user:{tag}").as_bytes())].clone()).collect()
    }

    fn count(places: &[ServerAddress], server: &ServerAddress) -> usize {
        places.iter().filter(|place| *place == server).count()
    }

    #[test]
    fn keys_are_distributed_evenly() {
        for server_count in [2, 3, 5, 16] {
            let servers = servers(server_count);
            let places = places(&servers);
            let fair = TAGS / usize::from(server_count);
            for server in &servers {
                let share = count(&places, server);
                assert!(share.abs_diff(fair) < fair / 10, "{server} has {share} keys, expected about {fair}");
            }
        }
    }

    #[test]
    fn adding_a_server_moves_only_the_keys_that_it_takes_over() {
        let (before, after) = (places(&servers(4)), places(&servers(5)));
        let new = &servers(5)[4];
        let moved: Vec<_> = before.iter().zip(&after).filter(|(was, is)| was != is).collect();
        assert!(moved.iter().all(|(_, is)| *is == new));
        assert_eq!(moved.len(), count(&after, new));
        assert!(moved.len().abs_diff(TAGS / 5) < TAGS / 50, "{} keys moved", moved.len());
    }

    #[test]
    fn the_order_of_servers_does_not_matter() {
        let servers = servers(7);
        let reversed: Vec<ServerAddress> = servers.iter().rev().cloned().collect();
        assert_eq!(places(&servers), places(&reversed));
    }

    /// Nodes of different versions share servers, so the placement of a key must never change.
    #[test]
    fn placement_never_changes() {
        let shards = ServerShards::new(&servers(8));
        let places: Vec<usize> =
            (0..16).map(|tag| shards.index_of(format!("user:{tag}").as_bytes())).collect();
        assert_eq!(places, [4, 0, 5, 7, 2, 2, 6, 7, 3, 6, 1, 2, 2, 3, 6, 0]);
    }
}
