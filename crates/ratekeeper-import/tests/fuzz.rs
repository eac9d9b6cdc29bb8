//! Fuzz tests of the importers: any text is imported or rejected, and imported rules are valid.

use ratekeeper_core::Micros;
use ratekeeper_import::{ImportSource, import};
use ratekeeper_rules::{read, report};

/// Fragments of other limiters' files and common errors.
const IMPORT_FRAGMENTS: [&str; 32] = [
    "domain: edge\n",
    "descriptors:\n",
    "  - key: a\n",
    "    value: x\n",
    "    value: x*\n",
    "    value: '*'\n",
    "    rate_limit: {unit: day, requests_per_unit: 5}\n",
    "    rate_limit: {unlimited: true}\n",
    "    descriptors: [{key: b, rate_limit: {unit: week, requests_per_unit: 0}}, {key: c}]\n",
    "    descriptors: [{key: b, value: y, share_threshold: true}]\n",
    "    shadow_mode: true\n",
    "    share_threshold: true\n",
    "---\n",
    "- namespace: n\n",
    "  max_value: 5\n",
    "  max_value: 6\n",
    "  seconds: 60\n",
    "  seconds: 99999999999\n",
    "  conditions: [\"descriptors[0].a == 'x'\"]\n",
    "  conditions: [\"b == 'x' && descriptors[0]['c'] == \\\"y\\\"\"]\n",
    "  conditions: [a, \"'\", '==']\n",
    "  variables: [a]\n",
    "  variables: [b, path, \"descriptors[0].c\"]\n",
    "  name: é\n",
    "  - key: \"\\u2028\"\n",
    "    value: \"\\x07\"\n",
    "    value: ' '\n",
    "  - {key: null}\n",
    "  - []\n",
    "x",
    ": ",
    "'",
];

fn check_import(text: &str) {
    for source in [ImportSource::Envoy, ImportSource::Limitador] {
        let import = import(source, &[("f.yaml", text)]);
        report("f.yaml", text, &import.diagnostics[0]);
        let Some(rules) = import.text else { continue };
        let parsed = read(&rules, Micros::EPOCH);
        assert!(parsed.spec.is_some(), "{text}\n{rules}\n{}", parsed.report("rules.yaml", &rules));
    }
}

#[test]
fn import_of_fragments() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|choices: &Vec<u8>| {
        let piece = |choice: &u8| IMPORT_FRAGMENTS[usize::from(*choice) % IMPORT_FRAGMENTS.len()];
        check_import(&choices.iter().map(piece).collect::<String>());
    });
}

#[test]
fn import_of_any_bytes() {
    bolero::check!()
        .with_type::<Vec<u8>>()
        .for_each(|bytes: &Vec<u8>| check_import(&String::from_utf8_lossy(bytes)));
}
