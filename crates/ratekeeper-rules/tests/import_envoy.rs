//! What is imported from envoyproxy/ratelimit holds every descriptor to the limit that ratelimit would.
//!
//! Beside the importer stands a slow and plain model of ratelimit: it follows a descriptor through the tree, and takes at
//! each level the value that is written out, or else the first with a `*` that fits, or else the key alone.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use proptest::prelude::*;
use proptest::sample::select;
use ratekeeper_core::{Algorithm, Micros};
use ratekeeper_rules::{
    CheckRequest, Descriptor, DrawPlan, ImportOutcome, ImportSource, RuleSet, Verb, import, read,
};
use serde_json::{Value, json};
use std::collections::HashSet;

/// A descriptor of a ratelimit file.
#[derive(Clone, Debug)]
struct Node {
    key: &'static str,
    value: &'static str,
    limit: Limit,
    is_shadow: bool,
    is_shared: bool,
    children: Vec<Node>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    None,
    Unlimited,
    /// So many a minute; no two have the same.
    Amount(u32),
}

type Entries = Vec<(&'static str, &'static str)>;

impl Node {
    fn json(&self) -> Value {
        let mut value =
            json!({"key": self.key, "shadow_mode": self.is_shadow, "share_threshold": self.is_shared});
        if !self.value.is_empty() {
            value["value"] = json!(self.value);
        }
        match self.limit {
            Limit::None => {}
            Limit::Unlimited => value["rate_limit"] = json!({"unlimited": true}),
            Limit::Amount(amount) => {
                value["rate_limit"] = json!({"unit": "minute", "requests_per_unit": amount});
            }
        }
        if !self.children.is_empty() {
            value["descriptors"] = self.children.iter().map(Node::json).collect();
        }
        value
    }

    fn is_wild(&self) -> bool {
        self.value.ends_with('*')
    }
}

/// The node that ratelimit takes for an entry.
fn step<'n>(nodes: &'n [Node], (key, value): (&str, &str)) -> Option<&'n Node> {
    let of_key = || nodes.iter().filter(|node| node.key == key);
    of_key()
        .find(|node| !node.value.is_empty() && !node.is_wild() && node.value == value)
        .or_else(|| {
            of_key().find(|node| node.is_wild() && value.starts_with(&node.value[..node.value.len() - 1]))
        })
        .or_else(|| of_key().find(|node| node.value.is_empty()))
}

/// What ratelimit holds a descriptor to: the amount, whether in shadow, and the values that are counted apart.
fn model(mut nodes: &[Node], entries: &Entries) -> Option<(u32, bool, Vec<&'static str>)> {
    let mut counted = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let node = step(nodes, *entry)?;
        counted.push(if node.is_shared && node.is_wild() { node.value } else { entry.1 });
        if index + 1 == entries.len() {
            return match node.limit {
                Limit::Amount(amount) => Some((amount, node.is_shadow, counted)),
                Limit::None | Limit::Unlimited => None,
            };
        }
        nodes = &node.children;
    }
    None
}

/// What the imported rules hold a descriptor to: the same, with what tells its count from others instead of values.
fn imported(rules: &RuleSet, domain: &str, entries: &Entries) -> Vec<(u32, bool, (u64, Vec<u8>))> {
    let descriptor = Some(Descriptor { domain, entries });
    let mut plan = DrawPlan::new();
    plan.add(
        rules,
        Verb::Check,
        &CheckRequest { descriptor, attributes: entries, ..CheckRequest::new("") },
        || Micros::EPOCH,
    );
    let draws: Vec<_> = plan.bound(plan.cases()[0]).0.to_vec();
    let counted = |draw| plan.draws_mut().key(draw).bytes().to_vec();
    let keys: Vec<_> = draws.iter().map(counted).collect();
    let draws = draws.iter().zip(keys).map(|(draw, key)| {
        assert!(matches!(draw.limit().law(), Algorithm::FixedWindow(_)));
        (draw.limit().quota().amount(), draw.is_shadow(), (draw.scope().0, key))
    });
    draws.collect()
}

fn nodes(depth: u32) -> BoxedStrategy<Vec<Node>> {
    let limit = prop_oneof![1 => Just(Limit::None), 1 => Just(Limit::Unlimited), 4 => Just(Limit::Amount(0))];
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
    let node = node.prop_map(|(key, value, limit, is_shadow, is_shared, children)| Node {
        key,
        value,
        limit,
        is_shadow,
        is_shared,
        children,
    });
    // ratelimit refuses a file in which a descriptor is there twice.
    let unique = |nodes: Vec<Node>| {
        let mut known = HashSet::new();
        nodes.into_iter().filter(|node| known.insert((node.key, node.value))).collect()
    };
    prop::collection::vec(node, 0..6).prop_map(unique).boxed()
}

fn number(nodes: &mut [Node], next: &mut u32) {
    for node in nodes {
        if let Limit::Amount(amount) = &mut node.limit {
            *next += 1;
            *amount = *next;
        }
        number(&mut node.children, next);
    }
}

fn file(domain: &str, nodes: &[Node]) -> String {
    json!({"domain": domain, "descriptors": nodes.iter().map(Node::json).collect::<Vec<_>>()}).to_string()
}

fn descriptors() -> impl Strategy<Value = Vec<Entries>> {
    let entry = (select(&["a", "b"][..]), select(&["", "x", "xy", "xyz", "y", "z"][..]));
    prop::collection::vec(prop::collection::vec(entry, 1..4), 60)
}

/// What has no limit passes what is tried out and what is enforced behind it, though both are wider.
#[test]
fn what_has_no_limit_passes_on_every_track() {
    let node = |value, limit, is_shadow| Node {
        key: "a",
        value,
        limit,
        is_shadow,
        is_shared: false,
        children: Vec::new(),
    };
    let nodes = [
        node("x", Limit::None, false),
        node("x*", Limit::Amount(1), true),
        node("", Limit::Amount(2), false),
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
    fn every_descriptor_is_held_to_what_ratelimit_holds_it_to(
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
        let review = read(&text, Micros::EPOCH);
        let report = review.report("rules.yaml", &text);
        let Some(spec) = review.spec else { return Err(TestCaseError::fail(format!("{report}\n{text}"))) };
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
        // What can't be said of shared counts is told, and then each value has its own.
        if import.outcome == ImportOutcome::Whole {
            for ((one, own), (other, others)) in counts.iter().flat_map(|a| counts.iter().map(move |b| (a, b))) {
                prop_assert_eq!(one == other, own == others, "{:?} {:?}\n{}", one, other, text);
            }
        }
    }
}
