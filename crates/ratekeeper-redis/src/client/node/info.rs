//! A server's `INFO`: software, role, replicas and eviction policy.

use redis::Value;

/// The fields of a server's `INFO` that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    /// `redis` or `valkey`.
    pub(crate) kind: String,
    /// Version of the software.
    pub(crate) version: String,
    /// `standalone`, `cluster` or `sentinel`, as the server reports it.
    pub(crate) mode: String,
    /// `master` or `slave`, as the server reports it.
    pub(crate) role: String,
    /// Number of connected replicas.
    pub(crate) replicas: u32,
    /// `maxmemory` in bytes; 0 means unlimited.
    pub(crate) max_memory: u64,
    /// `maxmemory-policy`, as the server reports it.
    pub(crate) eviction_policy: String,
}

impl ServerInfo {
    /// Parses the replies to `INFO` of several sections. Returns `None` if there is no version.
    pub(crate) fn parse(replies: &[Value]) -> Option<ServerInfo> {
        let text: String = replies.iter().filter_map(text).collect::<Vec<_>>().join("\n");
        let field = |name: &str| {
            let mut fields = text.lines().filter_map(|line| line.trim_end().split_once(':'));
            fields.find(|(field, _)| *field == name).map(|(_, value)| value.to_owned())
        };
        let number = |name| field(name).and_then(|value| value.parse().ok());
        let (kind, version) = match field("valkey_version") {
            Some(version) => ("valkey", version),
            None => ("redis", field("redis_version")?),
        };
        Some(ServerInfo {
            kind: kind.to_owned(),
            version,
            mode: field("redis_mode").or_else(|| field("server_mode")).unwrap_or_default(),
            role: field("role").unwrap_or_default(),
            replicas: number("connected_slaves").and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
            max_memory: number("maxmemory").unwrap_or(0),
            eviction_policy: field("maxmemory_policy").unwrap_or_default(),
        })
    }

    /// Whether the server may evict limit state when its memory is full, which resets clients that were denied.
    pub(crate) fn may_evict(&self) -> bool {
        self.max_memory > 0 && !self.eviction_policy.is_empty() && self.eviction_policy != "noeviction"
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ServerInfo {
        ServerInfo::parse(&[Value::BulkString(text.into())]).expect("the reply has a version")
    }

    #[test]
    fn redis_and_valkey_are_told_apart() {
        let redis = read("# Server\r\nredis_version:7.0.15\r\nrole:master\r\nconnected_slaves:2\r\n");
        assert_eq!((redis.kind.as_str(), redis.version.as_str(), redis.replicas), ("redis", "7.0.15", 2));
        let valkey = read("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.0.1\r\n");
        assert_eq!((valkey.kind.as_str(), valkey.version.as_str()), ("valkey", "9.0.1"));
        assert_eq!(ServerInfo::parse(&[Value::Nil]), None);
    }

    #[test]
    fn state_may_be_evicted_only_with_bounded_memory_and_an_evicting_policy() {
        for (max_memory, policy, may_evict) in [
            (0, "allkeys-lru", false),
            (1, "noeviction", false),
            (1, "volatile-ttl", true),
            (1, "allkeys-lfu", true),
        ] {
            let info = read(&format!("redis_version:7\nmaxmemory:{max_memory}\nmaxmemory_policy:{policy}\n"));
            assert_eq!(info.may_evict(), may_evict, "{max_memory} {policy}");
        }
    }
}
