//! Requests without a client's key that nothing binds.
//!
//! A rule that counts by the key does not bind a request without one, unless it says otherwise. If nothing else binds
//! such requests either, whoever leaves the key out is held to nothing. That is told once, at the first rule it is true
//! of.

use crate::diagnostic::Diagnostics;
use crate::dimension::Dimension;
use crate::spec::{FileSpec, MatchSpec, MissingKey, Mode, Position, RuleSpec};

pub(super) fn check(spec: &FileSpec, complaints: &mut Diagnostics) {
    if complaints.errors() > 0 || base_binds(spec) {
        return;
    }
    let enforced = || spec.rules.iter().filter(|rule| rule.mode == Mode::Enforced);
    let binding: Vec<&MatchSpec> =
        enforced().filter(|rule| binds_keyless(rule, spec.missing)).map(|rule| &rule.when).collect();
    if binding.contains(&&MatchSpec::default()) {
        return;
    }
    let passed = enforced().filter(|rule| {
        let is_for_others = rule.when.api_key.is_some() || !rule.when.descriptor.is_empty();
        let is_unlimited = rule.limits.as_ref().is_some_and(Vec::is_empty);
        needs_key(&rule.key)
            && is_unsaid(rule.missing, spec.missing)
            && !is_for_others
            && !is_unlimited
            && !binding.contains(&&rule.when)
    });
    let base = spec.default.iter().filter(|base| !base.limits.is_empty()).map(|base| base.place);
    let places: Vec<Position> = passed.map(|rule| rule.id.place).chain(base).collect();
    let Some(first) = places.first() else { return };
    let more = match places.len() {
        1 => String::new(),
        count => format!(" (nor by {} more)", count - 1),
    };
    let said = format!(
        "requests without a client's key are not bound by this{more}, and nothing else binds them: write key: \
         client to count them by their address, missing: refuse to deny them, or missing: skip if they may pass"
    );
    complaints.warn(*first, said);
}

/// Whether the base binds requests that have an address and no key, or says what to do with them.
fn base_binds(spec: &FileSpec) -> bool {
    let default_tier = || {
        let name = &spec.default_tier.as_ref()?.value;
        spec.tiers.iter().find(|tier| tier.name.value == *name)?.limits.as_ref()
    };
    match &spec.default {
        Some(base) => !needs_key(&base.key) || !is_unsaid(base.missing, spec.missing),
        None => default_tier().is_some(),
    }
}

/// Whether a rule binds requests that have an address and no key.
fn binds_keyless(rule: &RuleSpec, of_file: Option<MissingKey>) -> bool {
    let is_told = |dimension: &Dimension| {
        use Dimension::{Client, Endpoint, Ip, Method, Path};
        matches!(dimension, Client | Ip | Endpoint | Path | Method)
    };
    let is_bound = rule.missing.or(of_file).is_some_and(|missing| missing != MissingKey::Skip);
    rule.when.api_key.is_none() && (is_bound || rule.key.iter().all(is_told))
}

fn needs_key(key: &[Dimension]) -> bool {
    key.contains(&Dimension::ApiKey)
}

/// Whether nobody said what to do with requests that lack something of a key.
fn is_unsaid(own: Option<MissingKey>, of_file: Option<MissingKey>) -> bool {
    own.or(of_file).is_none()
}
