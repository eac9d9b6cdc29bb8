//! What people write, read and checked field by field, before it is compiled.
//!
//! Every value here is already what it stands for (a [`Limit`], a [`Pattern`]), so whoever reads files, imports those
//! of other limiters or keeps rules in a database makes the same values. A value that people may be told about knows
//! its [`Position`].

use crate::address::Cidr;
use crate::dimension::Dimension;
use crate::expression::ExpressionMemory;
use crate::path::PathStyle;
use crate::pattern::{PathPattern, Pattern};
pub use ratekeeper_core::{Consistency, FailureMode};
use ratekeeper_core::{Limit, Micros};
use std::num::NonZeroU16;

/// The longest that a rule's name may be, and that of an attribute.
pub(crate) const MOST_ID: usize = 64;

/// The longest that a store may be given to answer: a second, since a request waits for it.
pub const MOST_TIMEOUT_MS: u16 = 1_000;

/// A place in a file, both counted from 1; line 0 if it came from nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
}

/// A value and where it was written. Two are equal if their values are.
#[derive(Clone, Copy, Debug, Default)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Where it was written.
    pub place: Position,
}

impl<T: PartialEq> PartialEq for At<T> {
    fn eq(&self, other: &At<T>) -> bool {
        self.value == other.value
    }
}

/// A whole file.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FileSpec {
    /// The rules, in the order in which they are tried.
    pub rules: Vec<RuleSpec>,
    /// What binds whom no rule binds.
    pub default: Option<FallbackSpec>,
    /// Bundles of limits by name.
    pub tiers: Vec<TierSpec>,
    /// The tier of those whose tier is not known otherwise.
    pub default_tier: Option<At<String>>,
    /// What is known of single clients.
    pub clients: Vec<ClientSpec>,
    /// Who passes unchecked.
    pub allow: Vec<At<ListEntry>>,
    /// Who is always refused. Who is on both lists is refused.
    pub deny: Vec<At<ListEntry>>,
    /// How paths are made alike before they are compared.
    pub paths: PathStyle,
    /// What to do with a tier that a request states and the file does not know.
    pub unknown_tier: UnknownTier,
    /// For rules, and a default, that do not say it themselves.
    pub missing: Option<MissingKey>,
    /// How many leading bits of an IPv6 address tell clients apart: 64 unless said otherwise.
    pub ipv6_prefix: Option<u8>,
    /// For rules that do not say it themselves.
    pub on_store_failure: Option<FailureMode>,
    /// For rules that do not say it themselves.
    pub consistency: Option<Consistency>,
    /// For rules that do not say it themselves.
    pub store_timeout_ms: Option<NonZeroU16>,
}

impl FileSpec {
    /// How many different expressions its rules have, and how many bytes they take when they are compiled.
    pub fn expressions(&self) -> (usize, usize) {
        let mut all = ExpressionMemory::default();
        self.rules.iter().filter_map(|rule| rule.when.path.as_ref()).for_each(|path| all.add(path));
        (all.len(), all.bytes())
    }
}

/// A rule as written.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSpec {
    /// Its name: 1 to 64 of the characters `A-Z a-z 0-9 . _ : / -`.
    pub id: At<String>,
    /// A number that the author counts up, kept and shown.
    pub version: Option<u64>,
    /// What it is for, kept and shown.
    pub description: Option<String>,
    /// Whether it is enforced.
    pub mode: Mode,
    /// Whom it binds.
    pub when: MatchSpec,
    /// What is counted: sorted, each once; empty for one count shared by all.
    pub key: Vec<Dimension>,
    /// What to do with a request that lacks something of `key`.
    pub missing: Option<MissingKey>,
    /// Its limits; if it names none, those of the client, its tier or the default hold, counted under this rule. If
    /// they are there and empty, it is unlimited: it holds nobody to anything, and what it binds passes the rules
    /// behind it that count the same.
    pub limits: Option<Vec<Limit>>,
    /// Other limits for single client keys.
    pub overrides: Vec<OverrideSpec>,
    /// What to answer when the store gives no answer.
    pub on_store_failure: Option<FailureMode>,
    /// How exact it is across nodes.
    pub consistency: Option<Consistency>,
    /// How long the store has to answer, up to [`MOST_TIMEOUT_MS`].
    pub store_timeout_ms: Option<NonZeroU16>,
}

/// Whether a rule is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is.
    #[default]
    Enforced,
    /// It decides and is counted, and refuses nobody.
    Shadow,
    /// It is as if it were not there.
    Disabled,
}

/// What to do with a request that lacks something that a rule counts by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// The rule does not bind it.
    #[default]
    Skip,
    /// It is denied.
    Refuse,
    /// It shares one count with all others that lack the same.
    Shared,
}

impl MissingKey {
    /// The name it is written by.
    pub const fn name(self) -> &'static str {
        match self {
            MissingKey::Skip => "skip",
            MissingKey::Refuse => "refuse",
            MissingKey::Shared => "shared",
        }
    }
}

/// What to do with a tier that a request states and the file does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownTier {
    /// The tier is found out as if the request had stated none.
    #[default]
    Ignore,
    /// The request is denied.
    Refuse,
}

impl UnknownTier {
    /// The name it is written by.
    pub const fn name(self) -> &'static str {
        match self {
            UnknownTier::Ignore => "ignore",
            UnknownTier::Refuse => "refuse",
        }
    }
}

/// Whom a rule binds: all of this must hold. What is empty holds for everybody.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct MatchSpec {
    /// The client's key.
    pub api_key: Option<Pattern>,
    /// The path.
    pub path: Option<PathPattern>,
    /// One of these methods, in capitals.
    pub methods: Vec<String>,
    /// One of these tiers.
    pub tiers: Vec<String>,
    /// The tier that the rule is for (written beside `match`, not in it). It holds for clients of that tier; and for
    /// those whose tier nobody stated, if `api_key` is given, since then the key tells the tier.
    pub rule_tier: Option<String>,
    /// In one of these networks.
    pub ip: Vec<Cidr>,
    /// Each of these attributes is there and matches one of its patterns.
    pub attributes: Vec<(String, Vec<Pattern>)>,
    /// The domain of the request's descriptor.
    pub domain: Option<Pattern>,
    /// The entries of the request's descriptor: these, in this order, no more and no fewer. Each has this name and a
    /// value that matches.
    pub descriptor: Vec<(String, Pattern)>,
}

/// Other limits for one client key, perhaps for a time.
#[derive(Clone, Debug, PartialEq)]
pub struct OverrideSpec {
    /// The client's key.
    pub key: At<String>,
    /// Its limits; none if it is unlimited.
    pub limits: Vec<Limit>,
    /// From when on it no longer holds.
    pub valid_until: Option<Micros>,
}

/// What binds whom no rule binds.
#[derive(Clone, Debug, PartialEq)]
pub struct FallbackSpec {
    /// What is counted.
    pub key: Vec<Dimension>,
    /// What to do with a request that lacks something of `key`. If it is not said and the key is that of the client,
    /// requests with neither a key nor an address share a count if no rule binds them; else they are skipped.
    pub missing: Option<MissingKey>,
    /// The limits; none if it is unlimited.
    pub limits: Vec<Limit>,
    /// Where it was written.
    pub place: Position,
}

/// A bundle of limits by name.
#[derive(Clone, Debug, PartialEq)]
pub struct TierSpec {
    /// Its name.
    pub name: At<String>,
    /// Whose keys these match belongs to it, unless the request or a client record says otherwise.
    pub keys: Vec<At<Pattern>>,
    /// Its limits instead of the default's, if it has any.
    pub limits: Option<Vec<Limit>>,
}

/// What is known of one client.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSpec {
    /// Its key.
    pub key: At<String>,
    /// Its tier.
    pub tier: Option<At<String>>,
    /// Its limits instead of its tier's, if it has any.
    pub limits: Option<Vec<Limit>>,
    /// From when on the record no longer holds.
    pub valid_until: Option<Micros>,
}

/// Whom an entry of the allow or deny list means.
#[derive(Clone, Debug, PartialEq)]
pub enum ListEntry {
    /// Clients whose key matches.
    Key(Pattern),
    /// Clients whose address is in the network.
    Net(Cidr),
}
