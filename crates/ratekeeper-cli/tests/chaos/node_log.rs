//! The store-related lines of a node's log.

use ratekeeper_testkit::servers::ServerNode;
use std::collections::BTreeMap;

/// The lines a node has logged since a given line.
#[derive(Debug)]
pub(crate) struct NodeLog {
    lines: Vec<String>,
}

/// A store server's state change, as logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerEvent {
    Down,
    Connected,
}

impl NodeLog {
    /// The number of lines logged so far.
    pub(crate) fn line_count(node: &ServerNode) -> usize {
        node.log().lines().count()
    }

    /// The lines after the first `length`.
    pub(crate) fn since(node: &ServerNode, length: usize) -> NodeLog {
        NodeLog { lines: node.log().lines().skip(length).map(str::to_owned).collect() }
    }

    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The state changes of each server, in order.
    pub(crate) fn server_events(&self) -> BTreeMap<String, Vec<ServerEvent>> {
        let mut events: BTreeMap<String, Vec<ServerEvent>> = BTreeMap::new();
        for line in &self.lines {
            let event = match line {
                _ if line.contains("store server down") => ServerEvent::Down,
                _ if line.contains("connected to store server") => ServerEvent::Connected,
                _ => continue,
            };
            let server = line.split_once(r#""server":""#).and_then(|(_, rest)| rest.split_once('"'));
            let (server, _) = server.unwrap_or_else(|| panic!("no server in {line}"));
            events.entry(server.to_owned()).or_default().push(event);
        }
        events
    }

    /// Fails unless each line about a server is a state change: one line per change, however many requests failed. Up
    /// to three lines may be about something else.
    #[track_caller]
    pub(crate) fn assert_only_changes(&self) {
        let by_server = self.server_events();
        for (server, events) in &by_server {
            let is_repeated = events.windows(2).any(|pair| pair[0] == pair[1]);
            assert!(!is_repeated, "{server} logged the same state twice: {events:?}");
        }
        let changes: usize = by_server.values().map(Vec::len).sum();
        assert!(self.lines.len() <= changes + 3, "more lines than state changes:\n{}", self.lines.join("\n"));
    }
}
