//! The limits under test.

/// An algorithm with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitCase {
    pub(crate) name: &'static str,
    /// Units per period.
    pub(crate) amount: u32,
    pub(crate) period_seconds: u32,
    /// The burst of a bucket algorithm; 0 for others.
    pub(crate) burst: u32,
    pub(crate) kind: BoundKind,
}

/// The bound that an algorithm guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoundKind {
    /// In any interval at most the burst plus the refill.
    Bucket,
    /// At most `amount` in each wall-clock window.
    FixedWindow,
    /// At most `amount` in each wall-clock window, and less than twice that in any interval of the same length.
    SlidingCounter,
    /// At most `amount` in any interval of one period.
    SlidingLog,
}

impl LimitCase {
    /// One case per algorithm, with limits multiplied by `factor`.
    pub(crate) fn all(factor: u32) -> [LimitCase; 5] {
        let bucket = |name, burst| LimitCase {
            name,
            amount: 50 * factor,
            period_seconds: 1,
            burst,
            kind: BoundKind::Bucket,
        };
        let window = |name, kind| LimitCase { name, amount: 100 * factor, period_seconds: 2, burst: 0, kind };
        [
            bucket("token_bucket", 50 * factor),
            bucket("leaky_bucket", 40 * factor),
            window("fixed_window", BoundKind::FixedWindow),
            window("sliding_window_counter", BoundKind::SlidingCounter),
            window("sliding_window_log", BoundKind::SlidingLog),
        ]
    }

    /// The rule as a line of a rule file.
    pub(crate) fn rule_line(&self) -> String {
        let LimitCase { name, amount, period_seconds, burst, kind } = self;
        let burst = if *kind == BoundKind::Bucket { format!(" burst {burst}") } else { String::new() };
        format!(
            "  - {{id: {name}, match: {{path: /{name}}}, algorithm: {name}, limit: {amount}/{period_seconds}s{burst}}}\n"
        )
    }

    pub(crate) fn units_per_second(&self) -> f64 {
        f64::from(self.amount) / f64::from(self.period_seconds)
    }
}
