//! `ratekeeper rules` from outside: what a file is told, and by which exit code.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod support;

use serde_json::json;
use support::{Folder, ratekeeper, said, told, told_with_input};

/// The file of the design, as it stands there.
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

/// Two mistakes in four lines.
const BAD: &str = "rules:\n  - id: a\n    limit: 0/s\n    colour: red\n";

/// In order, but for an override that is of no use any more.
const STALE: &str = "\
rules:
  - id: a
    limit: 5/s
    override:
      old: {limit: 900/s, valid_until: 2020-01-01}
missing: skip
";

#[test]
fn the_file_of_the_design_is_in_order() {
    let folder = Folder::new(&[("design.yaml", DESIGN)]);
    said(
        &folder.rules(&["check", "design.yaml"]),
        0,
        "design.yaml: in order: 2 rules, 2 allowed, 2 denied, 1 expression of 2 KiB\n",
    );
    said(&folder.rules(&["check", "design.yaml", "--format", "json"]), 0, "[]\n");
}

#[test]
fn all_mistakes_of_all_files_are_told_with_their_places() {
    let folder = Folder::new(&[("bad.yaml", BAD), ("stale.yaml", STALE), ("design.yaml", DESIGN)]);
    let told = folder.rules(&["check", "bad.yaml", "stale.yaml", "design.yaml"]);
    let unknown = "unknown field \"colour\": the fields here are id, version, description,";
    let stale = "the override no longer holds, since its valid_until is past: leave it out";
    assert_eq!((told.code, told.stderr.as_str()), (Some(1), ""));
    let lines: Vec<_> = told.stdout.lines().collect();
    assert_eq!(
        lines[..3],
        [
            "bad.yaml:3:12: error: an amount of 0 would refuse everything: write at least 1, or put the key on a deny list",
            "    3 |     limit: 0/s",
            "      |            ^",
        ]
    );
    assert!(lines[3].starts_with(&format!("bad.yaml:4:5: error: {unknown}")), "{told:?}");
    assert_eq!(lines[6], "bad.yaml: 2 mistakes");
    assert_eq!(lines[7], format!("stale.yaml:5:7: warning: {stale}"));
    assert_eq!(
        lines[10..],
        [
            "stale.yaml: in order: 1 rule",
            "design.yaml: in order: 2 rules, 2 allowed, 2 denied, 1 expression of 2 KiB"
        ]
    );

    let told = folder.rules(&["check", "stale.yaml", "bad.yaml", "--format", "json"]);
    let list = told.json();
    assert_eq!((told.code, list.as_array().unwrap().len()), (Some(1), 3));
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
fn a_warning_alone_is_no_failure() {
    let folder = Folder::new(&[("stale.yaml", STALE)]);
    assert_eq!(folder.rules(&["check", "stale.yaml"]).code, Some(0));
    assert_eq!(folder.rules(&["check", "stale.yaml", "--format", "json"]).code, Some(0));
}

#[test]
fn a_file_that_cannot_be_read_ends_in_2_and_hides_no_other() {
    let folder = Folder::new(&[("bad.yaml", BAD)]);
    let told = folder.rules(&["check", "none.yaml", "bad.yaml", "."]);
    assert_eq!(told.code, Some(2));
    assert!(told.stdout.ends_with("bad.yaml: 2 mistakes\n"), "{told:?}");
    assert_eq!(
        told.stderr,
        "error: cannot read none.yaml: No such file or directory (os error 2)\n\
         error: cannot read .: Is a directory (os error 21)\n"
    );
    for arguments in [&["explain", "none.yaml", "--key", "a"][..], &["diff", "bad.yaml", "none.yaml"]] {
        let told = folder.rules(arguments);
        assert_eq!((told.code, told.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(told.stderr.contains("cannot read none.yaml: No such file"), "{told:?}");
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
        |arguments: &[&str], text: &[u8]| told_with_input(ratekeeper(&["rules"]).args(arguments), text);
    said(
        &piped(&["check", "-"], DESIGN.as_bytes()),
        0,
        "stdin: in order: 2 rules, 2 allowed, 2 denied, 1 expression of 2 KiB\n",
    );
    let bad = piped(&["check", "-"], BAD.as_bytes());
    assert!(bad.code == Some(1) && bad.stdout.starts_with("stdin:3:12: error: an amount of 0 "), "{bad:?}");
    let explained = piped(&["explain", "-", "--key", "sk_free_1"], DESIGN.as_bytes());
    assert!(explained.code == Some(0) && explained.stdout.contains("* rule_002: binds: "), "{explained:?}");
    let strange = piped(&["check", "-"], b"rules: \xff");
    assert_eq!(strange.code, Some(2));
    assert!(
        strange.stderr.starts_with("error: cannot read stdin: it is not text in UTF-8: save it as"),
        "{strange:?}"
    );
}

/// One rule for each reason to bind or not to.
const MANY: &str = r#"
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

/// What the command says of a request: without a line's mark if it does not bind, with `*` if it does.
#[track_caller]
fn explained(arguments: &[&str], expected: &[&str]) {
    let folder = Folder::new(&[("rules.yaml", MANY)]);
    let told = folder.rules(&[&["explain", "rules.yaml"], arguments].concat());
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
    for line in expected {
        assert!(
            told.stdout.lines().any(|found| found.trim_start() == *line),
            "{line} is not in\n{}",
            told.stdout
        );
    }
}

#[test]
fn a_request_is_explained_rule_by_rule() {
    explained(
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
            "tier: pro (the request says so)",
            "vip: no: the key does not match sk_vip_*",
            "* orders: binds: token_bucket 10/s and token_bucket 1000/h, counted for api_key \"bob\"",
            "* region: binds: token_bucket 100/s, counted for region \"eu\"",
            "* office: binds: token_bucket 20/s, counted for ip \"10.1.2.3\"",
            "* tried-out: binds: token_bucket 3/s, counted for api_key \"bob\", endpoint \"/orders/7\" (shadow: refuses nobody)",
            "off: no: it is disabled",
            "* paying: binds: token_bucket 7/s, counted for tier \"pro\"",
            "tier:pro: no: orders counts the same and comes first",
        ],
    );
    explained(
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
            "* default: binds: token_bucket 100/min, counted for client \"bob\"",
        ],
    );
    explained(
        &["--method", "DELETE"],
        &[
            "path: /",
            "orders: no: the method is not GET or POST",
            "tried-out: no: it counts by api_key, and the request does not tell it (shadow: refuses nobody)",
            "* default: binds: token_bucket 100/min, counted for requests without client",
        ],
    );
}

#[test]
fn what_a_rule_says_of_the_store_is_explained() {
    let rules = "
rules:
  - {id: login, limit: 5/min, on_store_failure: closed, store_timeout: 20ms}
  - {id: pages, key: ip, limit: 9/s, on_store_failure: open, consistency: local}
  - {id: sums, key: [api_key, ip], limit: 8/s, consistency: exact}
  - {id: logs, key: [ip, endpoint], limit: 7/s, algorithm: sliding_window_log}
";
    let folder = Folder::new(&[("rules.yaml", rules)]);
    let told = folder.rules(&["explain", "rules.yaml", "--key", "bob", "--ip", "192.0.2.7"]);
    for line in [
        "* login: binds: token_bucket 5/min, counted for api_key \"bob\", the store has 20ms to answer, refused if the \
         store gives no answer",
        "* pages: binds: token_bucket 9/s, counted for ip \"192.0.2.7\", on each node by itself, allowed if the store \
         gives no answer",
        "* sums: binds: token_bucket 8/s, counted for api_key \"bob\", ip \"192.0.2.7\", by asking the store each time",
        "* logs: binds: sliding_window_log 7/s, counted for ip \"192.0.2.7\", endpoint \"/\", by asking the store each \
         time",
    ] {
        assert!(told.stdout.lines().any(|found| found == line), "{line} is not in\n{}", told.stdout);
    }
    let told = folder.rules(&["explain", "rules.yaml", "--key", "bob", "--format", "json"]);
    for said in
        ["\"on_store_failure\": \"closed\"", "\"store_timeout_ms\": 20", "\"consistency\": \"leased\""]
    {
        assert!(told.stdout.contains(said), "{said} is not in\n{}", told.stdout);
    }
}

#[test]
fn an_override_is_explained_while_it_holds() {
    explained(
        &["--key", "sk_vip_one"],
        &["* vip: binds: token_bucket 500/s, counted for api_key \"sk_vip_one\""],
    );
    explained(
        &["--key", "sk_vip_new"],
        &["* vip: binds: token_bucket 900/s, counted for api_key \"sk_vip_new\""],
    );
    explained(
        &["--key", "sk_vip_old"],
        &["* vip: binds: token_bucket 50/s, counted for api_key \"sk_vip_old\""],
    );
}

#[test]
fn where_a_tier_comes_from_is_explained() {
    explained(
        &["--key", "acme"],
        &[
            "tier: pro (the client's record says so)",
            "* tier:pro: binds: token_bucket 600/min, counted for client \"acme\"",
        ],
    );
    // What the request says goes before what is known of the client.
    explained(&["--key", "acme", "--tier", "free"], &["tier: free (the request says so)"]);
    explained(
        &["--key", "sk_free_1"],
        &[
            "tier: free (the tier's keys match)",
            "* tier:free: binds: token_bucket 60/min, counted for client \"sk_free_1\"",
        ],
    );
    explained(
        &["--key", "sk_odd_1"],
        &[
            "tier: odd (the tier's keys match)",
            "* default: binds: token_bucket 100/min, counted for client \"sk_odd_1\"",
        ],
    );
    explained(&["--key", "solo"], &["* client: binds: token_bucket 9/s, counted for client \"solo\""]);
    let folder = Folder::new(&[("rules.yaml", &format!("{MANY}\ndefault_tier: free"))]);
    let told = folder.rules(&["explain", "rules.yaml", "--key", "bob"]);
    assert!(told.stdout.contains("tier: free (the default tier)\n"), "{told:?}");
}

#[test]
fn who_is_on_a_list_is_explained_before_any_rule() {
    let allowed = "ALLOWED: the client is on the allow list, and no rule is looked at";
    let would = "default: would bind: token_bucket 100/min, counted for client \"sk_internal_1\"";
    explained(&["--key", "sk_internal_1"], &[allowed, would]);
    explained(&["--key", "bob", "--ip", "192.0.2.9"], &[allowed]);
    let refused = "REFUSED: the client is on the deny list";
    explained(&["--key", "sk_bad_1"], &[refused]);
    // Who is on both is refused.
    explained(&["--key", "sk_bad_1", "--ip", "192.0.2.9"], &[refused]);
}

/// What a proxy sends is explained as a server that is asked by it would see it.
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
        let told = folder.rules(&[&["explain", "edge.yaml"], arguments].concat());
        let found: Vec<_> = told.stdout.lines().skip(2).collect();
        assert_eq!((told.code, found), (Some(0), expected.to_vec()), "{told:?}");
    };
    lines(
        &["--domain", "edge", "--descriptor", "user=a", "--descriptor", "path=/api/x=y"],
        &[
            "  vip: no: entry 1 of the descriptor, user, does not match vip",
            "* api: binds: token_bucket 5/s, counted for descriptor \"edge;user=a;path=/api/x=y\"",
            "  user: no: the descriptor is not [user]: it has 2 entries",
            "* by-user: binds: token_bucket 500/s, counted for user \"a\"",
        ],
    );
    lines(
        &["--domain", "edge", "--descriptor", "path=/api/x", "--descriptor", "user=vip"],
        &[
            "  vip: no: entry 1 of the descriptor is not named user",
            "  api: no: entry 1 of the descriptor is not named user",
            "  user: no: the descriptor is not [user]: it has 2 entries",
            "* by-user: binds: token_bucket 500/s, counted for user \"vip\"",
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
            "* vip: binds: unlimited, and no rule behind it that counts the same is looked at",
            "  api: no: vip counts the same and comes first",
            "  user: no: the descriptor is not [user]: it has 2 entries",
            "* by-user: binds: token_bucket 500/s, counted for user \"b\"",
        ],
    );
    lines(
        &["--descriptor", "user=a"],
        &[
            "ALLOWED: no rule binds it",
            "  vip: no: the domain does not match edge",
            "  api: no: the domain does not match edge",
            "  user: no: the domain does not match edge",
            "  by-user: no: the domain does not match edge*",
        ],
    );
    // Entries that everybody knows stand for more than themselves, as they do for a server.
    let told = folder.rules(&["explain", "edge.yaml", "--descriptor", "path=/api//x"]);
    assert!(told.stdout.starts_with("path: /api/x\n"), "{told:?}");
    let told = folder.rules(&["explain", "edge.yaml", "--descriptor", "user"]);
    assert!(told.code == Some(2) && told.stderr.contains("write it like tenant=acme"), "{told:?}");
}

#[test]
fn an_explanation_can_be_read_by_programs() {
    let folder = Folder::new(&[("rules.yaml", MANY), ("bad.yaml", BAD)]);
    let json = |arguments: &[&str]| {
        let told = folder.rules(&[&["explain", "rules.yaml", "--format", "json"], arguments].concat());
        assert_eq!(told.code, Some(0), "{told:?}");
        told.json()
    };
    let said = json(&["--key", "acme", "--endpoint", "/orders//7", "--method", "GET"]);
    assert_eq!(
        (&said["path"], &said["tier"], &said["tier_source"], &said["listed"]),
        (&json!("/orders/7"), &json!("pro"), &json!("client"), &json!(null))
    );
    assert_eq!(
        said["rules"][1],
        json!({
            "id": "orders",
            "binds": true,
            "shadow": false,
            "why": "binds: token_bucket 10/s and token_bucket 1000/h, counted for api_key \"acme\"",
            "on_store_failure": "local",
            "consistency": "leased",
            "store_timeout_ms": null,
            "limits": ["token_bucket 10/s", "token_bucket 1000/h"],
            "key": [{"name": "api_key", "value": "acme"}],
        })
    );
    assert_eq!(said["rules"][0]["binds"], false);
    assert_eq!((&said["rules"][4]["binds"], &said["rules"][4]["shadow"]), (&json!(true), &json!(true)));
    let listed = json(&["--key", "sk_bad_1"]);
    assert_eq!(listed["listed"], "deny");
    assert!(listed["rules"].as_array().unwrap().iter().all(|rule| rule["binds"] == false), "{listed}");

    let told = folder.rules(&["explain", "bad.yaml", "--key", "a"]);
    assert_eq!((told.code, told.stdout.as_str()), (Some(1), ""));
    assert!(told.stderr.starts_with("bad.yaml:3:12: error: an amount of 0 "), "{told:?}");
}

#[test]
fn the_schema_is_one_that_editors_can_use() {
    let told = told(&mut ratekeeper(&["rules", "schema"]));
    let schema = told.json();
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!((&schema["type"], &schema["additionalProperties"]), (&json!("object"), &json!(false)));
    for field in ["rules", "default", "tiers", "default_tier", "clients", "whitelist", "blacklist", "paths"] {
        assert!(schema["properties"][field]["description"].is_string(), "{field} is not described");
    }
    // What it refers to is in it.
    for (at, _) in told.stdout.match_indices("\"$ref\": \"#/$defs/") {
        let name = told.stdout[at..].split('/').nth(2).unwrap().split('"').next().unwrap();
        assert!(schema["$defs"][name].is_object(), "{name} is not defined");
    }
}

#[test]
fn a_change_is_told_in_words() {
    let after = DESIGN
        .replace("limit: 100, window: 60", "limit: 200, window: 60")
        .replace("\"sk_revoked_*\", ", "")
        .replace("tier: \"free\"\n", "tier: \"free\"\n    shadow: true\n");
    let respelled =
        DESIGN.replace("\"rule_001\"", "rule_001 # with a comment").replace("window: 60 }", "window: 1min }");
    let folder =
        Folder::new(&[("a.yaml", DESIGN), ("b.yaml", &after), ("same.yaml", &respelled), ("bad.yaml", BAD)]);
    let lines = [
        "rule_002: enforced → in shadow, refusing nobody",
        "rule_002: 100/min → 200/min",
        "blacklist: key sk_revoked_* is taken off",
    ];
    said(&folder.rules(&["diff", "a.yaml", "b.yaml"]), 1, &(lines.join("\n") + "\n"));
    let told = folder.rules(&["diff", "a.yaml", "b.yaml", "--format", "json"]);
    assert_eq!((told.code, told.json()), (Some(1), json!(lines)));

    said(&folder.rules(&["diff", "a.yaml", "same.yaml"]), 0, "nothing changes\n");
    said(&folder.rules(&["diff", "a.yaml", "same.yaml", "--format", "json"]), 0, "[]\n");
    let told = folder.rules(&["diff", "a.yaml", "bad.yaml"]);
    assert_eq!((told.code, told.stdout.as_str()), (Some(2), ""));
    assert!(told.stderr.starts_with("bad.yaml:3:12: error: "), "{told:?}");
}
