//! The limits that are tried.

/// A law with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Law {
    pub(crate) name: &'static str,
    /// Units in each period.
    pub(crate) amount: u32,
    pub(crate) period_seconds: u32,
    /// Of the bucket laws.
    pub(crate) burst: u32,
    pub(crate) kind: Kind,
}

/// What a law promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In any stretch at most the burst and what comes back in it.
    Bucket,
    /// So many in each window of the wall clock.
    FixedWindow,
    /// So many in each window of the wall clock, and less than twice as many in any stretch as long.
    SlidingCounter,
    /// So many in any stretch as long as the period.
    SlidingLog,
}

impl Law {
    /// Each law, with limits so many times as large.
    pub(crate) fn each(times: u32) -> [Law; 5] {
        let bucket =
            |name, burst| Law { name, amount: 50 * times, period_seconds: 1, burst, kind: Kind::Bucket };
        let window = |name, kind| Law { name, amount: 100 * times, period_seconds: 2, burst: 0, kind };
        [
            bucket("token_bucket", 50 * times),
            bucket("leaky_bucket", 40 * times),
            window("fixed_window", Kind::FixedWindow),
            window("sliding_window_counter", Kind::SlidingCounter),
            window("sliding_window_log", Kind::SlidingLog),
        ]
    }

    /// As a line of a rules file has it.
    pub(crate) fn rule(&self) -> String {
        let Law { name, amount, period_seconds, burst, kind } = self;
        let burst = if *kind == Kind::Bucket { format!(" burst {burst}") } else { String::new() };
        format!(
            "  - {{id: {name}, match: {{path: /{name}}}, algorithm: {name}, limit: {amount}/{period_seconds}s{burst}}}\n"
        )
    }

    pub(crate) fn units_per_second(&self) -> f64 {
        f64::from(self.amount) / f64::from(self.period_seconds)
    }
}
