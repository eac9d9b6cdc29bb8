//! What is wrong between the parts of a file, each of which is in order by itself.

mod draws;
mod keyless;
mod lists;
mod unreachable;

use crate::diagnostic::{Diagnostic, Diagnostics, quoted};
use crate::expression::ExpressionMemory;
use crate::read::TierNames;
use crate::spec::{Consistency, FileSpec, Mode, RuleSpec};
use ratekeeper_core::Algorithm;
use std::collections::HashMap;

/// What is wrong between the parts of a spec that was not read from a file: one from a database, or imported. What
/// [`read`](crate::read) returns has been through this already.
pub fn validate(spec: &FileSpec) -> Vec<Diagnostic> {
    let mut complaints = Diagnostics::default();
    tiers(spec, &mut complaints);
    expressions(spec, &mut complaints);
    cross(spec, &[], &mut complaints);
    complaints.finish()
}

/// Checks all but the names of tiers. Rules that are `unsound`, by index, were not read in full: they may have the
/// same name as another, but whom they bind is not known.
pub(crate) fn cross(spec: &FileSpec, unsound: &[bool], complaints: &mut Diagnostics) {
    ids(&spec.rules, complaints);
    inheritance(spec, unsound, complaints);
    leases(spec, complaints);
    lists::check(spec, complaints);
    draws::check(spec, complaints);
    unreachable::check(spec, unsound, complaints);
    keyless::check(spec, complaints);
}

fn ids(rules: &[RuleSpec], complaints: &mut Diagnostics) {
    let mut lines = HashMap::new();
    for RuleSpec { id, .. } in rules {
        // An id that could not be read has been complained of.
        if id.value.is_empty() {
            continue;
        }
        if let Some(line) = lines.insert(&*id.value, id.place.line) {
            let said = format!(
                "the id {} is taken by the rule in line {line}: give this one another",
                quoted(&id.value)
            );
            complaints.error(id.place, said);
        }
    }
}

/// A rule without limits holds whoever it binds to those of the client, its tier or the default.
fn inheritance(spec: &FileSpec, unsound: &[bool], complaints: &mut Diagnostics) {
    let has_base = spec.default.is_some()
        || spec.tiers.iter().any(|tier| tier.limits.is_some())
        || spec.clients.iter().any(|client| client.limits.is_some());
    if has_base {
        return;
    }
    let is_sound = |index: usize| !unsound.get(index).copied().unwrap_or(false);
    let sound = spec.rules.iter().enumerate().filter(|(index, _)| is_sound(*index)).map(|(_, rule)| rule);
    for rule in sound.filter(|rule| rule.limits.is_none()) {
        let said = "the rule has no limit, and there is no default to inherit one from: add one, like limit: \
                    100/min burst 20";
        complaints.error(rule.id.place, said);
    }
}

fn leases(spec: &FileSpec, complaints: &mut Diagnostics) {
    if spec.consistency != Some(Consistency::Leased) {
        return;
    }
    for rule in spec.rules.iter().filter(|rule| rule.consistency.is_none() && rule.mode != Mode::Disabled) {
        if rule.limits.iter().flatten().any(|limit| matches!(limit.law(), Algorithm::SlidingWindowLog(_))) {
            let said = "a sliding_window_log can't be leased, so this rule is counted exactly: write \
                        consistency: exact here";
            complaints.warn(rule.id.place, said);
        }
    }
}

/// A reader stops at the bound; a spec from elsewhere has its expressions already.
fn expressions(spec: &FileSpec, complaints: &mut Diagnostics) {
    let mut all = ExpressionMemory::default();
    for rule in &spec.rules {
        rule.when.path.iter().for_each(|path| all.add(path));
        if all.are_too_large() {
            complaints.error(rule.id.place, ExpressionMemory::too_large());
            return;
        }
    }
}

/// Places in a file are known while it is read, so there names are checked as they come.
fn tiers(spec: &FileSpec, complaints: &mut Diagnostics) {
    if spec.tiers.is_empty() {
        return;
    }
    let tiers = TierNames::new(spec.tiers.iter().map(|tier| &*tier.name.value).collect());
    for rule in &spec.rules {
        for name in rule.when.rule_tier.iter().chain(&rule.when.tiers) {
            if let Some(said) = tiers.complaint(name) {
                complaints.error(rule.id.place, said);
            }
        }
    }
    let named = spec.clients.iter().filter_map(|client| client.tier.as_ref()).chain(&spec.default_tier);
    for tier in named {
        if let Some(said) = tiers.complaint(&tier.value) {
            complaints.error(tier.place, said);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper_core::Micros;

    #[test]
    fn a_spec_from_elsewhere_is_checked_too() {
        let text = "rules: [{id: r, tier: pro, match: {tier: [pro, fre]}, limit: 1/s}]\ntiers: {free: 1/s, \
                    pro: 2/s, fre: 3/s}\nmissing: skip";
        let mut spec = crate::read(text, Micros::EPOCH).spec.expect("the file is in order");
        assert_eq!(validate(&spec), []);
        spec.tiers.pop();
        spec.rules.push(spec.rules[0].clone());
        let said: Vec<_> = validate(&spec).into_iter().map(|complaint| complaint.said).collect();
        assert!(said.iter().any(|said| said == "there is no tier \"fre\": did you mean free?"), "{said:#?}");
        assert!(
            said.iter().any(|said| said.starts_with(
                "the id \"r\" is taken by the rule in line \
                                                         1"
            )),
            "{said:#?}"
        );
        assert!(
            said.iter().any(|said| said.starts_with(
                "the rule is never used: \"r\" in line \
                                                         1"
            )),
            "{said:#?}"
        );
    }
}
