//! The parameters of lease sizing. [`policy`](super::policy) has the formulas that they enter.

/// The parameters of lease sizing. They trade false denials near the limit for store calls; the limit itself holds
/// whatever they are.
///
/// The defaults are what `docs/leases.md` measures. There is no setting for them: this type is public so that a
/// simulation can vary them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeasePolicy {
    /// The demand is measured over this many draws. More make it surer, fewer notice a change sooner.
    pub demand_draws: f32,
    /// The demand is measured over at least this many seconds, because draws come in bursts.
    pub demand_seconds: f32,
    /// The longest time for which units are leased, in seconds. A longer time serves quiet keys from leases, and keeps
    /// their unspent units from other nodes. Leases last for 30 to 60 seconds.
    pub max_horizon_seconds: f32,
    /// The share of requests that may be denied falsely because units are idle: leased and unspent, or refilled and not
    /// collected. A greater one lets more of a small limit be idle.
    pub false_denial_share: f32,
    /// The largest share of a bucket that may be leased or uncollected. A bucket of which a share is idle denies as
    /// many draws as one that is smaller by that share.
    pub max_bucket_share: f32,
    /// The largest share of the units left in a window that may be leased at a time. They are back or spent when it
    /// ends, so it can be greater than that of a bucket.
    pub max_window_share: f32,
    /// By how many standard deviations estimates are assumed to be wrong. More lose fewer units at the end of a window,
    /// and make smaller leases there.
    pub deviations: f32,
    /// Beyond the limit, a node asks the store once per this many draws. More save store calls, and leave more units
    /// uncollected.
    pub draws_per_backoff: f32,
    /// The shortest back-off in seconds. It bounds the calls for a single key that a node makes per second.
    pub min_backoff_seconds: f32,
    /// The longest back-off in seconds. It bounds how long a node denies before it notices that there are units again.
    pub max_backoff_seconds: f32,
    /// A lease is renewed when this share of it is left, up to twice the share depending on the key, so that leases
    /// granted together are not renewed together. A greater share bridges longer stalls of the store, and makes more
    /// calls.
    pub renew_share: f32,
}

impl LeasePolicy {
    /// The shipped parameters.
    pub const DEFAULT: LeasePolicy = LeasePolicy {
        demand_draws: 64.0,
        demand_seconds: 0.05,
        max_horizon_seconds: 45.0,
        false_denial_share: 0.000_175,
        max_bucket_share: 0.1,
        max_window_share: 0.25,
        deviations: 2.5,
        draws_per_backoff: 400.0,
        min_backoff_seconds: 0.025,
        max_backoff_seconds: 1.0,
        renew_share: 0.0625,
    };
}

impl Default for LeasePolicy {
    fn default() -> LeasePolicy {
        LeasePolicy::DEFAULT
    }
}
