//! Rules that change while the server runs.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod support;

use serde_json::json;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};
use support::{Client, PATIENCE, Server, within};

const ALICE: &str = r#"{"client_key":"alice"}"#;

/// A limit of so many a day, so that no test lives to see a unit come back.
fn a_day(amount: u32) -> String {
    format!("default: {{limit: {amount}/day}}\n")
}

/// The limit that alice is under.
fn limit(client: &mut Client) -> u64 {
    client.post("/v1/peek", ALICE).json()["limit"].as_u64().unwrap()
}

/// Waits until alice is under this limit.
#[track_caller]
fn follows(client: &mut Client, amount: u64) {
    within(PATIENCE, "the rules are followed", || (limit(client) == amount).then_some(()));
}

fn rename_over(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn a_rewrite_is_followed_and_clients_keep_what_they_have() {
    let server = Server::with_rules(&a_day(100));
    let mut client = server.connect();
    assert_eq!(client.check(r#"{"client_key":"alice","cost":70}"#).number("remaining"), 30);
    fs::write(server.rules(), a_day(200)).unwrap();
    follows(&mut client, 200);
    assert_eq!(client.post("/v1/peek", ALICE).number("remaining"), 30, "a higher limit is no amnesty");
    assert_eq!(client.post("/v1/peek", r#"{"client_key":"bob"}"#).number("remaining"), 200);
    fs::write(server.rules(), a_day(20)).unwrap();
    follows(&mut client, 20);
    assert_eq!(client.post("/v1/peek", ALICE).number("remaining"), 20, "and nobody has more than the limit");
    assert_eq!(server.metrics().value("ratekeeper_rules_loads_total"), 3.0);
}

#[test]
fn a_new_rate_holds_at_once() {
    let server = Server::with_rules(&a_day(1));
    let mut client = server.connect();
    assert!(client.check(ALICE).is_allowed());
    assert!(!client.check(ALICE).is_allowed());
    fs::write(server.rules(), "default: {limit: 1000/s burst 5}\n").unwrap();
    within(PATIENCE, "alice may go on", || client.check(ALICE).is_allowed().then_some(()));
}

#[expect(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
#[test]
fn a_change_is_live_within_a_second() {
    let server = Server::with_rules(&a_day(1));
    let mut client = server.connect();
    // A machine that is busy with other things may need longer now and then, but not every time.
    let times = (2..=6).map(|amount| {
        rename_over(&server.rules(), &a_day(amount));
        let begun = Instant::now();
        follows(&mut client, amount.into());
        begun.elapsed()
    });
    let quick = times.min().unwrap();
    assert!(quick < Duration::from_secs(1), "the quickest of five took {quick:?}");
}

#[test]
fn what_is_written_while_it_starts_is_followed_too() {
    for _ in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        rename_over(&path, &a_day(1));
        let has_started = AtomicBool::new(false);
        let (server, last) = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut amount = 1;
                while !has_started.load(SeqCst) {
                    amount += 1;
                    rename_over(&path, &a_day(amount));
                }
                amount
            });
            let server = Server::start_in(folder, &["--rules", path.to_str().unwrap()]);
            has_started.store(true, SeqCst);
            (server, writer.join().unwrap())
        });
        follows(&mut server.connect(), last.into());
    }
}

/// What the kubelet does: the files of each version lie in a folder of their own, and one symlink says which.
#[cfg(unix)]
#[test]
fn a_config_map_is_followed() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (version, amount) in [("..v1", 100), ("..v2", 200)] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("limits.yaml"), a_day(amount)).unwrap();
    }
    symlink("..v1", at("..data")).unwrap();
    symlink("..data/limits.yaml", at("limits.yaml")).unwrap();
    let (path, next, data, old) = (at("limits.yaml"), at("..data_tmp"), at("..data"), at("..v1"));
    let server = Server::start_in(folder, &["--rules", path.to_str().unwrap()]);
    let mut client = server.connect();
    assert_eq!(limit(&mut client), 100);
    symlink("..v2", &next).unwrap();
    fs::rename(&next, &data).unwrap();
    fs::remove_dir_all(&old).unwrap();
    follows(&mut client, 200);
}

#[test]
fn a_signal_or_a_call_has_the_file_read_again_though_it_is_the_same() {
    let server = Server::with_rules(&a_day(100));
    let loads = |count: f64| {
        within(PATIENCE, "the file is read again", || {
            (server.metrics().value("ratekeeper_rules_loads_total") == count).then_some(())
        });
    };
    loads(1.0);
    server.signal("HUP");
    loads(2.0);
    let answer = server.admin("POST", "/v1/reload", "");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (202, "the rules are being read again: see /readyz for what came of it\n")
    );
    loads(3.0);
    let asked = within(PATIENCE, "both are logged", || {
        let asked: Vec<_> = server.log_lines().into_iter().filter(|line| line["is_asked"] == true).collect();
        (asked.len() == 2).then_some(asked)
    });
    assert_eq!((&asked[0]["message"], &asked[0]["rules"]), (&json!("the rules have changed"), &json!(2)));
}

#[test]
fn a_file_with_mistakes_changes_nothing_and_is_told_of_until_it_is_mended() {
    let server = Server::with_rules(&a_day(100));
    let mut client = server.connect();
    assert_eq!(client.check(ALICE).number("remaining"), 99);
    let is_well = || server.metrics().value("ratekeeper_rules_last_load_successful") == 1.0;
    assert!(is_well());

    rename_over(&server.rules(), "default: {limit: 0/day}\nrulez: []\n");
    within(PATIENCE, "the mistake is found", || (!is_well()).then_some(()));
    assert_eq!(client.check(ALICE).number("remaining"), 98, "the rules before it are in force");
    let metrics = server.metrics();
    assert_eq!(metrics.value("ratekeeper_rules_load_failures_total"), 1.0);
    assert_eq!(metrics.value("ratekeeper_rules_loads_total"), 1.0);

    let brief = server.connect_admin().get("/readyz");
    assert_eq!(brief.status, 200, "it goes on answering, so it is ready");
    assert_eq!(
        brief.json(),
        json!({
            "ready": true,
            "draining": false,
            "rules": "the file has mistakes, so the rules before it are in force: ask with the token for more",
        })
    );
    let full = server.admin("GET", "/readyz", "").json();
    let mistakes = full["mistakes"].as_str().unwrap();
    let place = format!("{}:1:18: error: an amount of 0 would refuse everything", server.rules().display());
    assert!(
        mistakes.starts_with(&place) && mistakes.contains(":2:1: error: unknown field \"rulez\""),
        "{mistakes}"
    );

    let told = server.await_lines(1, |line| line["level"] == "ERROR").remove(0);
    let said = told["message"].as_str().unwrap();
    assert!(said.starts_with("the rules stay as they were:\n") && said.contains(&place), "{said}");
    assert_eq!(told["file"], server.rules().to_str().unwrap());

    rename_over(&server.rules(), &a_day(200));
    within(PATIENCE, "it is mended", || is_well().then_some(()));
    assert_eq!(client.check(ALICE).number("remaining"), 97);
    assert_eq!(
        server.admin("GET", "/readyz", "").json(),
        json!({"ready": true, "draining": false, "rules": "in force"})
    );
    assert_eq!(server.metrics().value("ratekeeper_rules_load_failures_total"), 1.0);
}

#[test]
fn a_file_that_is_gone_or_empty_leaves_the_rules_in_force() {
    let server = Server::with_rules(&a_day(100));
    let mut client = server.connect();
    fs::remove_file(server.rules()).unwrap();
    within(PATIENCE, "it is missed", || {
        server.log().contains("a file is gone: what it last said stays").then_some(())
    });
    assert_eq!(limit(&mut client), 100);
    let is_told = |mistake: &str| {
        within(PATIENCE, mistake, || {
            let ready = server.admin("GET", "/readyz", "").json();
            ready["mistakes"].as_str().is_some_and(|said| said.contains(mistake)).then_some(())
        });
    };
    server.signal("HUP");
    is_told(&format!("cannot read the rules in {}: No such file", server.rules().display()));
    // As somebody who writes it anew leaves it for a moment.
    fs::write(server.rules(), "").unwrap();
    is_told("the file says nothing: write at least one rule");
    assert_eq!(server.metrics().value("ratekeeper_rules_load_failures_total"), 2.0);
    assert_eq!(limit(&mut client), 100);
    fs::write(server.rules(), a_day(7)).unwrap();
    follows(&mut client, 7);
}

#[test]
fn connections_and_requests_outlive_a_change_and_none_sees_half_of_two_versions() {
    let version = |amount: u32| {
        format!(
            "rules: [{{id: address, key: ip, limit: {amount}/day}}, {{id: all, key: global, limit: {amount}/day}}]\n{}",
            a_day(amount)
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
        within(PATIENCE, "the rules are followed", || {
            (quotas(&mut client) == u64::from(amount)).then_some(())
        });
    }
    begun.send(ALICE);
    assert!(begun.answer().is_allowed(), "a request that began under the first is answered under the last");
    assert!(begun.check(ALICE).is_allowed());
}

#[test]
fn what_rules_have_counted_outlives_a_change_and_rules_that_go_are_forgotten() {
    let server =
        Server::with_rules("rules: [{id: a, match: {path: /a}, limit: 1/day}]\ndefault: {limit: 100/day}");
    let mut client = server.connect();
    for _ in 0..3 {
        client.check(r#"{"client_key":"alice","endpoint":"/a"}"#);
    }
    client.check(ALICE);
    fs::write(server.rules(), "rules: [{id: b, match: {path: /b}, limit: 1/day}]\ndefault: {limit: 200/day}")
        .unwrap();
    follows(&mut client, 200);
    client.check(ALICE);
    let metrics = server.metrics();
    assert_eq!(metrics.decisions("default", "allowed"), 2.0);
    assert_eq!(metrics.all_decisions().len(), 1, "{:?}", metrics.all_decisions());
    fs::write(server.rules(), "rules: []").unwrap();
    within(PATIENCE, "nothing binds", || {
        (client.post("/v1/check", ALICE).json()["reason"] == "no_rule").then_some(())
    });
    server.await_log("there are no rules, so everything is allowed");
}
