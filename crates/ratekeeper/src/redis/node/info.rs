//! What a server says of itself.

use ::redis::Value;

/// What a server says of itself in `INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// `redis` or `valkey`.
    pub kind: String,
    /// Its version.
    pub version: String,
    /// `standalone`, `cluster` or `sentinel`, in its own words.
    pub mode: String,
    /// `master` or `slave`, in its own words.
    pub role: String,
    /// How many replicas follow it.
    pub replicas: u32,
    /// How many bytes it may use; 0 is no bound.
    pub max_memory: u64,
    /// What it drops when that is used up, in its own words.
    pub eviction: String,
}

impl ServerInfo {
    /// Reads the answers to `INFO` of several sections.
    pub(super) fn read(answers: &[Value]) -> Option<ServerInfo> {
        let text: String = answers.iter().filter_map(text).collect::<Vec<_>>().join("\n");
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
            eviction: field("maxmemory_policy").unwrap_or_default(),
        })
    }

    /// Whether it may drop limits to make room: then a client that was denied starts anew.
    pub fn can_drop_limits(&self) -> bool {
        self.max_memory > 0 && !self.eviction.is_empty() && self.eviction != "noeviction"
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
        ServerInfo::read(&[Value::BulkString(text.into())]).expect("it has a version")
    }

    #[test]
    fn a_server_is_known_by_what_it_calls_itself() {
        let redis = read("# Server\r\nredis_version:7.0.15\r\nrole:master\r\nconnected_slaves:2\r\n");
        assert_eq!((redis.kind.as_str(), redis.version.as_str(), redis.replicas), ("redis", "7.0.15", 2));
        let valkey = read("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.0.1\r\n");
        assert_eq!((valkey.kind.as_str(), valkey.version.as_str()), ("valkey", "9.0.1"));
        assert_eq!(ServerInfo::read(&[Value::Nil]), None);
    }

    #[test]
    fn limits_can_be_dropped_only_where_memory_is_bounded_and_something_may_go() {
        for (max_memory, policy, can) in [
            (0, "allkeys-lru", false),
            (1, "noeviction", false),
            (1, "volatile-ttl", true),
            (1, "allkeys-lfu", true),
        ] {
            let facts =
                read(&format!("redis_version:7\nmaxmemory:{max_memory}\nmaxmemory_policy:{policy}\n"));
            assert_eq!(facts.can_drop_limits(), can, "{max_memory} {policy}");
        }
    }
}
