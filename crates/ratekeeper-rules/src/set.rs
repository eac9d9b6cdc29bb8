//! All rules together, as they run.

use crate::access_lists::{AccessList, KeyPatterns};
use crate::dimension::Dimension;
use crate::index::RuleIndex;
use crate::path::{PathStyle, normalise};
use crate::prefixes::TextMap;
use crate::request::CheckRequest;
use crate::rule::{ClientLimits, IndexProof, RequestFacts, Rule, is_valid, names};
use crate::spec::{
    ClientSpec, Consistency, FallbackSpec, FileSpec, MatchSpec, MissingKey, Mode, RuleSpec, TierSpec,
    UnknownTier,
};
use ratekeeper_core::{DrawOptions, Limit, MAX_DRAWS, Micros};
use std::borrow::Cow;
use std::collections::hash_map::Entry;

/// The most different keys that the rules of one set may count by.
pub const MAX_KEYS: usize = 64;

/// All rules together, as they run: from a request to the limits that it must pass, in about the same time whether
/// there are ten of them or ten thousand.
///
/// Rules are tried from top to bottom. Those that count the same thing (their `key` is the same) are alternatives: the
/// first that matches is used. Those that count different things all apply. Behind all others stands the base: the
/// limits of the client's own record, or else of its tier, or else the default.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// In the order of the file, the base behind them.
    pub(crate) rules: Box<[Rule]>,
    /// For each rule.
    pub(crate) hot: Box<[HotRule]>,
    /// The limits of all rules, which `hot` points into.
    pub(crate) limits: Box<[Limit]>,
    pub(crate) index: RuleIndex,
    pub(crate) base: Option<FallbackRules>,
    /// Those of the file's `tiers`, and behind them all others that it names.
    pub(crate) tiers: Box<[Tier]>,
    tier_keys: KeyPatterns,
    /// The tier of each pattern in `tier_keys`.
    tier_of_pattern: Vec<u32>,
    tier_names: TextMap<u32>,
    pub(crate) unknown_tier: UnknownTier,
    default_tier: Option<u32>,
    clients: TextMap<ClientRecord>,
    pub(crate) allow: AccessList,
    pub(crate) deny: AccessList,
    pub(crate) style: PathStyle,
    pub(crate) ipv6_prefix: u8,
    /// One bit for each track that has rules to find.
    pub(crate) tracks: u64,
    /// Whether any rule looks at the path, or counts by it.
    pub(crate) needs_path: bool,
    /// Whether any rule counts by the descriptor.
    pub(crate) needs_descriptor: bool,
    /// On what terms draws from limits are made that come with their requests: as the file says for all rules.
    pub(crate) stated: DrawOptions,
}

/// What of a rule every request needs that it binds, on one cache line: with ten thousand rules, each line that is
/// looked at is one to wait for.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct HotRule {
    pub(crate) scope: u64,
    /// Where its limits begin and end.
    pub(crate) limits: (u32, u32),
    pub(crate) track: u32,
    pub(crate) terms: DrawOptions,
    /// Whether it binds whoever finds it and has a key, to its own limits.
    pub(crate) is_plain: bool,
    pub(crate) key: HotRuleKey,
}

/// What a rule counts by, where that is simple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HotRuleKey {
    ApiKey,
    Client,
    Other,
}

impl HotRule {
    fn new(rule: &Rule, proof: IndexProof, limits: &mut Vec<Limit>) -> HotRule {
        let place = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let begin = place(limits.len());
        limits.extend_from_slice(rule.limits());
        let MatchSpec { api_key, path, methods, tiers, rule_tier, ip, attributes, domain, descriptor } =
            &rule.when;
        let asks_no_more = (api_key.is_none() || proof == IndexProof::Key)
            && (path.is_none() || proof == IndexProof::Path)
            && methods.is_empty()
            && tiers.is_empty()
            && rule_tier.is_none()
            && ip.is_empty()
            && attributes.is_empty()
            && domain.is_none()
            && descriptor.is_empty();
        let key = match *rule.key {
            [Dimension::ApiKey] => HotRuleKey::ApiKey,
            [Dimension::Client] => HotRuleKey::Client,
            _ => HotRuleKey::Other,
        };
        HotRule {
            scope: rule.scope,
            limits: (begin, place(limits.len())),
            track: rule.track,
            terms: rule.terms(),
            is_plain: asks_no_more
                && key != HotRuleKey::Other
                && rule.limits.is_some()
                && rule.overrides.is_empty(),
            key,
        }
    }
}

/// Which rules stand for the base, by position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FallbackRules {
    /// The default's; it also has the key and the track of all of them.
    pub(crate) default: u32,
    /// The first tier's; the others follow.
    pub(crate) tiers: u32,
    /// The one for clients with limits of their own.
    pub(crate) clients: u32,
    /// Whether requests that lack what it counts by are held to it only if no rule binds them.
    pub(crate) is_last_resort: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Tier {
    pub(crate) name: Box<str>,
    pub(crate) limits: Option<Box<[Limit]>>,
}

/// What is known of one client.
#[derive(Clone, Debug)]
pub(crate) struct ClientRecord {
    pub(crate) tier: Option<u32>,
    pub(crate) tier_name: Option<Box<str>>,
    pub(crate) terms: Option<ClientLimits>,
    pub(crate) valid_until: Option<Micros>,
}

/// What is known of who asks, before any rule is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientProfile<'a> {
    pub(crate) tier: Option<&'a str>,
    /// Where the tier's limits are, if it is one of the file's.
    pub(crate) tier_index: Option<u32>,
    pub(crate) told_by: TierSource,
    /// Whether the request states a tier that the file does not know.
    pub(crate) has_unknown_tier: bool,
    pub(crate) client: Option<&'a ClientRecord>,
}

/// Who said of which tier a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierSource {
    /// Nobody.
    Nobody,
    /// The caller, in the request.
    Request,
    /// The client's record.
    Client,
    /// A pattern among the tier's keys.
    Pattern,
    /// The file's `default_tier`.
    Default,
}

impl RuleSet {
    /// Compiles what was read and checked.
    ///
    /// # Errors
    /// If a request could have to pass more limits than one may. Whoever checked the file has said so before.
    pub fn compile(spec: &FileSpec) -> Result<RuleSet, TooManyLimits> {
        let mut tracks = KeyGroups::default();
        let mut rules: Vec<_> = spec.rules.iter().map(|rule| compile_rule(rule, spec, &mut tracks)).collect();
        let base = compile_base(spec, &mut tracks, &mut rules);
        tracks.check()?;

        let mut set = RuleSet { base, style: spec.paths, ..RuleSet::default() };
        (set.tiers, set.tier_names) = compile_tiers(spec);
        set.unknown_tier = spec.unknown_tier;
        for (position, tier) in (0..).zip(&spec.tiers) {
            set.tier_of_pattern.extend(tier.keys.iter().map(|_| position));
        }
        set.tier_keys = KeyPatterns::new(spec.tiers.iter().flat_map(|tier| &tier.keys).map(|key| &key.value));
        set.default_tier = spec.default_tier.as_ref().and_then(|tier| set.tier_index(&tier.value));
        set.clients = spec.clients.iter().map(|client| compile_client(client, &set)).collect();
        set.allow = AccessList::new(&spec.allow);
        set.deny = AccessList::new(&spec.deny);
        set.ipv6_prefix = spec.ipv6_prefix.unwrap_or(64);
        set.stated = DrawOptions {
            is_shadow: false,
            consistency: spec.consistency.unwrap_or_default(),
            on_failure: spec.on_store_failure.unwrap_or_default(),
            deadline: spec.store_timeout_ms,
        };
        let base_begins = base.map_or(rules.len(), |base| base.default as usize);
        let is_filed = |rule: &Rule| rule.mode != Mode::Disabled;
        set.index = RuleIndex::new(&rules[..base_begins], is_filed);
        let filed = rules[..base_begins].iter().filter(|rule| is_filed(rule));
        set.tracks = filed.fold(0, |all, rule| all | 1 << rule.track);
        set.needs_path = rules.iter().any(|rule| {
            use Dimension::{Endpoint, Path};
            rule.when.path.is_some() || rule.key.contains(&Endpoint) || rule.key.contains(&Path)
        });
        set.needs_descriptor = rules.iter().any(|rule| rule.key.contains(&Dimension::Descriptor));
        let mut limits = Vec::new();
        let proof = |position: usize| match position < base_begins {
            true => set.index.proof(position),
            false => IndexProof::Nothing,
        };
        let hot =
            rules.iter().enumerate().map(|(position, rule)| HotRule::new(rule, proof(position), &mut limits));
        set.hot = hot.collect();
        set.limits = limits.into();
        set.rules = rules.into();
        Ok(set)
    }

    /// The rules in the order of the file, and behind them those that stand for the default, the tiers and the clients.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What it does with a tier that a request states and it does not know.
    pub fn unknown_tier(&self) -> UnknownTier {
        self.unknown_tier
    }

    /// Whether it holds nobody to anything.
    pub fn is_empty(&self) -> bool {
        self.rules.iter().all(|rule| rule.mode == Mode::Disabled) && self.deny.is_empty()
    }

    fn tier_index(&self, name: &str) -> Option<u32> {
        if self.tier_names.is_empty() { None } else { self.tier_names.get(name).copied() }
    }

    /// Finds out who asks.
    #[inline]
    pub(crate) fn standing<'a>(
        &'a self,
        request: &CheckRequest<'a>,
        now: &mut impl FnMut() -> Micros,
    ) -> ClientProfile<'a> {
        let client = match self.clients.is_empty() {
            true => None,
            false => self.clients.get(request.client_key).filter(|client| is_valid(client.valid_until, now)),
        };
        let stated = if request.tier.is_empty() { None } else { self.tier_index(request.tier) };
        // A file that names no tier knows all of them.
        let has_unknown_tier = !request.tier.is_empty() && stated.is_none() && !self.tier_names.is_empty();
        let (tier, tier_index, told_by) = match request.tier.is_empty() || has_unknown_tier {
            true => self.tier_of(request, client),
            false => (Some(request.tier), stated, TierSource::Request),
        };
        ClientProfile { tier, tier_index, told_by, has_unknown_tier, client }
    }

    /// The tier of a client whose request states none.
    #[inline]
    fn tier_of<'a>(
        &'a self,
        request: &CheckRequest<'a>,
        client: Option<&'a ClientRecord>,
    ) -> (Option<&'a str>, Option<u32>, TierSource) {
        if let Some(name) = client.and_then(|client| client.tier_name.as_deref()) {
            return (Some(name), client.and_then(|client| client.tier), TierSource::Client);
        }
        let named = |index: u32, source| (Some(&*self.tiers[index as usize].name), Some(index), source);
        if let Some(pattern) = self.tier_keys.first(request.client_key) {
            return named(self.tier_of_pattern[pattern], TierSource::Pattern);
        }
        self.default_tier.map_or((None, None, TierSource::Nobody), |index| named(index, TierSource::Default))
    }

    /// The path of a request, as rules see it.
    #[inline]
    pub(crate) fn path_of<'a>(&self, request: &CheckRequest<'a>) -> Cow<'a, str> {
        match (self.needs_path, request.endpoint) {
            (true, endpoint) if !endpoint.is_empty() => normalise(endpoint, self.style),
            _ => Cow::Borrowed("/"),
        }
    }

    /// The limits that a client has whom no rule gives others, and the rule that stands for them.
    #[inline]
    pub(crate) fn base_of<'a>(&'a self, standing: &ClientProfile<'a>) -> Option<(u32, &'a [Limit])> {
        let base = self.base?;
        if let Some(terms) = standing.client.and_then(|client| client.terms.as_ref()) {
            return Some((base.clients, &terms.limits));
        }
        if let Some(tier) = standing.tier_index
            && let Some(limits) = &self.tiers[tier as usize].limits
        {
            return Some((base.tiers + tier, limits));
        }
        let default = self.rules[base.default as usize].limits.as_deref()?;
        Some((base.default, default))
    }

    pub(crate) fn facts<'a>(
        request: &CheckRequest<'a>,
        path: &'a str,
        standing: &ClientProfile<'a>,
    ) -> RequestFacts<'a> {
        RequestFacts {
            client_key: request.client_key,
            path,
            method: request.method,
            tier: standing.tier,
            ip: request.ip,
            attributes: request.attributes,
            descriptor: request.descriptor,
        }
    }
}

/// A name as it goes into header fields, metrics and bodies, where nothing of it may need to be escaped. Whoever reads
/// files has made sure of it before; this is for specs that come from elsewhere.
fn clean(name: &str) -> Box<str> {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "._:/-".contains(c);
    name.chars().map(|c| if is_known(c) { c } else { '-' }).collect::<String>().into()
}

fn compile_rule(spec: &RuleSpec, file: &FileSpec, tracks: &mut KeyGroups) -> Rule {
    let own = spec.limits.iter().map(Vec::len);
    let inherited = spec.limits.is_none().then(|| base_counts(file)).into_iter().flatten();
    let most = own.chain(inherited).chain(spec.overrides.iter().map(|terms| terms.limits.len())).max();
    let most = most.unwrap_or(0);
    let track = match spec.mode {
        // It is never looked for.
        Mode::Disabled => 0,
        mode => tracks.track(&spec.key, mode, most),
    };
    Rule {
        id: clean(&spec.id.value),
        version: spec.version,
        description: spec.description.as_deref().map(Into::into),
        mode: spec.mode,
        when: spec.when.clone(),
        key: spec.key.clone().into(),
        missing: missing(spec.missing.or(file.missing), spec.mode),
        limits: spec.limits.clone().map(Into::into),
        overrides: spec
            .overrides
            .iter()
            .map(|own| (own.key.value.as_str().into(), ClientLimits::of(own)))
            .collect(),
        on_store_failure: spec.on_store_failure.or(file.on_store_failure).unwrap_or_default(),
        consistency: consistency(spec.consistency.or(file.consistency), spec.limits.as_deref()),
        store_timeout_ms: spec.store_timeout_ms.or(file.store_timeout_ms),
        track,
        scope: stable_hash(&["rule", &spec.id.value]),
        names: names(&clean(&spec.id.value), most),
    }
}

/// What to do with requests that lack what a rule counts by.
fn missing(said: Option<MissingKey>, mode: Mode) -> MissingKey {
    match (said.unwrap_or_default(), mode) {
        (MissingKey::Refuse, Mode::Shadow) => MissingKey::Skip,
        (said, _) => said,
    }
}

/// How exact limits are: what can't be lent is exact, unless it is not shared at all.
fn consistency(said: Option<Consistency>, limits: Option<&[Limit]>) -> Consistency {
    let can_lend = limits.is_none_or(|limits| limits.is_empty() || limits.iter().any(Limit::can_lend));
    match said.unwrap_or_default() {
        Consistency::Leased if !can_lend => Consistency::Exact,
        said => said,
    }
}

/// How many limits the default, each tier and each client have.
fn base_counts(file: &FileSpec) -> impl Iterator<Item = usize> {
    let default = file.default.iter().map(|base| base.limits.len());
    let tiers = file.tiers.iter().filter_map(|tier| tier.limits.as_ref().map(Vec::len));
    default.chain(tiers).chain(file.clients.iter().filter_map(|client| client.limits.as_ref().map(Vec::len)))
}

/// Puts the rules that stand for the base behind the others, if there is a base at all.
fn compile_base(file: &FileSpec, tracks: &mut KeyGroups, rules: &mut Vec<Rule>) -> Option<FallbackRules> {
    let most = base_counts(file).max()?;
    let (key, limits, said) = match &file.default {
        Some(FallbackSpec { key, limits, missing, .. }) => {
            (key.clone(), Some(limits.clone().into()), *missing)
        }
        None => (vec![Dimension::Client], None, None),
    };
    let said = said.or(file.missing);
    let is_last_resort = said.is_none() && key.contains(&Dimension::Client);
    let missing = said.unwrap_or(if is_last_resort { MissingKey::Shared } else { MissingKey::Skip });
    let track = tracks.track(&key, Mode::Enforced, most);
    let rule = |id: &str, limits: Option<Box<[Limit]>>| Rule {
        consistency: consistency(file.consistency, limits.as_deref()),
        id: id.into(),
        version: None,
        description: None,
        mode: Mode::Enforced,
        when: MatchSpec::default(),
        key: key.clone().into(),
        missing,
        limits,
        overrides: TextMap::default(),
        on_store_failure: file.on_store_failure.unwrap_or_default(),
        store_timeout_ms: file.store_timeout_ms,
        track,
        // Whoever changes tiers keeps what is left.
        scope: stable_hash(&["base"]),
        names: names(id, most),
    };
    let position = |rules: &Vec<Rule>| u32::try_from(rules.len()).unwrap_or(u32::MAX);
    let default = position(rules);
    rules.push(rule("default", limits));
    let tiers = position(rules);
    for TierSpec { name, limits, .. } in &file.tiers {
        rules.push(rule(&format!("tier:{}", clean(&name.value)), limits.clone().map(Into::into)));
    }
    let clients = position(rules);
    rules.push(rule("client", None));
    Some(FallbackRules { default, tiers, clients, is_last_resort })
}

fn compile_tier(spec: &TierSpec) -> Tier {
    Tier { name: spec.name.value.as_str().into(), limits: spec.limits.clone().map(Into::into) }
}

/// All tiers that a file names, those of its `tiers` first, and where each is.
fn compile_tiers(file: &FileSpec) -> (Box<[Tier]>, TextMap<u32>) {
    let of_rules = file.rules.iter().flat_map(|rule| rule.when.rule_tier.iter().chain(&rule.when.tiers));
    let of_clients = file.clients.iter().filter_map(|client| client.tier.as_ref()).chain(&file.default_tier);
    let mut tiers: Vec<_> = file.tiers.iter().map(compile_tier).collect();
    let mut names: TextMap<u32> = TextMap::default();
    for (position, tier) in (0..).zip(&tiers) {
        names.insert(tier.name.clone(), position);
    }
    for name in of_rules.chain(of_clients.map(|tier| &tier.value)) {
        if let Entry::Vacant(entry) = names.entry(name.as_str().into()) {
            tiers.push(Tier { name: entry.key().clone(), limits: None });
            entry.insert(u32::try_from(tiers.len() - 1).unwrap_or(u32::MAX));
        }
    }
    (tiers.into(), names)
}

fn compile_client(spec: &ClientSpec, set: &RuleSet) -> (Box<str>, ClientRecord) {
    let terms = spec.limits.clone().map(|limits| ClientLimits { limits: limits.into(), valid_until: None });
    let tier = spec.tier.as_ref().and_then(|tier| set.tier_index(&tier.value));
    let tier_name = spec.tier.as_ref().map(|tier| tier.value.as_str().into());
    (spec.key.value.as_str().into(), ClientRecord { tier, tier_name, terms, valid_until: spec.valid_until })
}

/// What is counted by which rules, and how many limits each may bring.
#[derive(Debug, Default)]
struct KeyGroups(Vec<(Box<[Dimension]>, Mode, usize)>);

impl KeyGroups {
    /// The number of the rules that count by `key`, of whom one brings as many as `limits`.
    fn track(&mut self, key: &[Dimension], mode: Mode, limits: usize) -> u32 {
        let key = Dimension::track_of(key);
        let known = self.0.iter_mut().position(|(known, own, _)| *known == key && *own == mode);
        let at = known.unwrap_or_else(|| {
            self.0.push((key, mode, 0));
            self.0.len() - 1
        });
        self.0[at].2 = self.0[at].2.max(limits);
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    fn check(&self) -> Result<(), TooManyLimits> {
        let limits = self.0.iter().map(|(_, _, limits)| limits).sum();
        match limits <= MAX_DRAWS && self.0.len() <= MAX_KEYS {
            true => Ok(()),
            false => Err(TooManyLimits { limits }),
        }
    }
}

/// A number that is the same for the same words in every process and version: FNV-1a.
fn stable_hash(words: &[&str]) -> u64 {
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A request could have to pass more limits than one may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a request could have to pass {limits} limits, and may at most {MAX_DRAWS}: let fewer rules count by different keys"
)]
pub struct TooManyLimits {
    /// How many.
    pub limits: usize,
}
