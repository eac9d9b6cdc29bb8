//! Rules imported from envoyproxy/ratelimit apply the same limits as ratelimit.
//!
//! The importer is compared with a simple model of ratelimit, which follows a descriptor through the tree. At each
//! level it takes the entry with the exact value, else the first matching one with a `*`, else the one without a
//! value.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use proptest::prelude::*;
use proptest::sample::select;
use ratekeeper_core::{Algorithm, Micros};
use ratekeeper_import::{ImportOutcome, ImportSource, import};
use ratekeeper_rules::{CheckRequest, Descriptor, DrawPlan, RuleSet, Verb, read};
use serde_json::{Value, json};
use std::collections::HashSet;

/// A descriptor of a ratelimit file.
#[derive(Clone, Debug)]
struct ModelNode {
    key: &'static str,
    value: &'static str,
    limit: ModelLimit,
    is_shadow: bool,
    is_shared: bool,
    children: Vec<ModelNode>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ModelLimit {
    None,
    Unlimited,
    /// Requests per minute; unique, so that it identifies the limit.
    Amount(u32),
}

type Entries = Vec<(&'static str, &'static str)>;

impl ModelNode {
    fn json(&self) -> Value {
        let mut value =
            json!({"key": self.key, "shadow_mode": self.is_shadow, "share_threshold": self.is_shared});
        if !self.value.is_empty() {
            value["value"] = json!(self.value);
        }
        match self.limit {
            ModelLimit::None => {}
            ModelLimit::Unlimited => value["rate_limit"] = json!({"unlimited": true}),
            ModelLimit::Amount(amount) => {
                value["rate_limit"] = json!({"unit": "minute", "requests_per_unit": amount});
            }
        }
        if !self.children.is_empty() {
            value["descriptors"] = self.children.iter().map(ModelNode::json).collect();
        }
        value
    }

    fn is_wild(&self) -> bool {
        self.value.ends_with('*')
    }
}

/// The node that ratelimit selects for an entry.
fn step<'n>(nodes: &'n [ModelNode], (key, value): (&str, &str)) -> Option<&'n ModelNode> {
    let of_key = || nodes.iter().filter(|node| node.key == key);
    of_key()
        .find(|node| !node.value.is_empty() && !node.is_wild() && node.value == value)
        .or_else(|| {
            of_key().find(|node| node.is_wild() && value.starts_with(&node.value[..node.value.len() - 1]))
        })
        .or_else(|| of_key().find(|node| node.value.is_empty()))
}

/// The limit that ratelimit applies to a descriptor: the amount, whether in shadow, and the values counted by.
fn model(mut nodes: &[ModelNode], entries: &Entries) -> Option<(u32, bool, Vec<&'static str>)> {
    let mut counted = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let node = step(nodes, *entry)?;
        counted.push(if node.is_shared && node.is_wild() { node.value } else { entry.1 });
        if index + 1 == entries.len() {
            return match node.limit {
                ModelLimit::Amount(amount) => Some((amount, node.is_shadow, counted)),
                ModelLimit::None | ModelLimit::Unlimited => None,
            };
        }
        nodes = &node.children;
    }
    None
}

/// The limits that the imported rules apply to a descriptor: the same, with the scope and key of the count instead of
/// values.
fn imported(rules: &RuleSet, domain: &str, entries: &Entries) -> Vec<(u32, bool, (u64, Vec<u8>))> {
    let descriptor = Some(Descriptor { domain, entries });
    let mut plan = DrawPlan::new();
    plan.add(
        rules,
        Verb::Check,
        &CheckRequest { descriptor, attributes: entries, ..CheckRequest::new("") },
        || Micros::EPOCH,
    );
    let draws: Vec<_> = plan.draws_of(plan.resolutions()[0]).0.to_vec();
    let key = |draw| plan.draws_mut().key(draw).bytes().to_vec();
    let keys: Vec<_> = draws.iter().map(key).collect();
    let draws = draws.iter().zip(keys).map(|(draw, key)| {
        assert!(matches!(draw.limit().algorithm(), Algorithm::FixedWindow(_)));
        (draw.limit().quota().amount(), draw.is_shadow(), (draw.scope().0, key))
    });
    draws.collect()
}

fn nodes(depth: u32) -> BoxedStrategy<Vec<ModelNode>> {
    let limit = prop_oneof![1 => Just(ModelLimit::None), 1 => Just(ModelLimit::Unlimited), 4 => Just(ModelLimit::Amount(0))];
    let children = match depth {
        0 => Just(Vec::new()).boxed(),
        depth => prop_oneof![1 => Just(Vec::new()).boxed(), 2 => nodes(depth - 1)].boxed(),
    };
    let node = (
        select(&["a", "b"][..]),
        select(&["", "", "x", "xy", "y", "x*", "xy*", "*"][..]),
        limit,
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        children,
    );
    let node = node.prop_map(|(key, value, limit, is_shadow, is_shared, children)| ModelNode {
        key,
        value,
        limit,
        is_shadow,
        is_shared,
        children,
    });
    // ratelimit rejects duplicate descriptors.
    let unique = |nodes: Vec<ModelNode>| {
        let mut known = HashSet::new();
        nodes.into_iter().filter(|node| known.insert((node.key, node.value))).collect()
    };
    prop::collection::vec(node, 0..6).prop_map(unique).boxed()
}

fn number(nodes: &mut [ModelNode], next: &mut u32) {
    for node in nodes {
        if let ModelLimit::Amount(amount) = &mut node.limit {
            *next += 1;
            *amount = *next;
        }
        number(&mut node.children, next);
    }
}

fn file(domain: &str, nodes: &[ModelNode]) -> String {
    json!({"domain": domain, "descriptors": nodes.iter().map(ModelNode::json).collect::<Vec<_>>()})
        .to_string()
}

fn descriptors() -> impl Strategy<Value = Vec<Entries>> {
    let entry = (select(&["a", "b"][..]), select(&["", "x", "xy", "xyz", "y", "z"][..]));
    prop::collection::vec(prop::collection::vec(entry, 1..4), 60)
}

/// An entry without a limit passes the wider limits after it, whether they are in shadow or enforced.
#[test]
fn an_entry_without_a_limit_passes_in_every_key_group() {
    let node = |value, limit, is_shadow| ModelNode {
        key: "a",
        value,
        limit,
        is_shadow,
        is_shared: false,
        children: Vec::new(),
    };
    let nodes = [
        node("x", ModelLimit::None, false),
        node("x*", ModelLimit::Amount(1), true),
        node("", ModelLimit::Amount(2), false),
    ];
    let text = file("edge", &nodes);
    let import = import(ImportSource::Envoy, &[("edge.yaml", &text)]);
    let spec = read(&import.text.unwrap(), Micros::EPOCH).spec.unwrap();
    let rules = RuleSet::compile(&spec).unwrap();
    let amounts = |value: &'static str| -> Vec<_> {
        imported(&rules, "edge", &vec![("a", value)]).into_iter().map(|(amount, ..)| amount).collect()
    };
    assert_eq!([amounts("x"), amounts("xy"), amounts("y")], [vec![], vec![1], vec![2]]);
}

proptest! {
    #[test]
    fn imported_rules_agree_with_the_model(
        mut edge in nodes(2),
        mut inner in nodes(1),
        descriptors in descriptors(),
    ) {
        let mut next = 0;
        number(&mut edge, &mut next);
        number(&mut inner, &mut next);
        let texts = [file("edge", &edge), file("inner", &inner)];
        let import = import(ImportSource::Envoy, &[("edge.yaml", &texts[0]), ("inner.yaml", &texts[1])]);
        let text = import.text.unwrap();
        let parsed = read(&text, Micros::EPOCH);
        let report = parsed.report("rules.yaml", &text);
        let Some(spec) = parsed.spec else { return Err(TestCaseError::fail(format!("{report}\n{text}"))) };
        let rules = RuleSet::compile(&spec).unwrap();
        let mut counts = Vec::new();
        for (domain, nodes) in [("edge", &edge), ("inner", &inner), ("other", &Vec::new())] {
            for entries in &descriptors {
                let expected = model(nodes, entries);
                let found = imported(&rules, domain, entries);
                let shown = || format!("{domain} {entries:?}\n{}\n{text}", texts.join("\n"));
                let limits: Vec<_> = found.iter().map(|(amount, is_shadow, _)| (*amount, *is_shadow)).collect();
                let expected_limits: Vec<_> =
                    expected.iter().map(|(amount, is_shadow, _)| (*amount, *is_shadow)).collect();
                prop_assert_eq!(limits, expected_limits, "{}", shown());
                if let (Some((amount, _, values)), [(_, _, count)]) = (expected, found.as_slice()) {
                    let names: Vec<_> = entries.iter().map(|(name, _)| *name).collect();
                    counts.push(((amount, names, values), count.clone()));
                }
            }
        }
        // Where a shared count can't be translated, that is reported, and each value has its own count.
        if import.outcome == ImportOutcome::Complete {
            for ((one, own), (other, others)) in counts.iter().flat_map(|a| counts.iter().map(move |b| (a, b))) {
                prop_assert_eq!(one == other, own == others, "{:?} {:?}\n{}", one, other, text);
            }
        }
    }
}
