//! Warns if requests without a client key are not limited by anything.
//!
//! A rule that counts by the client key does not apply to requests without one, unless `missing` says otherwise. If
//! nothing else applies to such requests either, a client can avoid all limits by leaving the key out. The warning is
//! given once, at the first rule concerned.

use crate::diagnostic::Diagnostics;
use crate::dimension::Dimension;
use crate::spec::{FileSpec, MatchSpec, MissingKey, Mode, Position, RuleSpec};

pub(super) fn check(spec: &FileSpec, diagnostics: &mut Diagnostics) {
    if diagnostics.errors() > 0 || fallback_handles_keyless(spec) {
        return;
    }
    let enforced = || spec.rules.iter().filter(|rule| rule.mode == Mode::Enforced);
    let limiting: Vec<&MatchSpec> =
        enforced().filter(|rule| applies_to_keyless(rule, spec.missing)).map(|rule| &rule.when).collect();
    if limiting.contains(&&MatchSpec::default()) {
        return;
    }
    let skipping = enforced().filter(|rule| {
        let is_for_others = rule.when.api_key.is_some() || !rule.when.descriptor.is_empty();
        let is_unlimited = rule.limits.as_ref().is_some_and(Vec::is_empty);
        needs_key(&rule.key)
            && is_unset(rule.missing, spec.missing)
            && !is_for_others
            && !is_unlimited
            && !limiting.contains(&&rule.when)
    });
    let fallback =
        spec.default.iter().filter(|fallback| !fallback.limits.is_empty()).map(|fallback| fallback.place);
    let places: Vec<Position> = skipping.map(|rule| rule.id.place).chain(fallback).collect();
    let Some(first) = places.first() else { return };
    let more = match places.len() {
        1 => String::new(),
        count => format!(" (nor by {} more)", count - 1),
    };
    let message = format!(
        "requests without a client key are not limited by this{more}, nor by anything else: write key: client to \
         count them by address, missing: refuse to deny them, or missing: skip to let them pass"
    );
    diagnostics.warn(*first, message);
}

/// Whether the fallback applies to requests that have an address but no key, or `missing` says what to do with them.
fn fallback_handles_keyless(spec: &FileSpec) -> bool {
    let default_tier = || {
        let name = &spec.default_tier.as_ref()?.value;
        spec.tiers.iter().find(|tier| tier.name.value == *name)?.limits.as_ref()
    };
    match &spec.default {
        Some(fallback) => !needs_key(&fallback.key) || !is_unset(fallback.missing, spec.missing),
        None => default_tier().is_some(),
    }
}

/// Whether a rule applies to requests that have an address but no key.
fn applies_to_keyless(rule: &RuleSpec, of_file: Option<MissingKey>) -> bool {
    let is_known = |dimension: &Dimension| {
        use Dimension::{Client, Endpoint, Ip, Method, Path};
        matches!(dimension, Client | Ip | Endpoint | Path | Method)
    };
    let handles_missing = rule.missing.or(of_file).is_some_and(|missing| missing != MissingKey::Skip);
    rule.when.api_key.is_none() && (handles_missing || rule.key.iter().all(is_known))
}

fn needs_key(key: &[Dimension]) -> bool {
    key.contains(&Dimension::ApiKey)
}

/// Whether `missing` is set neither here nor for the whole file.
fn is_unset(own: Option<MissingKey>, of_file: Option<MissingKey>) -> bool {
    own.or(of_file).is_none()
}
