//! Compiled rule sets.

use crate::access_lists::{AccessList, KeyPatterns};
use crate::dimension::Dimension;
use crate::index::RuleIndex;
use crate::path::{PathStyle, normalise};
use crate::prefixes::TextMap;
use crate::request::CheckRequest;
use crate::rule::{ClientLimits, IndexProof, RequestFacts, Rule, is_valid, limit_names};
use crate::spec::{
    ClientSpec, Consistency, FallbackSpec, FileSpec, MatchSpec, MissingKey, Mode, RuleSpec, TierSpec,
    UnknownTier,
};
use ratekeeper_core::{DrawOptions, Limit, MAX_DRAWS, Micros};
use std::borrow::Cow;
use std::collections::hash_map::Entry;

/// The most key groups in a rule set: a `u64` has a bit for each.
pub const MAX_KEY_GROUPS: usize = 64;

/// A compiled rule set, which resolves requests to limits in about the same time for ten rules or ten thousand.
///
/// Rules are tried from top to bottom. Rules with the same `key` form a key group, enforced and shadow rules
/// separately: they are alternatives, of which the first match applies. Rules of different key groups all apply. If no
/// rule of its key group applies, the fallback does: the limits of the client's own record, else those of its tier,
/// else the default.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// In the order of the file, followed by the fallback rules.
    pub(crate) rules: Box<[Rule]>,
    /// One per rule, in the same order.
    pub(crate) hot_rules: Box<[HotRule]>,
    /// The limits of all rules; `hot_rules` has ranges of it.
    pub(crate) limits: Box<[Limit]>,
    pub(crate) index: RuleIndex,
    pub(crate) fallback: Option<FallbackRules>,
    /// The file's `tiers`, followed by all other tiers that it mentions.
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
    pub(crate) path_style: PathStyle,
    pub(crate) ipv6_prefix: u8,
    /// A bit for each key group that has rules in the index.
    pub(crate) key_groups: u64,
    /// Whether any rule matches the path, or counts by it.
    pub(crate) needs_path: bool,
    /// Whether any rule counts by the descriptor.
    pub(crate) needs_descriptor: bool,
    /// The draw options of inline limits: the defaults of the file.
    pub(crate) inline_options: DrawOptions,
}

/// The fields of a rule that resolving needs, on one cache line: with ten thousand rules, each line touched is a cache
/// miss.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct HotRule {
    pub(crate) scope: u64,
    /// The range of its limits in `RuleSet::limits`.
    pub(crate) limits: (u32, u32),
    pub(crate) key_group: u32,
    pub(crate) draw_options: DrawOptions,
    /// Whether the rule applies, with its own limits, to every request that finds it in the index and has a client key.
    pub(crate) always_applies: bool,
    pub(crate) key: HotRuleKey,
}

/// A rule's key, if it is a single dimension with a fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HotRuleKey {
    ApiKey,
    Client,
    Other,
}

impl HotRule {
    fn new(rule: &Rule, proof: IndexProof, limits: &mut Vec<Limit>) -> HotRule {
        let index = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let begin = index(limits.len());
        limits.extend_from_slice(rule.limits());
        let MatchSpec { api_key, path, methods, tiers, rule_tier, ip, attributes, domain, descriptor } =
            &rule.when;
        let is_proven = (api_key.is_none() || proof == IndexProof::Key)
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
            limits: (begin, index(limits.len())),
            key_group: rule.key_group,
            draw_options: rule.draw_options(),
            always_applies: is_proven
                && key != HotRuleKey::Other
                && rule.limits.is_some()
                && rule.overrides.is_empty(),
            key,
        }
    }
}

/// The positions of the fallback rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FallbackRules {
    /// The rule of the default; all fallback rules share its key and key group.
    pub(crate) default: u32,
    /// The rule of the first tier; those of the other tiers follow.
    pub(crate) tiers: u32,
    /// The rule of all clients with their own limits.
    pub(crate) clients: u32,
    /// Whether the fallback applies to requests that lack a dimension of its key only if no enforced rule applies.
    pub(crate) is_last_resort: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Tier {
    pub(crate) name: Box<str>,
    pub(crate) limits: Option<Box<[Limit]>>,
}

/// The client record of a rule file.
#[derive(Clone, Debug)]
pub(crate) struct ClientRecord {
    pub(crate) tier: Option<u32>,
    pub(crate) tier_name: Option<Box<str>>,
    pub(crate) limits: Option<ClientLimits>,
    pub(crate) valid_until: Option<Micros>,
}

/// The client's record and tier, resolved before any rule is evaluated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientProfile<'a> {
    pub(crate) tier: Option<&'a str>,
    /// The tier's index in `RuleSet::tiers`; `None` if the file does not mention it.
    pub(crate) tier_index: Option<u32>,
    pub(crate) tier_source: TierSource,
    /// Whether the request states a tier that the file does not define.
    pub(crate) has_unknown_tier: bool,
    pub(crate) client: Option<&'a ClientRecord>,
}

/// Where a client's tier comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierSource {
    /// The client has no tier.
    None,
    /// The request states it.
    Request,
    /// The client's record.
    Client,
    /// The client's key matches one of the tier's key patterns.
    Pattern,
    /// The file's `default_tier`.
    Default,
}

impl RuleSet {
    /// Compiles a validated file.
    ///
    /// # Errors
    /// If a request could have to pass more than [`MAX_DRAWS`] limits. Validation reports this first.
    pub fn compile(spec: &FileSpec) -> Result<RuleSet, TooManyLimits> {
        let mut key_groups = KeyGroups::default();
        let mut rules: Vec<_> =
            spec.rules.iter().map(|rule| compile_rule(rule, spec, &mut key_groups)).collect();
        let fallback = compile_fallback(spec, &mut key_groups, &mut rules);
        key_groups.check()?;

        let mut set = RuleSet { fallback, path_style: spec.paths, ..RuleSet::default() };
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
        set.inline_options = DrawOptions {
            is_shadow: false,
            consistency: spec.consistency.unwrap_or_default(),
            on_failure: spec.on_store_failure.unwrap_or_default(),
            timeout_ms: spec.store_timeout_ms,
        };
        let first_fallback = fallback.map_or(rules.len(), |fallback| fallback.default as usize);
        let is_indexed = |rule: &Rule| rule.mode != Mode::Disabled;
        set.index = RuleIndex::new(&rules[..first_fallback], is_indexed);
        let indexed = rules[..first_fallback].iter().filter(|rule| is_indexed(rule));
        set.key_groups = indexed.fold(0, |all, rule| all | 1 << rule.key_group);
        set.needs_path = rules.iter().any(|rule| {
            use Dimension::{Endpoint, Path};
            rule.when.path.is_some() || rule.key.contains(&Endpoint) || rule.key.contains(&Path)
        });
        set.needs_descriptor = rules.iter().any(|rule| rule.key.contains(&Dimension::Descriptor));
        let mut limits = Vec::new();
        let proof = |position: usize| {
            if position < first_fallback { set.index.proof(position) } else { IndexProof::None }
        };
        let hot =
            rules.iter().enumerate().map(|(position, rule)| HotRule::new(rule, proof(position), &mut limits));
        set.hot_rules = hot.collect();
        set.limits = limits.into();
        set.rules = rules.into();
        Ok(set)
    }

    /// The rules in the order of the file, followed by the fallback rules: the default, the tiers and the clients.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What to do with a tier that a request states and the file does not define.
    pub fn unknown_tier(&self) -> UnknownTier {
        self.unknown_tier
    }

    /// Whether nothing is limited or denied: all rules are disabled, and the deny list is empty.
    pub fn is_empty(&self) -> bool {
        self.rules.iter().all(|rule| rule.mode == Mode::Disabled) && self.deny.is_empty()
    }

    fn tier_index(&self, name: &str) -> Option<u32> {
        if self.tier_names.is_empty() { None } else { self.tier_names.get(name).copied() }
    }

    /// Resolves the client's record and tier.
    #[inline]
    pub(crate) fn client_profile<'a>(
        &'a self,
        request: &CheckRequest<'a>,
        now: &mut impl FnMut() -> Micros,
    ) -> ClientProfile<'a> {
        let client = if self.clients.is_empty() {
            None
        } else {
            self.clients.get(request.client_key).filter(|client| is_valid(client.valid_until, now))
        };
        let stated = if request.tier.is_empty() { None } else { self.tier_index(request.tier) };
        // If the file mentions no tier, every tier is valid.
        let has_unknown_tier = !request.tier.is_empty() && stated.is_none() && !self.tier_names.is_empty();
        let (tier, tier_index, tier_source) = if request.tier.is_empty() || has_unknown_tier {
            self.resolve_tier(request, client)
        } else {
            (Some(request.tier), stated, TierSource::Request)
        };
        ClientProfile { tier, tier_index, tier_source, has_unknown_tier, client }
    }

    /// The tier of a client whose request states none, or an unknown one.
    #[inline]
    fn resolve_tier<'a>(
        &'a self,
        request: &CheckRequest<'a>,
        client: Option<&'a ClientRecord>,
    ) -> (Option<&'a str>, Option<u32>, TierSource) {
        if let Some(name) = client.and_then(|client| client.tier_name.as_deref()) {
            return (Some(name), client.and_then(|client| client.tier), TierSource::Client);
        }
        let named = |index: u32, source| (Some(&*self.tiers[index as usize].name), Some(index), source);
        if let Some(pattern) = self.tier_keys.first_match(request.client_key) {
            return named(self.tier_of_pattern[pattern], TierSource::Pattern);
        }
        self.default_tier.map_or((None, None, TierSource::None), |index| named(index, TierSource::Default))
    }

    /// The canonical path of a request; `/` if no rule needs it.
    #[inline]
    pub(crate) fn path_of<'a>(&self, request: &CheckRequest<'a>) -> Cow<'a, str> {
        match (self.needs_path, request.endpoint) {
            (true, endpoint) if !endpoint.is_empty() => normalise(endpoint, self.path_style),
            _ => Cow::Borrowed("/"),
        }
    }

    /// The position of the fallback rule for a client and its limits. Returns `None` if the file has none for it.
    #[inline]
    pub(crate) fn fallback_of<'a>(&'a self, profile: &ClientProfile<'a>) -> Option<(u32, &'a [Limit])> {
        let fallback = self.fallback?;
        if let Some(own) = profile.client.and_then(|client| client.limits.as_ref()) {
            return Some((fallback.clients, &own.limits));
        }
        if let Some(tier) = profile.tier_index
            && let Some(limits) = &self.tiers[tier as usize].limits
        {
            return Some((fallback.tiers + tier, limits));
        }
        let default = self.rules[fallback.default as usize].limits.as_deref()?;
        Some((fallback.default, default))
    }

    pub(crate) fn request_facts<'a>(
        request: &CheckRequest<'a>,
        path: &'a str,
        profile: &ClientProfile<'a>,
    ) -> RequestFacts<'a> {
        RequestFacts {
            client_key: request.client_key,
            path,
            method: request.method,
            tier: profile.tier,
            ip: request.ip,
            attributes: request.attributes,
            descriptor: request.descriptor,
        }
    }
}

/// Replaces characters that would have to be escaped in headers, metrics and response bodies. Names from rule files
/// never have any; this is for specs from other sources.
fn sanitize_name(name: &str) -> Box<str> {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "._:/-".contains(c);
    name.chars().map(|c| if is_safe(c) { c } else { '-' }).collect::<String>().into()
}

fn compile_rule(spec: &RuleSpec, file: &FileSpec, key_groups: &mut KeyGroups) -> Rule {
    let own = spec.limits.iter().map(Vec::len);
    let inherited = spec.limits.is_none().then(|| fallback_limit_counts(file)).into_iter().flatten();
    let max_limits = own.chain(inherited).chain(spec.overrides.iter().map(|own| own.limits.len())).max();
    let max_limits = max_limits.unwrap_or(0);
    let key_group = match spec.mode {
        // A disabled rule never applies, so its group does not matter.
        Mode::Disabled => 0,
        mode => key_groups.group_of(&spec.key, mode, max_limits),
    };
    Rule {
        id: sanitize_name(&spec.id.value),
        version: spec.version,
        description: spec.description.as_deref().map(Into::into),
        mode: spec.mode,
        when: spec.when.clone(),
        key: spec.key.clone().into(),
        missing: effective_missing(spec.missing.or(file.missing), spec.mode),
        limits: spec.limits.clone().map(Into::into),
        overrides: spec
            .overrides
            .iter()
            .map(|own| (own.key.value.as_str().into(), ClientLimits::from_spec(own)))
            .collect(),
        on_store_failure: spec.on_store_failure.or(file.on_store_failure).unwrap_or_default(),
        consistency: effective_consistency(spec.consistency.or(file.consistency), spec.limits.as_deref()),
        store_timeout_ms: spec.store_timeout_ms.or(file.store_timeout_ms),
        key_group,
        scope: stable_hash(&["rule", &spec.id.value]),
        limit_names: limit_names(&sanitize_name(&spec.id.value), max_limits),
    }
}

/// What to do with requests that lack a dimension of a rule's key: a shadow rule skips them instead of denying.
fn effective_missing(configured: Option<MissingKey>, mode: Mode) -> MissingKey {
    match (configured.unwrap_or_default(), mode) {
        (MissingKey::Refuse, Mode::Shadow) => MissingKey::Skip,
        (configured, _) => configured,
    }
}

/// The consistency of a rule: if none of its limits can be leased, `leased` becomes `exact`.
fn effective_consistency(configured: Option<Consistency>, limits: Option<&[Limit]>) -> Consistency {
    let can_lend = limits.is_none_or(|limits| limits.is_empty() || limits.iter().any(Limit::is_leasable));
    match configured.unwrap_or_default() {
        Consistency::Leased if !can_lend => Consistency::Exact,
        configured => configured,
    }
}

/// The number of limits of the default, of each tier and of each client.
fn fallback_limit_counts(file: &FileSpec) -> impl Iterator<Item = usize> {
    let default = file.default.iter().map(|default| default.limits.len());
    let tiers = file.tiers.iter().filter_map(|tier| tier.limits.as_ref().map(Vec::len));
    default.chain(tiers).chain(file.clients.iter().filter_map(|client| client.limits.as_ref().map(Vec::len)))
}

/// Appends the fallback rules. Returns `None` if the file has no fallback limits.
fn compile_fallback(
    file: &FileSpec,
    key_groups: &mut KeyGroups,
    rules: &mut Vec<Rule>,
) -> Option<FallbackRules> {
    let max_limits = fallback_limit_counts(file).max()?;
    let (key, limits, configured) = match &file.default {
        Some(FallbackSpec { key, limits, missing, .. }) => {
            (key.clone(), Some(limits.clone().into()), *missing)
        }
        None => (vec![Dimension::Client], None, None),
    };
    let configured = configured.or(file.missing);
    let is_last_resort = configured.is_none() && key.contains(&Dimension::Client);
    let missing = configured.unwrap_or(if is_last_resort { MissingKey::Shared } else { MissingKey::Skip });
    let key_group = key_groups.group_of(&key, Mode::Enforced, max_limits);
    let rule = |id: &str, limits: Option<Box<[Limit]>>| Rule {
        consistency: effective_consistency(file.consistency, limits.as_deref()),
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
        key_group,
        // All fallback rules share a scope, so a client that changes tiers keeps its counts.
        scope: stable_hash(&["base"]),
        limit_names: limit_names(id, max_limits),
    };
    let position = |rules: &Vec<Rule>| u32::try_from(rules.len()).unwrap_or(u32::MAX);
    let default = position(rules);
    rules.push(rule("default", limits));
    let tiers = position(rules);
    for TierSpec { name, limits, .. } in &file.tiers {
        rules.push(rule(&format!("tier:{}", sanitize_name(&name.value)), limits.clone().map(Into::into)));
    }
    let clients = position(rules);
    rules.push(rule("client", None));
    Some(FallbackRules { default, tiers, clients, is_last_resort })
}

fn compile_tier(spec: &TierSpec) -> Tier {
    Tier { name: spec.name.value.as_str().into(), limits: spec.limits.clone().map(Into::into) }
}

/// All tiers that a file mentions, those of its `tiers` first, and the index of each.
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
    let own = spec.limits.clone().map(|limits| ClientLimits { limits: limits.into(), valid_until: None });
    let tier = spec.tier.as_ref().and_then(|tier| set.tier_index(&tier.value));
    let tier_name = spec.tier.as_ref().map(|tier| tier.value.as_str().into());
    let record = ClientRecord { tier, tier_name, limits: own, valid_until: spec.valid_until };
    (spec.key.value.as_str().into(), record)
}

/// The key groups of a file: key, mode, and the most limits that one rule of the group has.
#[derive(Debug, Default)]
struct KeyGroups(Vec<(Box<[Dimension]>, Mode, usize)>);

impl KeyGroups {
    /// The number of the group for `key` and `mode`, to which a rule with up to `limits` limits is added.
    fn group_of(&mut self, key: &[Dimension], mode: Mode, limits: usize) -> u32 {
        let key = Dimension::key_group(key);
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
        if limits <= MAX_DRAWS && self.0.len() <= MAX_KEY_GROUPS {
            Ok(())
        } else {
            Err(TooManyLimits { limits })
        }
    }
}

/// An FNV-1a hash: the same for the same words in every process and version.
fn stable_hash(words: &[&str]) -> u64 {
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The rules could apply more limits to one request than are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a request could have to pass {limits} limits, and at most {MAX_DRAWS} are allowed: let fewer rules count by \
     different keys"
)]
pub struct TooManyLimits {
    /// The most limits that a request could have to pass.
    pub limits: usize,
}
