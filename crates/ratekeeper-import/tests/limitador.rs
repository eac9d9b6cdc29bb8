//! Rules imported from Limitador apply the same limits as Limitador, with the same counts.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use ratekeeper_core::{Algorithm, Align, Micros};
use ratekeeper_import::{ImportOutcome, ImportSource, import};
use ratekeeper_rules::{CheckRequest, Descriptor, DrawPlan, RuleSet, Verb, read};
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
struct LimitadorLimit {
    namespace: &'static str,
    /// Unique, so that it identifies the limit.
    max_value: u32,
    conditions: BTreeMap<&'static str, &'static str>,
    variables: Vec<&'static str>,
}

type Entries = BTreeMap<&'static str, &'static str>;

impl LimitadorLimit {
    fn json(&self) -> Value {
        let condition = |(name, value): (&&str, &&str)| match self.max_value % 3 {
            0 => format!("descriptors[0].{name} == '{value}'"),
            1 => format!("descriptors[0][\"{name}\"] == \"{value}\""),
            _ => format!("{name} == '{value}'"),
        };
        let variable = |name: &&str| format!("descriptors[0].{name}");
        json!({
            "namespace": self.namespace,
            "max_value": self.max_value,
            "seconds": 60,
            "conditions": self.conditions.iter().map(condition).collect::<Vec<_>>(),
            "variables": self.variables.iter().map(variable).collect::<Vec<_>>(),
        })
    }

    /// Returns the values that the limit counts by, or `None` if it does not apply.
    fn applies(&self, namespace: &str, entries: &Entries) -> Option<Vec<&'static str>> {
        let matches = self.conditions.iter().all(|(name, value)| entries.get(name) == Some(value));
        let values = self.variables.iter().map(|name| entries.get(name).copied()).collect::<Option<_>>();
        values.filter(|_| namespace == self.namespace && matches)
    }
}

fn limits() -> impl Strategy<Value = Vec<LimitadorLimit>> {
    let conditions = prop::collection::btree_map(select(&["a", "b", "c"][..]), select(&["x", "y"][..]), 0..3);
    let variables = subsequence(&["a", "b", "c", "d"][..], 0..3);
    let limit = (select(&["n", "m"][..]), conditions, variables);
    prop::collection::vec(limit, 0..8).prop_map(|limits| {
        let numbered = (1..).zip(limits);
        let limit = |(max_value, (namespace, conditions, variables))| LimitadorLimit {
            namespace,
            max_value,
            conditions,
            variables,
        };
        numbered.map(limit).collect()
    })
}

fn requests() -> impl Strategy<Value = Vec<(&'static str, Entries)>> {
    let name = select(&["a", "b", "c", "d"][..]);
    let entries = prop::collection::btree_map(name, select(&["x", "y", "z"][..]), 0..5);
    prop::collection::vec((select(&["n", "m", "o"][..]), entries), 40)
}

/// The limits that apply to a request: the amount, and the scope and key of the count.
fn imported(rules: &RuleSet, domain: &str, entries: &Entries) -> Vec<(u32, (u64, Vec<u8>))> {
    let entries: Vec<_> = entries.iter().map(|(name, value)| (*name, *value)).collect();
    let descriptor = Some(Descriptor { domain, entries: &entries });
    let mut plan = DrawPlan::new();
    plan.add(
        rules,
        Verb::Check,
        &CheckRequest { descriptor, attributes: &entries, ..CheckRequest::new("") },
        || Micros::EPOCH,
    );
    let draws: Vec<_> = plan.draws_of(plan.resolutions()[0]).0.to_vec();
    let mut found = Vec::new();
    for draw in &draws {
        assert_eq!(draw.limit().algorithm(), Algorithm::FixedWindow(Align::FirstHit));
        let key = plan.draws_mut().key(draw).bytes().to_vec();
        found.push((draw.limit().quota().amount(), (draw.scope().0, key)));
    }
    found.sort();
    found
}

proptest! {
    #[test]
    fn imported_rules_agree_with_the_model(limits in limits(), requests in requests()) {
        let text = Value::from(limits.iter().map(LimitadorLimit::json).collect::<Vec<_>>()).to_string();
        let import = import(ImportSource::Limitador, &[("limits.yaml", &text)]);
        let rules_text = import.text.unwrap();
        let parsed = read(&rules_text, Micros::EPOCH);
        let report = parsed.report("rules.yaml", &rules_text);
        let Some(spec) = parsed.spec else { return Err(TestCaseError::fail(format!("{report}\n{rules_text}"))) };
        let rules = RuleSet::compile(&spec).unwrap();
        let mut counts = Vec::new();
        for (namespace, entries) in &requests {
            let expected: Vec<_> =
                limits.iter().filter_map(|limit| Some((limit.max_value, limit.applies(namespace, entries)?))).collect();
            let found = imported(&rules, namespace, entries);
            let shown = || format!("{namespace} {entries:?}\n{text}\n{rules_text}");
            let amounts: Vec<_> = found.iter().map(|(amount, _)| *amount).collect();
            let all: Vec<_> = expected.iter().map(|(amount, _)| *amount).collect();
            match import.outcome {
                ImportOutcome::Complete => prop_assert_eq!(amounts, all, "{}", shown()),
                // Limits that were left out are reported; the others are unchanged.
                _ => prop_assert!(amounts.iter().all(|amount| all.contains(amount)), "{}", shown()),
            }
            counts.extend(expected.into_iter().filter_map(|(amount, values)| {
                let (_, count) = found.iter().find(|(known, _)| *known == amount)?;
                Some(((amount, values), count.clone()))
            }));
        }
        for ((one, own), (other, others)) in counts.iter().flat_map(|a| counts.iter().map(move |b| (a, b))) {
            prop_assert_eq!(one == other, own == others, "{:?} {:?}\n{}", one, other, rules_text);
        }
    }
}
