//! Checks between the parts of a file, each of which is valid by itself.

mod draws;
mod keyless;
mod lists;
mod unreachable;

use crate::diagnostic::{Diagnostic, Diagnostics, quoted};
use crate::expression::ExpressionMemory;
use crate::pattern::PathPattern;
use crate::spec::{Consistency, FileSpec, Mode, RuleSpec};
use crate::tier_names::TierNames;
use ratekeeper_core::Algorithm;
use std::collections::HashMap;

/// Checks a spec that was not parsed from a file, such as one from a database or an import. Specs from
/// [`read`](crate::read) have already passed these checks.
pub fn validate(spec: &FileSpec) -> Vec<Diagnostic> {
    let mut diagnostics = Diagnostics::default();
    check_tiers(spec, &mut diagnostics);
    check_expression_size(spec, &mut diagnostics);
    cross_check(spec, &[], &mut diagnostics);
    diagnostics.finish()
}

/// Checks everything but tier names and the size of expressions, which the parser checks itself. `incomplete` marks, by
/// index, rules that could not be fully parsed: their ids are checked, but which requests they match is unknown.
pub(crate) fn cross_check(spec: &FileSpec, incomplete: &[bool], diagnostics: &mut Diagnostics) {
    check_ids(&spec.rules, diagnostics);
    check_inheritance(spec, incomplete, diagnostics);
    check_leases(spec, diagnostics);
    lists::check(spec, diagnostics);
    draws::check(spec, diagnostics);
    unreachable::check(spec, incomplete, diagnostics);
    keyless::check(spec, diagnostics);
}

fn check_ids(rules: &[RuleSpec], diagnostics: &mut Diagnostics) {
    let mut lines = HashMap::new();
    for RuleSpec { id, .. } in rules {
        // An id that could not be read is empty, and has been reported.
        if id.value.is_empty() {
            continue;
        }
        if let Some(line) = lines.insert(&*id.value, id.place.line) {
            let message = format!(
                "the id {} is already used by the rule in line {line}: choose another one",
                quoted(&id.value)
            );
            diagnostics.error(id.place, message);
        }
    }
}

/// A rule without limits inherits those of the client, its tier or the default, so one of these must have limits.
fn check_inheritance(spec: &FileSpec, incomplete: &[bool], diagnostics: &mut Diagnostics) {
    let has_fallback = spec.default.is_some()
        || spec.tiers.iter().any(|tier| tier.limits.is_some())
        || spec.clients.iter().any(|client| client.limits.is_some());
    if has_fallback {
        return;
    }
    let is_complete = |index: usize| !incomplete.get(index).copied().unwrap_or(false);
    let complete =
        spec.rules.iter().enumerate().filter(|(index, _)| is_complete(*index)).map(|(_, rule)| rule);
    for rule in complete.filter(|rule| rule.limits.is_none()) {
        let message = "the rule has no limit, and there is no default to inherit one from: add one, like limit: \
                    100/min burst 20";
        diagnostics.error(rule.id.place, message);
    }
}

fn check_leases(spec: &FileSpec, diagnostics: &mut Diagnostics) {
    if spec.consistency != Some(Consistency::Leased) {
        return;
    }
    for rule in spec.rules.iter().filter(|rule| rule.consistency.is_none() && rule.mode != Mode::Disabled) {
        if rule
            .limits
            .iter()
            .flatten()
            .any(|limit| matches!(limit.algorithm(), Algorithm::SlidingWindowLog(_)))
        {
            let message = "a sliding_window_log can't be leased, so this rule is counted exactly: write \
                        consistency: exact here";
            diagnostics.warn(rule.id.place, message);
        }
    }
}

/// The parser checks the total size while it compiles expressions; a spec from elsewhere is checked here.
fn check_expression_size(spec: &FileSpec, diagnostics: &mut Diagnostics) {
    let mut all = ExpressionMemory::default();
    for rule in &spec.rules {
        rule.when.path.iter().filter_map(PathPattern::expression).for_each(|expression| all.add(expression));
        if all.exceeds_limit() {
            diagnostics.error(rule.id.place, ExpressionMemory::limit_error());
            return;
        }
    }
}

/// The parser checks names itself, because only it knows the position of each name.
fn check_tiers(spec: &FileSpec, diagnostics: &mut Diagnostics) {
    if spec.tiers.is_empty() {
        return;
    }
    let tiers = TierNames::new(spec.tiers.iter().map(|tier| &*tier.name.value).collect());
    for rule in &spec.rules {
        for name in rule.when.rule_tier.iter().chain(&rule.when.tiers) {
            if let Some(message) = tiers.error_for(name) {
                diagnostics.error(rule.id.place, message);
            }
        }
    }
    let named = spec.clients.iter().filter_map(|client| client.tier.as_ref()).chain(&spec.default_tier);
    for tier in named {
        if let Some(message) = tiers.error_for(&tier.value) {
            diagnostics.error(tier.place, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper_core::Micros;

    #[test]
    fn a_spec_that_was_not_parsed_from_a_file_is_checked() {
        let text = "rules: [{id: r, tier: pro, match: {tier: [pro, fre]}, limit: 1/s}]\ntiers: {free: 1/s, \
                    pro: 2/s, fre: 3/s}\nmissing: skip";
        let mut spec = crate::read(text, Micros::EPOCH).spec.expect("the file is valid");
        assert_eq!(validate(&spec), []);
        spec.tiers.pop();
        spec.rules.push(spec.rules[0].clone());
        let messages: Vec<_> = validate(&spec).into_iter().map(|diagnostic| diagnostic.message).collect();
        let has = |start: &str| messages.iter().any(|message| message.starts_with(start));
        let unknown = "there is no tier \"fre\": did you mean free?";
        assert!(messages.iter().any(|message| message == unknown), "{messages:#?}");
        assert!(has("the id \"r\" is already used by the rule in line 1"), "{messages:#?}");
        assert!(has("the rule is never used: \"r\" in line 1"), "{messages:#?}");
    }
}
