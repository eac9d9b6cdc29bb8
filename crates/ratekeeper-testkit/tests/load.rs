//! The load generator against a limiter of one line of Lua.

use ratekeeper_testkit::load::{LoadPlan, Target};
use ratekeeper_testkit::servers::RedisServer;
use std::time::Duration;

const LIMIT_OF_100: &str = "return {redis.call('INCR', KEYS[1]) > 100 and 1 or 0, 'and more'}";

fn load_with_limit_of_100(servers: &[&RedisServer]) -> LoadPlan {
    let targets = servers.iter().map(|server| Target::Resp(server.address()));
    LoadPlan::new(targets).command(&["EVAL", LIMIT_OF_100, "1", "{key}"])
}

#[test]
fn every_answer_is_logged() {
    let server = RedisServer::start();
    let log = load_with_limit_of_100(&[&server]).connections(8).pipeline_depth(5).keys(3).run(1000);
    assert_eq!((log.allowed(), log.denied(), log.failed()), (300, 700, 0));
    for key in 0..3 {
        assert_eq!(log.for_key(key).allowed(), 100);
        assert_eq!(server.command(&["GET", &format!("key{key}")]).integer(), 1000 / 3 + i64::from(key == 0));
    }
    assert_eq!(log.max_allowed_within(log.elapsed()), 300);
    assert!(log.answers().iter().all(|answer| answer.sent < answer.answered));
}

#[test]
fn clients_reconnect_after_an_outage() {
    let (mut first, second) = (RedisServer::start(), RedisServer::start());
    let running =
        load_with_limit_of_100(&[&first, &second]).connections(4).timeout(Duration::from_millis(200)).start();
    running.wait_for_answers(500);
    first.kill();
    let killed = running.now();
    running.wait_for_answers(500);
    running.wait_for_failures(20);
    let back = running.now();
    first.restart();
    running.wait_for_answers(500);
    second.pause();
    running.wait_for_answers(100);
    second.resume();
    running.wait_for_answers(500);
    let log = running.stop();
    let outage = log.during(killed..back);
    assert!(
        outage.from_target(0).failed() > 0
            && outage.from_target(0).allowed() + outage.from_target(0).denied() == 0
    );
    assert!(outage.from_target(1).failed() == 0 && outage.from_target(1).denied() > 0);
    assert!(log.from_target(0).longest_gap() >= back - killed);
    // A killed server loses its counts.
    assert!(log.from_target(0).allowed() > 100 && log.from_target(1).allowed() == 100);
}
