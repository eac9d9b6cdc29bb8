//! Rule matching through the API: path normalization, methods, addresses, attributes, tiers, overrides, lists, order
//! and shadow rules.

use crate::support::{Client, Server, within};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[expect(clippy::disallowed_methods, reason = "the test compares answers with the wall clock")]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The rule that applies to a request, and its remaining units.
#[track_caller]
fn applied_rule(client: &mut Client, request: &Value) -> (String, Option<u64>) {
    let answer = client.post("/v1/check", request.to_string());
    assert_eq!(answer.status, 200, "{request}: {answer:?}");
    let answer = answer.json();
    let rule = answer["rule"].as_str().unwrap_or_else(|| answer["reason"].as_str().unwrap());
    (rule.to_owned(), answer["remaining"].as_u64())
}

/// Sends the requests in order, and compares the rule that applies and its remaining units.
#[track_caller]
fn check(rules: &str, cases: &[(Value, &str, Option<u64>)]) {
    let server = Server::with_rules(rules);
    let mut client = server.connect();
    for (request, rule, left) in cases {
        assert_eq!(applied_rule(&mut client, request), ((*rule).to_owned(), *left), "{request}");
    }
}

#[test]
fn all_spellings_of_a_path_share_one_limit() {
    let server = Server::with_rules(
        "
rules:
  - {id: orders, match: {path: /v1/orders}, limit: 100/day}
  - {id: one, match: {path: '/v1/orders/{id}'}, key: [api_key, path], limit: 100/day}
default: {limit: 1000/day}
",
    );
    let mut client = server.connect();
    let spellings = [
        "/v1/orders",
        "/v1/orders/",
        "v1/orders",
        "//v1///orders//",
        "/v1/./orders",
        "/v1/orders/.",
        "/v1/users/../orders",
        "/v1/users/%2e%2E/orders",
        "/../v1/orders",
        "/v1/%6Frders",
        "/v1/%6frders",
        "/%76%31%2Forders",
        "/v1%2forders%2F",
        "/v1/orders?page=2",
        "/v1/orders/?next=/v1/users",
        "/v1/orders#top",
        "/v1/orders/7/..",
    ];
    for (spelling, left) in spellings.iter().zip((0..100).rev()) {
        let request = json!({"client_key": "alice", "endpoint": spelling});
        assert_eq!(applied_rule(&mut client, &request), ("orders".to_owned(), Some(left)), "{spelling}");
    }
    // JSON escapes are another spelling.
    let escaped = r#"{"client_key":"alice","endpoint":"\u002fv1\u002Forders"}"#;
    assert_eq!(client.post("/v1/check", escaped).number("remaining"), 99 - spellings.len() as u64);

    for (spelling, left) in ["/v1/orders/7", "/v1/orders/%37", "/v1//orders/./7/?x"].iter().zip([99, 98, 97])
    {
        let request = json!({"client_key": "alice", "endpoint": spelling});
        assert_eq!(applied_rule(&mut client, &request), ("one".to_owned(), Some(left)), "{spelling}");
    }
    // These are different paths, even if they look alike.
    for other in ["/V1/orders", "/v1/orders%00", "/v1/order", "/v1/orders%252F", "/v1/orders\\", "/"] {
        let request = json!({"client_key": "alice", "endpoint": other});
        assert_eq!(applied_rule(&mut client, &request).0, "default", "{other}");
    }
}

#[test]
fn a_rule_file_can_ignore_case_and_keep_escaped_slashes() {
    let rules = "
rules: [{id: file, match: {path: '/files/{name}'}, key: [api_key, path], limit: 9/day}]
paths: {escaped_slashes: keep, ignore_case: true}
";
    let check_body = |path: &str| json!({"client_key": "alice", "endpoint": path});
    check(
        rules,
        &[
            (check_body("/files/a%2Fb"), "file", Some(8)),
            (check_body("/FILES/A%2fB/"), "file", Some(7)),
            (check_body("/files/a/b"), "no_rule", None),
        ],
    );
}

#[test]
fn paths_match_exactly_by_template_by_glob_and_by_expression() {
    let rules = "
rules:
  - {id: exact, match: {path: /a/b}, limit: 9/day}
  - {id: template, match: {path: '/a/{x}'}, limit: 9/day}
  - {id: glob, match: {path: '/a/**/z'}, limit: 9/day}
  - {id: regex, match: {path_regex: '^/[0-9]+$'}, limit: 9/day}
";
    let check_body = |path: &str| json!({"client_key": "alice", "endpoint": path});
    check(
        rules,
        &[
            (check_body("/a/b"), "exact", Some(8)),
            (check_body("/a/c"), "template", Some(8)),
            (check_body("/a/b/c/d/z"), "glob", Some(8)),
            (check_body("/a/b/c/d"), "no_rule", None),
            (check_body("/123"), "regex", Some(8)),
            (check_body("/123/"), "regex", Some(7)),
            (check_body("/12a"), "no_rule", None),
            (check_body("/a"), "no_rule", None),
        ],
    );
}

#[test]
fn rules_match_methods_addresses_and_attributes() {
    let rules = "
rules:
  - {id: login, match: {path: /login, method: POST}, key: ip, limit: 5/day}
  - {id: office, match: {ip: [10.0.0.0/8, '2001:db8::/32']}, key: [api_key, endpoint], limit: 6/day}
  - {id: tenant, match: {attributes: {plan: 'gold*', region: [eu, us]}}, key: [tenant, plan], limit: 7/day}
";
    check(
        rules,
        &[
            (json!({"ip": "192.0.2.1", "endpoint": "/login", "method": "POST"}), "login", Some(4)),
            (
                json!({"ip": "192.0.2.1", "endpoint": "/login", "method": "post", "client_key": "x"}),
                "login",
                Some(3),
            ),
            (json!({"ip": "192.0.2.2", "endpoint": "/login", "method": "POST"}), "login", Some(4)),
            (json!({"ip": "192.0.2.1", "endpoint": "/login", "method": "GET"}), "no_rule", None),
            (json!({"client_key": "x", "endpoint": "/login", "method": "POST"}), "no_rule", None),
            // An IPv6 client is counted by its /64 network; an IPv4 address may be written as IPv6.
            (json!({"ip": "2001:db9::1", "endpoint": "/login", "method": "POST"}), "login", Some(4)),
            (json!({"ip": "2001:db9::ffff:1", "endpoint": "/login", "method": "POST"}), "login", Some(3)),
            (json!({"ip": "2001:db9:0:1::1", "endpoint": "/login", "method": "POST"}), "login", Some(4)),
            (json!({"ip": "::ffff:192.0.2.2", "endpoint": "/login", "method": "POST"}), "login", Some(3)),
            (json!({"ip": "10.200.0.1", "client_key": "x", "endpoint": "/a"}), "office", Some(5)),
            (json!({"ip": "10.200.0.2", "client_key": "x", "endpoint": "/a/"}), "office", Some(4)),
            (json!({"ip": "10.200.0.1", "client_key": "x", "endpoint": "/b"}), "office", Some(5)),
            (json!({"ip": "2001:db8:1::", "client_key": "x", "endpoint": "/a"}), "office", Some(3)),
            (json!({"ip": "11.0.0.1", "client_key": "x", "endpoint": "/a"}), "no_rule", None),
            (json!({"attributes": {"tenant": "acme", "plan": "gold-1", "region": "eu"}}), "tenant", Some(6)),
            (json!({"attributes": {"region": "us", "tenant": "acme", "plan": "gold-1"}}), "tenant", Some(5)),
            (json!({"attributes": {"tenant": "acme", "plan": "gold-2", "region": "eu"}}), "tenant", Some(6)),
            // Concatenated key parts never collide.
            (json!({"attributes": {"tenant": "acmeg", "plan": "gold-1", "region": "eu"}}), "tenant", Some(6)),
            (json!({"attributes": {"tenant": "acme", "plan": "silver", "region": "eu"}}), "no_rule", None),
            (json!({"attributes": {"plan": "gold", "region": "eu"}}), "no_rule", None),
        ],
    );
}

#[test]
fn a_tier_comes_from_the_request_the_record_a_pattern_or_the_default() {
    let rules = "
default: {limit: 10/day}
tiers:
  free: {limit: 20/day, keys: ['sk_free_*']}
  pro: {limit: 30/day}
  plain: {}
default_tier: free
clients:
  acme: {tier: pro}
  once: {tier: pro, valid_until: 2020-01-01}
  solo: {limit: 40/day, tier: pro}
";
    check(
        rules,
        &[
            (json!({"client_key": "sk_free_1"}), "tier:free", Some(19)),
            (json!({"client_key": "sk_free_2", "tier": "pro"}), "tier:pro", Some(29)),
            (json!({"client_key": "acme"}), "tier:pro", Some(29)),
            // A client that changes tiers keeps its remaining units, capped by the new tier's limit.
            (json!({"client_key": "acme", "tier": "free"}), "tier:free", Some(19)),
            (json!({"client_key": "acme"}), "tier:pro", Some(18)),
            (json!({"client_key": "once"}), "tier:free", Some(19)),
            (json!({"client_key": "solo"}), "client", Some(39)),
            (json!({"client_key": "bob"}), "tier:free", Some(19)),
            (json!({"client_key": "carol", "tier": "plain"}), "default", Some(9)),
            (json!({"client_key": "dave", "tier": "unheard-of"}), "tier:free", Some(19)),
        ],
    );
}

#[test]
fn an_override_applies_until_it_expires() {
    let until = unix_seconds() + 2;
    let server = Server::with_rules(&format!(
        "
rules:
  - id: orders
    limit: 10/day
    override:
      vip: 50/day
      was: {{limit: 60/day, valid_until: 2020-01-01}}
      is: {{limit: 70/day, valid_until: 2099-12-31T23:59:59Z}}
      ends: {{limits: [80/day, 90/day], valid_until: {until}}}
"
    ));
    let mut client = server.connect();
    let mut limit_of = |key: &str| {
        client.post("/v1/peek", json!({"client_key": key}).to_string()).json()["limit"].as_u64().unwrap()
    };
    assert_eq!([limit_of("vip"), limit_of("was"), limit_of("is"), limit_of("other")], [50, 10, 70, 10]);
    let limit = limit_of("ends");
    assert!(limit == 80 || (limit == 10 && unix_seconds() >= until), "{limit}");
    within(Duration::from_secs(30), "the override expires", || (limit_of("ends") == 10).then_some(()));
    assert!(unix_seconds() >= until);
}

#[test]
fn lists_allow_or_deny_before_any_rule() {
    let rules = "
default: {limit: 1/day}
whitelist: [friend, 'sk_internal_*', 10.8.0.0/16, '2001:db8::/32', 192.0.2.1]
blacklist: [foe, 'sk_revoked_*', 10.8.6.0/24, '*-test']
";
    let server = Server::with_rules(rules);
    let mut client = server.connect();
    let mut decide = |request: Value| {
        let answer = client.post("/v1/check", request.to_string()).json();
        (answer["allowed"].as_bool().unwrap(), answer["reason"].as_str().unwrap().to_owned())
    };
    let (yes, no) = ((true, "allow_list".to_owned()), (false, "deny_list".to_owned()));
    for _ in 0..3 {
        assert_eq!(decide(json!({"client_key": "friend"})), yes);
        assert_eq!(decide(json!({"client_key": "sk_internal_7", "cost": 4_000_000_000_u32})), yes);
        assert_eq!(decide(json!({"client_key": "x", "ip": "10.8.7.6"})), yes);
        assert_eq!(decide(json!({"client_key": "x", "ip": "::ffff:10.8.7.6"})), yes);
        assert_eq!(decide(json!({"ip": "2001:db8:ffff::1"})), yes);
        assert_eq!(decide(json!({"ip": "192.0.2.1"})), yes);
        assert_eq!(decide(json!({"client_key": "foe"})), no);
        assert_eq!(decide(json!({"client_key": "sk_revoked_7"})), no);
        assert_eq!(decide(json!({"client_key": "load-test"})), no);
        // A client on both lists is denied.
        assert_eq!(decide(json!({"client_key": "friend", "ip": "10.8.6.1"})), no);
        assert_eq!(decide(json!({"client_key": "sk_internal_test", "ip": "10.9.0.1"})), yes);
    }
    let limit = "limit".to_owned();
    for near in ["friendly", "Friend", "sk_internal", "foes", "sk_revoke"] {
        assert_eq!(decide(json!({"client_key": near, "ip": "10.9.0.1"})), (true, limit.clone()), "{near}");
    }
    let metrics = server.metrics();
    let [yes, no] = [("(allow_list)", "allowed"), ("(deny_list)", "denied")]
        .map(|(rule, what)| metrics.decisions(rule, what));
    assert_eq!((yes, no, metrics.decisions("default", "allowed")), (21.0, 12.0, 5.0));
}

#[test]
fn of_rules_with_the_same_key_only_the_first_applies() {
    let rules = "
rules:
  - {id: search, match: {path: /search}, limit: 8/day}
  - {id: anything, match: {path: '/**', method: GET}, limit: 9/day}
  - {id: address, key: ip, limit: 100/day}
  - {id: everybody, key: global, limit: 1000/day}
default: {limit: 10/day}
";
    let server = Server::with_rules(rules);
    let mut client = server.connect();
    let mut policies = |request: Value| {
        let answer = client.post("/v1/check", request.to_string());
        let policies = answer.field("ratelimit-policy").unwrap();
        policies.split(", ").map(|policy| policy.split('"').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    let check_body = |path: &str, method: &str, ip: &str| json!({"client_key": "alice", "endpoint": path, "method": method, "ip": ip});
    assert_eq!(policies(check_body("/search", "GET", "10.0.0.1")), ["search", "address", "everybody"]);
    assert_eq!(policies(check_body("/else", "GET", "10.0.0.1")), ["anything", "address", "everybody"]);
    assert_eq!(policies(check_body("/else", "PUT", "10.0.0.1")), ["address", "everybody", "default"]);
    assert_eq!(policies(json!({"client_key": "alice"})), ["everybody", "default"]);
    assert_eq!(policies(json!({"ip": "10.0.0.1"})), ["address", "everybody", "default"]);
    let mut left = |request: Value| client.post("/v1/peek", request.to_string()).number("remaining");
    // Each rule counts separately.
    assert_eq!(
        [left(check_body("/search", "GET", "10.0.0.9")), left(check_body("/else", "GET", "10.0.0.9"))],
        [7, 8]
    );
}

#[test]
fn a_shadow_rule_denies_nothing_and_is_counted() {
    let server = Server::with_rules(
        "
rules:
  - {id: tried-out, shadow: true, limit: 2/day}
  - {id: off, enabled: false, limit: 1/day}
default: {limit: 100/day}
",
    );
    let mut client = server.connect();
    for left in (94..100).rev() {
        let answer = client.post("/v1/check", r#"{"client_key":"alice"}"#);
        let body = answer.json();
        assert_eq!(
            (answer.is_allowed(), answer.number("remaining"), &body["rule"]),
            (true, left, &json!("default"))
        );
        assert_eq!(
            answer.field("ratelimit-policy"),
            Some("\"default\";q=100;w=86400"),
            "clients do not see shadow rules"
        );
    }
    let metrics = server.metrics();
    assert_eq!(metrics.decisions("tried-out", "shadow_denied"), 4.0);
    assert_eq!((metrics.decisions("default", "allowed"), metrics.decisions("default", "denied")), (6.0, 0.0));
    assert_eq!(metrics.all_decisions().len(), 2, "a disabled rule decides nothing");
}

#[test]
fn an_unknown_tier_or_a_missing_key_does_not_bypass_a_limit() {
    let rules = "
tiers: {free: 10/day, pro: 100/day}
default_tier: free
rules: [{id: login, match: {path: /login}, key: client, limit: 5/day}]
";
    check(
        rules,
        &[
            (json!({"client_key": "a", "tier": "pro"}), "tier:pro", Some(99)),
            (json!({"client_key": "b", "tier": "Pro"}), "tier:free", Some(9)),
            (json!({"ip": "192.0.2.1"}), "tier:free", Some(9)),
            (json!({"client_key": "192.0.2.1"}), "tier:free", Some(9)),
            (json!({"ip": "2001:db8::1"}), "tier:free", Some(9)),
            (json!({"ip": "2001:db8::2"}), "tier:free", Some(8)),
            (json!({"attributes": {"x": "1"}}), "tier:free", Some(9)),
            (json!({"attributes": {"x": "2"}}), "tier:free", Some(8)),
            (json!({"ip": "192.0.2.1", "endpoint": "http://host/login"}), "login", Some(4)),
            (json!({"ip": "192.0.2.1", "endpoint": "/login;a=b"}), "login", Some(3)),
            (json!({"ip": "192.0.2.1", "endpoint": "/x/..;/login"}), "login", Some(2)),
        ],
    );
    let strict = Server::with_rules(&format!("{rules}unknown_tier: refuse\nmissing: refuse\n"));
    let mut client = strict.connect();
    for (request, reason, code) in [
        (json!({"client_key": "b", "tier": "Pro"}), "unknown_tier", "UNKNOWN_TIER"),
        (json!({"attributes": {"x": "1"}}), "missing", "IDENTITY_MISSING"),
    ] {
        let answer = client.post("/v1/check", request.to_string()).json();
        assert_eq!((&answer["allowed"], &answer["reason"]), (&json!(false), &json!(reason)), "{request}");
        let answer = client.post("/v1/check?deny_status=429", request.to_string());
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (429, &json!(code)), "{request}");
    }
    let metrics = strict.metrics();
    assert_eq!(metrics.decisions("(unknown_tier)", "denied"), 2.0);
    assert_eq!(metrics.value("ratekeeper_unknown_tiers_total{handling=\"refused\"}"), 2.0);
    assert_eq!(metrics.value("ratekeeper_missing_keys_total{handling=\"refused\"}"), 2.0);
}
