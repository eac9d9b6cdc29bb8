//! `ratekeeper rules`: output and exit codes of its subcommands.

use crate::support::{Folder, assert_output, ratekeeper, run, run_with_input};
use serde_json::json;

/// The example rule file of the design document, verbatim.
const DESIGN: &str = r#"rules:
  - id: "rule_001"
    version: 42
    tier: "pro"
    match:
      api_key_pattern: "sk_prod_*"
      endpoint_regex: "^/v1/orders.*"
    algorithm: "token_bucket"
    params: { capacity: 100, refill_rate: 1.67, window: 60 }
    override:
      "sk_prod_vip_001": { capacity: 1000, refill_rate: 16.67 }
  - id: "rule_002"
    tier: "free"
    match: { api_key_pattern: "sk_free_*", endpoint_regex: ".*" }
    algorithm: "sliding_window_counter"
    params: { limit: 100, window: 60 }
whitelist: ["sk_internal_*", "sk_monitoring_*"]
blacklist: ["sk_revoked_*", "sk_abuse_flagged_*"]
"#;

/// Two errors in four lines.
const BAD: &str = "rules:\n  - id: a\n    limit: 0/s\n    colour: red\n";

/// Valid, except for a warning about an expired override.
const STALE: &str = "\
rules:
  - id: a
    limit: 5/s
    override:
      old: {limit: 900/s, valid_until: 2020-01-01}
missing: skip
";

#[test]
fn the_design_example_is_valid() {
    let folder = Folder::new(&[("design.yaml", DESIGN)]);
    assert_output(
        &folder.rules(&["check", "design.yaml"]),
        0,
        "design.yaml: ok: 2 rules, 2 allowed, 2 denied, 1 expression of 2 KiB\n",
    );
    assert_output(&folder.rules(&["check", "design.yaml", "--format", "json"]), 0, "[]\n");
}

#[test]
fn all_errors_of_all_files_are_reported_with_their_positions() {
    let folder = Folder::new(&[("bad.yaml", BAD), ("stale.yaml", STALE), ("design.yaml", DESIGN)]);
    let output = folder.rules(&["check", "bad.yaml", "stale.yaml", "design.yaml"]);
    let unknown = "unknown field \"colour\": the fields here are id, version, description,";
    let stale = "the override has expired (its valid_until is in the past): leave it out";
    assert_eq!((output.code, output.stderr.as_str()), (Some(1), ""));
    let lines: Vec<_> = output.stdout.lines().collect();
    assert_eq!(
        lines[..3],
        [
            "bad.yaml:3:12: error: an amount of 0 would deny everything: write at least 1, or put the key on a deny list",
            "    3 |     limit: 0/s",
            "      |            ^",
        ]
    );
    assert!(lines[3].starts_with(&format!("bad.yaml:4:5: error: {unknown}")), "{output:?}");
    assert_eq!(lines[6], "bad.yaml: 2 errors");
    assert_eq!(lines[7], format!("stale.yaml:5:7: warning: {stale}"));
    assert_eq!(
        lines[10..],
        ["stale.yaml: ok: 1 rule", "design.yaml: ok: 2 rules, 2 allowed, 2 denied, 1 expression of 2 KiB"]
    );

    let output = folder.rules(&["check", "stale.yaml", "bad.yaml", "--format", "json"]);
    let list = output.json();
    assert_eq!((output.code, list.as_array().unwrap().len()), (Some(1), 3));
    assert_eq!(
        list[0],
        json!({
            "file": "stale.yaml", "line": 5, "column": 7, "severity": "warning", "message": stale,
            "source": "      old: {limit: 900/s, valid_until: 2020-01-01}",
        })
    );
    assert_eq!(
        (&list[2]["file"], &list[2]["line"], &list[2]["severity"]),
        (&json!("bad.yaml"), &json!(4), &json!("error"))
    );
    assert!(list[2]["message"].as_str().unwrap().starts_with(unknown), "{list}");
}

#[test]
fn a_warning_alone_is_not_a_failure() {
    let folder = Folder::new(&[("stale.yaml", STALE)]);
    assert_eq!(folder.rules(&["check", "stale.yaml"]).code, Some(0));
    assert_eq!(folder.rules(&["check", "stale.yaml", "--format", "json"]).code, Some(0));
}

#[test]
fn an_unreadable_file_exits_with_2_and_others_are_still_checked() {
    let folder = Folder::new(&[("bad.yaml", BAD)]);
    let output = folder.rules(&["check", "none.yaml", "bad.yaml", "."]);
    assert_eq!(output.code, Some(2));
    assert!(output.stdout.ends_with("bad.yaml: 2 errors\n"), "{output:?}");
    assert_eq!(
        output.stderr,
        "error: cannot read none.yaml: No such file or directory (os error 2)\n\
         error: cannot read .: Is a directory (os error 21)\n"
    );
    for arguments in [&["explain", "none.yaml", "--key", "a"][..], &["diff", "bad.yaml", "none.yaml"]] {
        let output = folder.rules(arguments);
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(output.stderr.contains("cannot read none.yaml: No such file"), "{output:?}");
    }
    for arguments in [
        &[][..],
        &["check"],
        &["check", "bad.yaml", "--format", "xml"],
        &["explain", "bad.yaml", "--ip", "x"],
    ] {
        assert_eq!(folder.rules(arguments).code, Some(2), "{arguments:?}");
    }
}

#[test]
fn rules_may_come_on_stdin() {
    let piped =
        |arguments: &[&str], text: &[u8]| run_with_input(ratekeeper(&["rules"]).args(arguments), text);
    assert_output(
        &piped(&["check", "-"], DESIGN.as_bytes()),
        0,
        "stdin: ok: 2 rules, 2 allowed, 2 denied, 1 expression of 2 KiB\n",
    );
    let bad = piped(&["check", "-"], BAD.as_bytes());
    assert!(bad.code == Some(1) && bad.stdout.starts_with("stdin:3:12: error: an amount of 0 "), "{bad:?}");
    let explained = piped(&["explain", "-", "--key", "sk_free_1"], DESIGN.as_bytes());
    assert!(explained.code == Some(0) && explained.stdout.contains("* rule_002: applies: "), "{explained:?}");
    let strange = piped(&["check", "-"], b"rules: \xff");
    assert_eq!(strange.code, Some(2));
    assert!(
        strange.stderr.starts_with("error: cannot read stdin: it is not valid UTF-8: save it as"),
        "{strange:?}"
    );
}

/// One rule for each reason to apply or not to apply.
const EVERY_REASON: &str = r#"
rules:
  - id: vip
    match: {api_key: "sk_vip_*"}
    limit: 50/s
    override:
      sk_vip_one: 500/s
      sk_vip_old: {limit: 900/s, valid_until: 2020-01-01}
      sk_vip_new: {limit: 900/s, valid_until: 2099-01-01}
  - id: orders
    match: {path: "/orders/{id}", method: [GET, POST]}
    limits: [10/s, 1000/h]
  - id: region
    match: {attributes: {region: eu}}
    key: [region]
    limit: 100/s
  - id: office
    match: {ip: [10.0.0.0/8]}
    key: [ip]
    limit: 20/s
  - id: tried-out
    key: [api_key, endpoint]
    shadow: true
    limit: 3/s
  - id: off
    enabled: false
    limit: 1/s
  - id: paying
    match: {tier: [pro]}
    key: tier
    limit: 7/s
default: {limit: 100/min}
tiers:
  free: {limit: 60/min, keys: ["sk_free_*"]}
  pro: {limit: 600/min}
  odd: {keys: ["sk_odd_*"]}
clients:
  acme: {tier: pro}
  solo: {limit: 9/s}
whitelist: ["sk_internal_*", 192.0.2.0/24]
blacklist: ["sk_bad_*"]
"#;

/// Fails unless `rules explain` prints these lines for a request. A line starts with `*` if its rule applies.
#[track_caller]
fn assert_explained(arguments: &[&str], expected: &[&str]) {
    let folder = Folder::new(&[("rules.yaml", EVERY_REASON)]);
    let output = folder.rules(&[&["explain", "rules.yaml"], arguments].concat());
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""));
    for line in expected {
        assert!(
            output.stdout.lines().any(|found| found.trim_start() == *line),
            "{line} is not in\n{}",
            output.stdout
        );
    }
}

#[test]
fn a_request_is_explained_rule_by_rule() {
    assert_explained(
        &[
            "--key",
            "bob",
            "--endpoint",
            "//orders/7/?page=2",
            "--method",
            "get",
            "--ip",
            "10.1.2.3",
            "--attribute",
            "region=eu",
            "--tier",
            "pro",
        ],
        &[
            "path: /orders/7",
            "tier: pro (from the request)",
            "vip: no: the key does not match sk_vip_*",
            "* orders: applies: token_bucket 10/s and token_bucket 1000/h, counted for api_key \"bob\"",
            "* region: applies: token_bucket 100/s, counted for region \"eu\"",
            "* office: applies: token_bucket 20/s, counted for ip \"10.1.2.3\"",
            "* tried-out: applies: token_bucket 3/s, counted for api_key \"bob\", endpoint \"/orders/7\" (shadow: not enforced)",
            "off: no: it is disabled",
            "* paying: applies: token_bucket 7/s, counted for tier \"pro\"",
            "tier:pro: no: orders has the same key and comes first",
        ],
    );
    assert_explained(
        &[
            "--key",
            "bob",
            "--endpoint",
            "/orders/7/items",
            "--method",
            "POST",
            "--ip",
            "11.0.0.1",
            "--attribute",
            "region=us",
        ],
        &[
            "tier: not known",
            "orders: no: the path does not match the template /orders/{id}",
            "region: no: the attribute region is missing or does not match",
            "office: no: the address is in none of its networks",
            "paying: no: the client's tier is not pro",
            "* default: applies: token_bucket 100/min, counted for client \"bob\"",
        ],
    );
    assert_explained(
        &["--method", "DELETE"],
        &[
            "path: /",
            "orders: no: the method is not GET or POST",
            "tried-out: no: it counts by api_key, which the request does not have (shadow: not enforced)",
            "* default: applies: token_bucket 100/min, counted for requests without client",
        ],
    );
}

#[test]
fn store_settings_of_a_rule_are_explained() {
    let rules = "
rules:
  - {id: login, limit: 5/min, on_store_failure: closed, store_timeout: 20ms}
  - {id: pages, key: ip, limit: 9/s, on_store_failure: open, consistency: local}
  - {id: sums, key: [api_key, ip], limit: 8/s, consistency: exact}
  - {id: logs, key: [ip, endpoint], limit: 7/s, algorithm: sliding_window_log}
";
    let folder = Folder::new(&[("rules.yaml", rules)]);
    let output = folder.rules(&["explain", "rules.yaml", "--key", "bob", "--ip", "192.0.2.7"]);
    for line in [
        "* login: applies: token_bucket 5/min, counted for api_key \"bob\", store timeout 20ms, denied if the \
         store fails",
        "* pages: applies: token_bucket 9/s, counted for ip \"192.0.2.7\", on each node separately, allowed if the store \
         fails",
        "* sums: applies: token_bucket 8/s, counted for api_key \"bob\", ip \"192.0.2.7\", checked in the store every time",
        "* logs: applies: sliding_window_log 7/s, counted for ip \"192.0.2.7\", endpoint \"/\", checked in the store every \
         time",
    ] {
        assert!(output.stdout.lines().any(|found| found == line), "{line} is not in\n{}", output.stdout);
    }
    let output = folder.rules(&["explain", "rules.yaml", "--key", "bob", "--format", "json"]);
    for field in
        ["\"on_store_failure\": \"closed\"", "\"store_timeout_ms\": 20", "\"consistency\": \"leased\""]
    {
        assert!(output.stdout.contains(field), "{field} is not in\n{}", output.stdout);
    }
}

#[test]
fn an_override_is_explained_until_it_expires() {
    assert_explained(
        &["--key", "sk_vip_one"],
        &["* vip: applies: token_bucket 500/s, counted for api_key \"sk_vip_one\""],
    );
    assert_explained(
        &["--key", "sk_vip_new"],
        &["* vip: applies: token_bucket 900/s, counted for api_key \"sk_vip_new\""],
    );
    assert_explained(
        &["--key", "sk_vip_old"],
        &["* vip: applies: token_bucket 50/s, counted for api_key \"sk_vip_old\""],
    );
}

#[test]
fn the_source_of_a_tier_is_explained() {
    assert_explained(
        &["--key", "acme"],
        &[
            "tier: pro (from the client record)",
            "* tier:pro: applies: token_bucket 600/min, counted for client \"acme\"",
        ],
    );
    // The request's tier takes precedence over the client record.
    assert_explained(&["--key", "acme", "--tier", "free"], &["tier: free (from the request)"]);
    assert_explained(
        &["--key", "sk_free_1"],
        &[
            "tier: free (from the tier's keys)",
            "* tier:free: applies: token_bucket 60/min, counted for client \"sk_free_1\"",
        ],
    );
    assert_explained(
        &["--key", "sk_odd_1"],
        &[
            "tier: odd (from the tier's keys)",
            "* default: applies: token_bucket 100/min, counted for client \"sk_odd_1\"",
        ],
    );
    assert_explained(
        &["--key", "solo"],
        &["* client: applies: token_bucket 9/s, counted for client \"solo\""],
    );
    let folder = Folder::new(&[("rules.yaml", &format!("{EVERY_REASON}\ndefault_tier: free"))]);
    let output = folder.rules(&["explain", "rules.yaml", "--key", "bob"]);
    assert!(output.stdout.contains("tier: free (the default tier)\n"), "{output:?}");
}

#[test]
fn lists_are_explained_before_any_rule() {
    let allowed = "ALLOWED: the client is on the allow list, so no rule is checked";
    let would = "default: would apply: token_bucket 100/min, counted for client \"sk_internal_1\"";
    assert_explained(&["--key", "sk_internal_1"], &[allowed, would]);
    assert_explained(&["--key", "bob", "--ip", "192.0.2.9"], &[allowed]);
    let denied = "DENIED: the client is on the deny list";
    assert_explained(&["--key", "sk_bad_1"], &[denied]);
    // A client on both lists is denied.
    assert_explained(&["--key", "sk_bad_1", "--ip", "192.0.2.9"], &[denied]);
}

/// A descriptor from a proxy is explained the way a server would match it.
#[test]
fn a_descriptor_is_explained_entry_by_entry() {
    const RULES: &str = "
rules:
  - id: vip
    match: {domain: edge, descriptor: [user: vip, path: '/api/*']}
    limit: unlimited
  - id: api
    match: {domain: edge, descriptor: [user, path: '/api/*']}
    limit: 5/s
  - id: user
    match: {domain: edge, descriptor: [user]}
    limit: 50/s
  - id: by-user
    match: {domain: 'edge*'}
    key: user
    limit: 500/s
";
    let folder = Folder::new(&[("edge.yaml", RULES)]);
    let lines = |arguments: &[&str], expected: &[&str]| {
        let output = folder.rules(&[&["explain", "edge.yaml"], arguments].concat());
        let found: Vec<_> = output.stdout.lines().skip(2).collect();
        assert_eq!((output.code, found), (Some(0), expected.to_vec()), "{output:?}");
    };
    lines(
        &["--domain", "edge", "--descriptor", "user=a", "--descriptor", "path=/api/x=y"],
        &[
            "  vip: no: entry 1 of the descriptor, user, does not match vip",
            "* api: applies: token_bucket 5/s, counted for descriptor \"edge;user=a;path=/api/x=y\"",
            "  user: no: the descriptor is not [user]: it has 2 entries",
            "* by-user: applies: token_bucket 500/s, counted for user \"a\"",
        ],
    );
    lines(
        &["--domain", "edge", "--descriptor", "path=/api/x", "--descriptor", "user=vip"],
        &[
            "  vip: no: entry 1 of the descriptor is not named user",
            "  api: no: entry 1 of the descriptor is not named user",
            "  user: no: the descriptor is not [user]: it has 2 entries",
            "* by-user: applies: token_bucket 500/s, counted for user \"vip\"",
        ],
    );
    lines(
        &[
            "--domain",
            "edge",
            "--descriptor",
            "user=vip",
            "--descriptor",
            "path=/api/x",
            "--attribute",
            "user=b",
        ],
        &[
            "* vip: applies: unlimited, and later rules with the same key are skipped",
            "  api: no: vip has the same key and comes first",
            "  user: no: the descriptor is not [user]: it has 2 entries",
            "* by-user: applies: token_bucket 500/s, counted for user \"b\"",
        ],
    );
    lines(
        &["--descriptor", "user=a"],
        &[
            "ALLOWED: no rule applies",
            "  vip: no: the domain does not match edge",
            "  api: no: the domain does not match edge",
            "  user: no: the domain does not match edge",
            "  by-user: no: the domain does not match edge*",
        ],
    );
    // Well-known entries such as `path` also set the request's fields, as they do in a server.
    let output = folder.rules(&["explain", "edge.yaml", "--descriptor", "path=/api//x"]);
    assert!(output.stdout.starts_with("path: /api/x\n"), "{output:?}");
    let output = folder.rules(&["explain", "edge.yaml", "--descriptor", "user"]);
    assert!(output.code == Some(2) && output.stderr.contains("write it like tenant=acme"), "{output:?}");
}

#[test]
fn an_explanation_is_available_as_json() {
    let folder = Folder::new(&[("rules.yaml", EVERY_REASON), ("bad.yaml", BAD)]);
    let json = |arguments: &[&str]| {
        let output = folder.rules(&[&["explain", "rules.yaml", "--format", "json"], arguments].concat());
        assert_eq!(output.code, Some(0), "{output:?}");
        output.json()
    };
    let explanation = json(&["--key", "acme", "--endpoint", "/orders//7", "--method", "GET"]);
    assert_eq!(
        (&explanation["path"], &explanation["tier"], &explanation["tier_source"], &explanation["listed"]),
        (&json!("/orders/7"), &json!("pro"), &json!("client"), &json!(null))
    );
    assert_eq!(
        explanation["rules"][1],
        json!({
            "id": "orders",
            "binds": true,
            "shadow": false,
            "why": "applies: token_bucket 10/s and token_bucket 1000/h, counted for api_key \"acme\"",
            "on_store_failure": "local",
            "consistency": "leased",
            "store_timeout_ms": null,
            "limits": ["token_bucket 10/s", "token_bucket 1000/h"],
            "key": [{"name": "api_key", "value": "acme"}],
        })
    );
    assert_eq!(explanation["rules"][0]["binds"], false);
    assert_eq!(
        (&explanation["rules"][4]["binds"], &explanation["rules"][4]["shadow"]),
        (&json!(true), &json!(true))
    );
    let listed = json(&["--key", "sk_bad_1"]);
    assert_eq!(listed["listed"], "deny");
    assert!(listed["rules"].as_array().unwrap().iter().all(|rule| rule["binds"] == false), "{listed}");

    let output = folder.rules(&["explain", "bad.yaml", "--key", "a"]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""));
    assert!(output.stderr.starts_with("bad.yaml:3:12: error: an amount of 0 "), "{output:?}");
}

#[test]
fn the_schema_is_complete_for_editors() {
    let output = run(&mut ratekeeper(&["rules", "schema"]));
    let schema = output.json();
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""));
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!((&schema["type"], &schema["additionalProperties"]), (&json!("object"), &json!(false)));
    for field in ["rules", "default", "tiers", "default_tier", "clients", "whitelist", "blacklist", "paths"] {
        assert!(schema["properties"][field]["description"].is_string(), "{field} is not described");
    }
    // Every reference is defined.
    for (at, _) in output.stdout.match_indices("\"$ref\": \"#/$defs/") {
        let name = output.stdout[at..].split('/').nth(2).unwrap().split('"').next().unwrap();
        assert!(schema["$defs"][name].is_object(), "{name} is not defined");
    }
}

#[test]
fn a_diff_lists_changes_in_words() {
    let after = DESIGN
        .replace("limit: 100, window: 60", "limit: 200, window: 60")
        .replace("\"sk_revoked_*\", ", "")
        .replace("tier: \"free\"\n", "tier: \"free\"\n    shadow: true\n");
    let respelled =
        DESIGN.replace("\"rule_001\"", "rule_001 # with a comment").replace("window: 60 }", "window: 1min }");
    let folder =
        Folder::new(&[("a.yaml", DESIGN), ("b.yaml", &after), ("same.yaml", &respelled), ("bad.yaml", BAD)]);
    let lines = [
        "rule_002: enforced → in shadow mode",
        "rule_002: 100/min → 200/min",
        "blacklist: key sk_revoked_* removed",
    ];
    assert_output(&folder.rules(&["diff", "a.yaml", "b.yaml"]), 1, &(lines.join("\n") + "\n"));
    let output = folder.rules(&["diff", "a.yaml", "b.yaml", "--format", "json"]);
    let change = |kind, section, id: Option<&str>, field: Option<&str>, values: [Option<&str>; 2], text| {
        json!({
            "kind": kind, "section": section, "id": id, "override": null, "field": field, "before": values[0],
            "after": values[1], "text": text,
        })
    };
    let rule = |field, values: [&str; 2], text| {
        change("changed", "rules", Some("rule_002"), Some(field), values.map(Some), text)
    };
    let changes = [
        rule("mode", ["enforced", "in shadow mode"], lines[0]),
        rule("limits", ["100/min", "200/min"], lines[1]),
        change("removed", "blacklist", None, None, [Some("key sk_revoked_*"), None], lines[2]),
    ];
    assert_eq!((output.code, output.json()), (Some(1), json!(changes)));

    assert_output(&folder.rules(&["diff", "a.yaml", "same.yaml"]), 0, "no changes\n");
    assert_output(&folder.rules(&["diff", "a.yaml", "same.yaml", "--format", "json"]), 0, "[]\n");
    let output = folder.rules(&["diff", "a.yaml", "bad.yaml"]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""));
    assert!(output.stderr.starts_with("bad.yaml:3:12: error: "), "{output:?}");
}
