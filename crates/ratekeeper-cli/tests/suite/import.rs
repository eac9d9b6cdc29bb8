//! `ratekeeper rules import`: rules of other rate limiters, and diagnostics for items that cannot be translated.

use crate::support::{Folder, assert_output, ratekeeper, run_with_input};
use serde_json::json;
use std::fs;

const EDGE: &str = "\
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {unit: minute, requests_per_unit: 60}
  - key: remote_address
    value: 192.0.2.1
    rate_limit: {unlimited: true}
";

const EDGE_RULES: &str = "\
# Imported from edge.yaml (envoyproxy/ratelimit).
# Of the rules that match, the first applies; in ratelimit, the most specific descriptor does.
rules:
  - id: edge:remote_address.192.0.2.1
    match: {domain: edge, descriptor: [remote_address: 192.0.2.1]}
    limit: unlimited
  - id: edge:remote_address
    match: {domain: edge, descriptor: [remote_address]}
    limit: 60/min
    algorithm: fixed_window
";

/// One limit that can be translated, and one that cannot.
const LIMITS: &str = "\
- {namespace: shop, max_value: 5, seconds: 60, conditions: [], variables: [user]}
- {namespace: shop, max_value: 9, seconds: 60, conditions: [size(user) > 3], variables: [user]}
";

#[test]
fn rules_of_other_limiters_are_imported() {
    let folder = Folder::new(&[("edge.yaml", EDGE), ("limits.yaml", LIMITS)]);
    assert_output(&folder.rules(&["import", "--from", "envoy", "edge.yaml"]), 0, EDGE_RULES);
    let output = folder.rules(&["import", "--from", "limitador", "limits.yaml", "--output", "rules.yaml"]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""));
    let lines: Vec<_> = output.stderr.lines().collect();
    assert!(
        lines[0].starts_with("limits.yaml:2:61: error: the condition \"size(user) > 3\" can't be translated"),
        "{output:?}"
    );
    assert_eq!(lines[3], "limits.yaml: 1 item was not imported exactly");
    assert_output(&folder.rules(&["check", "rules.yaml"]), 0, "rules.yaml: ok: 1 rule\n");

    let json = folder.rules(&["import", "--from", "limitador", "limits.yaml", "--format", "json"]);
    let list: serde_json::Value = serde_json::from_str(&json.stderr).unwrap();
    assert_eq!((json.code, list.as_array().unwrap().len()), (Some(1), 1));
    assert_eq!(
        (&list[0]["file"], &list[0]["line"], &list[0]["column"], &list[0]["severity"]),
        (&json!("limits.yaml"), &json!(2), &json!(61), &json!("error"))
    );
    let json = folder.rules(&["import", "--from", "envoy", "edge.yaml", "--format", "json"]);
    assert_eq!((json.code, json.stdout.as_str(), json.stderr.as_str()), (Some(0), EDGE_RULES, "[]\n"));
}

#[test]
fn an_import_overwrites_a_file_only_with_force() {
    let folder = Folder::new(&[("edge.yaml", EDGE), ("rules.yaml", "mine")]);
    let arguments = ["import", "--from", "envoy", "edge.yaml", "--output", "rules.yaml"];
    let output = folder.rules(&arguments);
    assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""));
    assert_eq!(
        output.stderr,
        "error: rules.yaml already exists: choose another file, or pass --force to overwrite it\n"
    );
    let written = || fs::read_to_string(folder.0.path().join("rules.yaml")).unwrap();
    assert_eq!(written(), "mine");
    assert_output(&folder.rules(&[&arguments[..], &["--force"]].concat()), 0, "");
    assert_eq!(written(), EDGE_RULES);
}

#[test]
fn an_unusable_input_file_exits_with_2() {
    let inner = EDGE.replace("edge", "inner");
    let folder = Folder::new(&[("edge.yaml", EDGE), ("inner.yaml", &inner), ("bad.yaml", "domain: [")]);
    let several = folder.rules(&["import", "--from", "envoy", "edge.yaml", "inner.yaml"]);
    assert_eq!((several.code, several.stderr.as_str()), (Some(0), ""));
    assert!(
        several.stdout.contains("{domain: edge,") && several.stdout.contains("{domain: inner,"),
        "{several:?}"
    );

    let bad = folder.rules(&["import", "--from", "envoy", "bad.yaml", "--output", "rules.yaml"]);
    assert_eq!((bad.code, bad.stdout.as_str()), (Some(2), ""));
    assert!(bad.stderr.starts_with("bad.yaml:1:9: error: [ is opened here and never closed"), "{bad:?}");
    assert!(!folder.0.path().join("rules.yaml").exists());

    let some = folder.rules(&["import", "--from", "envoy", "edge.yaml", "none.yaml"]);
    assert_eq!((some.code, some.stdout.as_str()), (Some(2), EDGE_RULES));
    assert!(some.stderr.contains("error: cannot read none.yaml: No such file"), "{some:?}");
    let none = folder.rules(&["import", "--from", "envoy", "none.yaml"]);
    assert_eq!((none.code, none.stdout.as_str()), (Some(2), ""));
    for arguments in [
        &["import", "edge.yaml"][..],
        &["import", "--from", "nginx", "edge.yaml"],
        &["import", "--from", "envoy"],
        &["import", "--from", "envoy", "edge.yaml", "--force"],
    ] {
        assert_eq!(folder.rules(arguments).code, Some(2), "{arguments:?}");
    }
    let piped = run_with_input(
        ratekeeper(&["rules", "import", "--from", "envoy", "-"]).args([""; 0]),
        EDGE.as_bytes(),
    );
    assert_eq!((piped.code, piped.stdout), (Some(0), EDGE_RULES.replace("edge.yaml", "stdin")));
}
