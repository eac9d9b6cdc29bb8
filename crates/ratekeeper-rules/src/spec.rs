//! The parsed form of a rule file, before it is compiled into a [`RuleSet`](crate::RuleSet).
//!
//! Values are already typed (a [`Limit`], a [`Pattern`]), so a file, an import from another limiter and a database all
//! produce the same spec. Values that diagnostics refer to carry their [`Position`].

use crate::address::Cidr;
use crate::dimension::Dimension;
use crate::expression::ExpressionMemory;
use crate::path::PathStyle;
use crate::pattern::{PathPattern, Pattern};
pub use ratekeeper_core::{Consistency, FailureMode};
use ratekeeper_core::{Limit, Micros};
use std::num::NonZeroU16;

/// A position in a file, with both numbers counted from 1. Line 0 means that there is no position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line number.
    pub line: u32,
    /// The column number, in characters.
    pub column: u32,
}

/// A value and its position in the file. Equality ignores the position.
#[derive(Clone, Copy, Debug, Default)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Its position.
    pub place: Position,
}

impl<T: PartialEq> PartialEq for At<T> {
    fn eq(&self, other: &At<T>) -> bool {
        self.value == other.value
    }
}

/// A rule file.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FileSpec {
    /// The rules, in the order in which they are tried.
    pub rules: Vec<RuleSpec>,
    /// The fallback limits: used when no rule applies, and inherited by rules without limits.
    pub default: Option<FallbackSpec>,
    /// Named sets of limits.
    pub tiers: Vec<TierSpec>,
    /// The tier of clients whose tier is not known otherwise.
    pub default_tier: Option<At<String>>,
    /// Tiers and limits of individual clients.
    pub clients: Vec<ClientSpec>,
    /// Clients that pass unchecked.
    pub allow: Vec<At<ListEntry>>,
    /// Clients that are always denied. It takes precedence over `allow`.
    pub deny: Vec<At<ListEntry>>,
    /// How paths are normalized before they are compared.
    pub paths: PathStyle,
    /// What to do if a request states a tier that the file does not define.
    pub unknown_tier: UnknownTier,
    /// The default of `missing`, for rules and the fallback.
    pub missing: Option<MissingKey>,
    /// How many leading bits of an IPv6 address identify a client; 64 if `None`.
    pub ipv6_prefix: Option<u8>,
    /// The default of `on_store_failure` for rules.
    pub on_store_failure: Option<FailureMode>,
    /// The default of `consistency` for rules.
    pub consistency: Option<Consistency>,
    /// The default of `store_timeout` for rules.
    pub store_timeout_ms: Option<NonZeroU16>,
}

impl FileSpec {
    /// The number of distinct regular expressions in the rules, and their compiled size in bytes.
    pub fn regex_usage(&self) -> (usize, usize) {
        let mut all = ExpressionMemory::default();
        self.rules
            .iter()
            .filter_map(|rule| rule.when.path.as_ref()?.expression())
            .for_each(|expression| all.add(expression));
        (all.len(), all.bytes())
    }
}

/// A rule of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSpec {
    /// Its unique name: 1 to 64 of the characters `A-Z a-z 0-9 . _ : / -`.
    pub id: At<String>,
    /// A version number for the author's use; it is kept and shown.
    pub version: Option<u64>,
    /// A description for the author's use; it is kept and shown.
    pub description: Option<String>,
    /// Whether it is enforced.
    pub mode: Mode,
    /// Which requests it applies to.
    pub when: MatchSpec,
    /// What requests are counted by: sorted, without duplicates; empty for one count shared by all requests.
    pub key: Vec<Dimension>,
    /// What to do with a request that lacks part of `key`.
    pub missing: Option<MissingKey>,
    /// Its limits. If `None`, those of the client, its tier or the default apply, counted under this rule. If empty,
    /// the rule is unlimited: requests that it matches pass, and later rules with the same key are skipped.
    pub limits: Option<Vec<Limit>>,
    /// Other limits for individual client keys.
    pub overrides: Vec<OverrideSpec>,
    /// What to decide when the store fails.
    pub on_store_failure: Option<FailureMode>,
    /// How exactly it is enforced across nodes.
    pub consistency: Option<Consistency>,
    /// How long to wait for the store, at most [`MAX_TIMEOUT_MS`](crate::bounds::MAX_TIMEOUT_MS).
    pub store_timeout_ms: Option<NonZeroU16>,
}

/// Whether a rule is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It decides whether requests pass.
    #[default]
    Enforced,
    /// It counts requests and records its decisions, but denies none.
    Shadow,
    /// It is ignored.
    Disabled,
}

/// What to do with a request that lacks part of a rule's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// The rule does not apply to it.
    #[default]
    Skip,
    /// It is denied.
    Refuse,
    /// It shares one count with all other requests that lack the same part.
    Shared,
}

impl MissingKey {
    /// The keyword in rule files.
    pub const fn name(self) -> &'static str {
        match self {
            MissingKey::Skip => "skip",
            MissingKey::Refuse => "refuse",
            MissingKey::Shared => "shared",
        }
    }
}

/// What to do if a request states a tier that the file does not define.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownTier {
    /// The tier is determined as if the request had not stated one.
    #[default]
    Ignore,
    /// The request is denied.
    Refuse,
}

impl UnknownTier {
    /// The keyword in rule files.
    pub const fn name(self) -> &'static str {
        match self {
            UnknownTier::Ignore => "ignore",
            UnknownTier::Refuse => "refuse",
        }
    }
}

/// Which requests a rule applies to. All conditions must hold; an empty condition always does.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct MatchSpec {
    /// The client's key.
    pub api_key: Option<Pattern>,
    /// The normalized path.
    pub path: Option<PathPattern>,
    /// The method is one of these, in upper case.
    pub methods: Vec<String>,
    /// The client's tier is one of these.
    pub tiers: Vec<String>,
    /// The tier that the rule is for (written beside `match`, not in it). It matches clients of that tier. If `api_key`
    /// is given, it also matches clients whose tier is unknown, since then the key implies the tier.
    pub rule_tier: Option<String>,
    /// The client's address is in one of these networks.
    pub ip: Vec<Cidr>,
    /// Each of these attributes is present and matches one of its patterns.
    pub attributes: Vec<(String, Vec<Pattern>)>,
    /// The domain of the request's descriptor.
    pub domain: Option<Pattern>,
    /// The entries of the request's descriptor: exactly these, in this order, each with this name and a value that
    /// matches.
    pub descriptor: Vec<(String, Pattern)>,
}

/// Other limits for one client key, optionally with an expiry time.
#[derive(Clone, Debug, PartialEq)]
pub struct OverrideSpec {
    /// The client's key.
    pub key: At<String>,
    /// Its limits; empty if it is unlimited.
    pub limits: Vec<Limit>,
    /// When it expires.
    pub valid_until: Option<Micros>,
}

/// The fallback limits: used when no rule applies, and inherited by rules without limits.
#[derive(Clone, Debug, PartialEq)]
pub struct FallbackSpec {
    /// What requests are counted by.
    pub key: Vec<Dimension>,
    /// What to do with a request that lacks part of `key`. If `None` and `key` is `client`, requests with neither a key
    /// nor an address share one count if no rule applies to them. If `None` and `key` is another, they are skipped.
    pub missing: Option<MissingKey>,
    /// The limits; empty if it is unlimited.
    pub limits: Vec<Limit>,
    /// Its position.
    pub place: Position,
}

/// A named set of limits.
#[derive(Clone, Debug, PartialEq)]
pub struct TierSpec {
    /// Its name.
    pub name: At<String>,
    /// Clients whose key matches one of these belong to it, unless the request or a client record states another tier.
    pub keys: Vec<At<Pattern>>,
    /// Its limits, which replace those of the default; inherited if `None`.
    pub limits: Option<Vec<Limit>>,
}

/// The tier and limits of one client.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSpec {
    /// Its key.
    pub key: At<String>,
    /// Its tier.
    pub tier: Option<At<String>>,
    /// Its limits, which replace those of its tier; inherited if `None`.
    pub limits: Option<Vec<Limit>>,
    /// When the record expires.
    pub valid_until: Option<Micros>,
}

/// An entry of the allow or deny list.
#[derive(Clone, Debug, PartialEq)]
pub enum ListEntry {
    /// Clients whose key matches.
    Key(Pattern),
    /// Clients whose address is in the network.
    Network(Cidr),
}
