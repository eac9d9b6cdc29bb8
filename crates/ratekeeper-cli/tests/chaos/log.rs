//! What a node's log says of its store.

use ratekeeper_testkit::servers::ServerNode;
use std::collections::BTreeMap;

/// What a node has logged since a moment.
#[derive(Debug)]
pub(crate) struct Log {
    lines: Vec<String>,
}

/// What becomes of a server, as a log tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Away,
    There,
}

impl Log {
    /// How many lines there are by now.
    pub(crate) fn length(node: &ServerNode) -> usize {
        node.log().lines().count()
    }

    /// All lines after so many.
    pub(crate) fn since(node: &ServerNode, length: usize) -> Log {
        Log { lines: node.log().lines().skip(length).map(str::to_owned).collect() }
    }

    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// What it says of each server, in order.
    pub(crate) fn news(&self) -> BTreeMap<String, Vec<News>> {
        let mut news: BTreeMap<String, Vec<News>> = BTreeMap::new();
        for line in &self.lines {
            let told = match line {
                _ if line.contains("store server is away") => News::Away,
                _ if line.contains("store server is there") => News::There,
                _ => continue,
            };
            let server = line.split_once(r#""server":""#).and_then(|(_, rest)| rest.split_once('"'));
            let (server, _) = server.unwrap_or_else(|| panic!("{line} does not say which server"));
            news.entry(server.to_owned()).or_default().push(told);
        }
        news
    }

    /// Fails unless each line about a server is news: one for each change, however many requests noticed. Some lines may
    /// be about something else, but only a few.
    #[track_caller]
    pub(crate) fn must_tell_only_news(&self) {
        let news = self.news();
        for (server, told) in &news {
            let is_repeated = told.windows(2).any(|pair| pair[0] == pair[1]);
            assert!(!is_repeated, "of {server} the same is told twice: {told:?}");
        }
        let told: usize = news.values().map(Vec::len).sum();
        assert!(self.lines.len() <= told + 3, "more is logged than what changed:\n{}", self.lines.join("\n"));
    }
}
