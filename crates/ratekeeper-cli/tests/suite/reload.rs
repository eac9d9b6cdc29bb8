//! Rule reloads while the server runs.

use crate::support::{Client, Server, TIMEOUT, within};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

const ALICE: &str = r#"{"client_key":"alice"}"#;

/// A rule file with a limit per day, so that no unit is refilled during a test.
fn per_day(amount: u32) -> String {
    format!("default: {{limit: {amount}/day}}\n")
}

/// The limit that applies to alice.
fn current_limit(client: &mut Client) -> u64 {
    client.post("/v1/peek", ALICE).json()["limit"].as_u64().unwrap()
}

/// Waits until this limit applies to alice.
#[track_caller]
fn await_limit(client: &mut Client, amount: u64) {
    within(TIMEOUT, "the new rules apply", || (current_limit(client) == amount).then_some(()));
}

fn rename_over(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn a_rewritten_file_is_reloaded_and_clients_keep_their_counters() {
    let server = Server::with_rules(&per_day(100));
    let mut client = server.connect();
    assert_eq!(client.check(r#"{"client_key":"alice","cost":70}"#).number("remaining"), 30);
    fs::write(server.rules(), per_day(200)).unwrap();
    await_limit(&mut client, 200);
    assert_eq!(client.post("/v1/peek", ALICE).number("remaining"), 30, "a higher limit adds no units");
    assert_eq!(client.post("/v1/peek", r#"{"client_key":"bob"}"#).number("remaining"), 200);
    fs::write(server.rules(), per_day(20)).unwrap();
    await_limit(&mut client, 20);
    assert_eq!(
        client.post("/v1/peek", ALICE).number("remaining"),
        20,
        "remaining units are capped by the new limit"
    );
    assert_eq!(server.metrics().value("ratekeeper_rules_loads_total"), 3.0);
}

#[test]
fn a_new_rate_applies_at_once() {
    let server = Server::with_rules(&per_day(1));
    let mut client = server.connect();
    assert!(client.check(ALICE).is_allowed());
    assert!(!client.check(ALICE).is_allowed());
    fs::write(server.rules(), "default: {limit: 1000/s burst 5}\n").unwrap();
    within(TIMEOUT, "alice is allowed again", || client.check(ALICE).is_allowed().then_some(()));
}

#[expect(clippy::disallowed_methods, reason = "the test measures elapsed time")]
#[test]
fn a_change_applies_within_a_second() {
    let server = Server::with_rules(&per_day(1));
    let mut client = server.connect();
    // A busy machine may sometimes take longer, but not every time.
    let times = (2..=6).map(|amount| {
        rename_over(&server.rules(), &per_day(amount));
        let begun = Instant::now();
        await_limit(&mut client, amount.into());
        begun.elapsed()
    });
    let fastest = times.min().unwrap();
    assert!(fastest < Duration::from_secs(1), "the fastest of five took {fastest:?}");
}

#[test]
fn a_change_during_start_up_is_reloaded() {
    for _ in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        rename_over(&path, &per_day(1));
        let has_started = AtomicBool::new(false);
        let (server, last) = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut amount = 1;
                while !has_started.load(SeqCst) {
                    amount += 1;
                    rename_over(&path, &per_day(amount));
                }
                amount
            });
            let server = Server::start_in(folder, &["--rules", path.to_str().unwrap()]);
            has_started.store(true, SeqCst);
            (server, writer.join().unwrap())
        });
        await_limit(&mut server.connect(), last.into());
    }
}

/// Mimics the kubelet: each version's files are in their own folder, and a symlink selects the current one.
#[cfg(unix)]
#[test]
fn a_config_map_update_is_reloaded() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (version, amount) in [("..v1", 100), ("..v2", 200)] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("limits.yaml"), per_day(amount)).unwrap();
    }
    symlink("..v1", at("..data")).unwrap();
    symlink("..data/limits.yaml", at("limits.yaml")).unwrap();
    let (path, next, data, old) = (at("limits.yaml"), at("..data_tmp"), at("..data"), at("..v1"));
    let server = Server::start_in(folder, &["--rules", path.to_str().unwrap()]);
    let mut client = server.connect();
    assert_eq!(current_limit(&mut client), 100);
    symlink("..v2", &next).unwrap();
    fs::rename(&next, &data).unwrap();
    fs::remove_dir_all(&old).unwrap();
    await_limit(&mut client, 200);
}

#[test]
fn a_signal_or_an_admin_call_reloads_an_unchanged_file() {
    let server = Server::with_rules(&per_day(100));
    let loads = |count: f64| {
        within(TIMEOUT, "the file is reloaded", || {
            (server.metrics().value("ratekeeper_rules_loads_total") == count).then_some(())
        });
    };
    loads(1.0);
    server.signal("HUP");
    loads(2.0);
    let answer = server.admin("POST", "/v1/reload", "");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (202, "reloading the rules: see /readyz for the result\n")
    );
    loads(3.0);
    let reloads = within(TIMEOUT, "both reloads are logged", || {
        let reloads: Vec<_> =
            server.log_lines().into_iter().filter(|line| line["is_requested"] == true).collect();
        (reloads.len() == 2).then_some(reloads)
    });
    assert_eq!((&reloads[0]["message"], &reloads[0]["rules"]), (&json!("rules reloaded"), &json!(2)));
}

#[test]
fn an_invalid_file_changes_nothing_and_is_reported_until_it_is_fixed() {
    let server = Server::with_rules(&per_day(100));
    let mut client = server.connect();
    assert_eq!(client.check(ALICE).number("remaining"), 99);
    let is_loaded = || server.metrics().value("ratekeeper_rules_last_load_successful") == 1.0;
    assert!(is_loaded());

    rename_over(&server.rules(), "default: {limit: 0/day}\nrulez: []\n");
    within(TIMEOUT, "the error is found", || (!is_loaded()).then_some(()));
    assert_eq!(client.check(ALICE).number("remaining"), 98, "the previous rules are in force");
    let metrics = server.metrics();
    assert_eq!(metrics.value("ratekeeper_rules_load_failures_total"), 1.0);
    assert_eq!(metrics.value("ratekeeper_rules_loads_total"), 1.0);

    let brief = server.connect_admin().get("/readyz");
    assert_eq!(brief.status, 200, "the server keeps answering, so it is ready");
    assert_eq!(
        brief.json(),
        json!({
            "ready": true,
            "draining": false,
            "rules": "the rule file has errors, so the previous rules stay in force: send the token for details",
        })
    );
    let full = server.admin("GET", "/readyz", "").json();
    let mistakes = full["mistakes"].as_str().unwrap();
    let place = format!("{}:1:18: error: an amount of 0 would deny everything", server.rules().display());
    assert!(
        mistakes.starts_with(&place) && mistakes.contains(":2:1: error: unknown field \"rulez\""),
        "{mistakes}"
    );

    let line = server.await_lines(1, |line| line["level"] == "ERROR").remove(0);
    let message = line["message"].as_str().unwrap();
    assert!(
        message.starts_with("rule reload failed, keeping the previous rules: ") && message.contains(&place),
        "{message}"
    );
    assert_eq!(line["file"], server.rules().to_str().unwrap());

    rename_over(&server.rules(), &per_day(200));
    within(TIMEOUT, "the file is fixed", || is_loaded().then_some(()));
    assert_eq!(client.check(ALICE).number("remaining"), 97);
    assert_eq!(
        server.admin("GET", "/readyz", "").json(),
        json!({"ready": true, "draining": false, "rules": "in force"})
    );
    assert_eq!(server.metrics().value("ratekeeper_rules_load_failures_total"), 1.0);
}

#[test]
fn a_deleted_or_empty_file_leaves_the_rules_in_force() {
    let server = Server::with_rules(&per_day(100));
    let mut client = server.connect();
    fs::remove_file(server.rules()).unwrap();
    within(TIMEOUT, "the missing file is logged", || {
        server.log().contains("a watched file is gone, keeping its last content in use").then_some(())
    });
    assert_eq!(current_limit(&mut client), 100);
    let is_told = |mistake: &str| {
        within(TIMEOUT, mistake, || {
            let ready = server.admin("GET", "/readyz", "").json();
            ready["mistakes"].as_str().is_some_and(|message| message.contains(mistake)).then_some(())
        });
    };
    server.signal("HUP");
    is_told(&format!("cannot read the rules in {}: No such file", server.rules().display()));
    // Editors may leave the file empty for a moment while they rewrite it.
    fs::write(server.rules(), "").unwrap();
    is_told("the file has no rules or limits: write at least one rule");
    assert_eq!(server.metrics().value("ratekeeper_rules_load_failures_total"), 2.0);
    assert_eq!(current_limit(&mut client), 100);
    fs::write(server.rules(), per_day(7)).unwrap();
    await_limit(&mut client, 7);
}

#[test]
fn connections_survive_a_reload_and_no_request_sees_a_mix_of_two_versions() {
    let version = |amount: u32| {
        format!(
            "rules: [{{id: address, key: ip, limit: {amount}/day}}, {{id: all, key: global, limit: {amount}/day}}]\n{}",
            per_day(amount)
        )
    };
    let server = Server::with_rules(&version(1_000_000));
    let mut begun = server.connect();
    begun.send("POST /check HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 22\r\n\r\n");
    assert_eq!(begun.answer().status, 100);
    let mut client = server.connect();
    let quotas = |client: &mut Client| {
        let answer = client.check(r#"{"client_key":"alice","ip":"10.0.0.1"}"#);
        let policies = answer.field("ratelimit-policy").unwrap().to_owned();
        let quotas: Vec<u64> = policies
            .split(", ")
            .map(|policy| policy.split(['=', ';']).nth(2).unwrap().parse().unwrap())
            .collect();
        assert!(quotas.len() == 3 && quotas.iter().all(|quota| *quota == quotas[0]), "{policies}");
        quotas[0]
    };
    for amount in [2_000_000, 3_000_000, 4_000_000] {
        rename_over(&server.rules(), &version(amount));
        within(TIMEOUT, "the new rules apply", || (quotas(&mut client) == u64::from(amount)).then_some(()));
    }
    begun.send(ALICE);
    assert!(
        begun.answer().is_allowed(),
        "a request that began under the first rules is decided under the last"
    );
    assert!(begun.check(ALICE).is_allowed());
}

#[test]
fn metrics_of_kept_rules_survive_a_reload_and_those_of_removed_rules_do_not() {
    let server =
        Server::with_rules("rules: [{id: a, match: {path: /a}, limit: 1/day}]\ndefault: {limit: 100/day}");
    let mut client = server.connect();
    for _ in 0..3 {
        client.check(r#"{"client_key":"alice","endpoint":"/a"}"#);
    }
    client.check(ALICE);
    fs::write(server.rules(), "rules: [{id: b, match: {path: /b}, limit: 1/day}]\ndefault: {limit: 200/day}")
        .unwrap();
    await_limit(&mut client, 200);
    client.check(ALICE);
    let metrics = server.metrics();
    assert_eq!(metrics.decisions("default", "allowed"), 2.0);
    assert_eq!(metrics.all_decisions().len(), 1, "{:?}", metrics.all_decisions());
    fs::write(server.rules(), "rules: []").unwrap();
    within(TIMEOUT, "no rule applies", || {
        (client.post("/v1/check", ALICE).json()["reason"] == "no_rule").then_some(())
    });
    server.await_log("there are no rules, so everything is allowed");
}
