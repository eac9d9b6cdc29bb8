//! Clients of a limiter that is one line long.

use ratekeeper_testkit::load::{LoadPlan, Target};
use ratekeeper_testkit::servers::RedisServer;
use std::time::Duration;

const HUNDRED: &str = "return {redis.call('INCR', KEYS[1]) > 100 and 1 or 0, 'and more'}";

fn hundred(servers: &[&RedisServer]) -> LoadPlan {
    let targets = servers.iter().map(|server| Target::Resp(server.address()));
    LoadPlan::on(targets).words(&["EVAL", HUNDRED, "1", "{key}"])
}

#[test]
fn every_answer_is_accounted_for() {
    let server = RedisServer::start();
    let tally = hundred(&[&server]).connections(8).depth(5).keys(3).run(1000);
    assert_eq!((tally.allowed(), tally.denied(), tally.failed()), (300, 700, 0));
    for key in 0..3 {
        assert_eq!(tally.for_key(key).allowed(), 100);
        assert_eq!(server.command(&["GET", &format!("key{key}")]).integer(), 1000 / 3 + i64::from(key == 0));
    }
    assert_eq!(tally.most_allowed_within(tally.took()), 300);
    assert!(tally.answers().iter().all(|answer| answer.asked < answer.answered));
}

#[test]
fn clients_outlive_a_server_that_is_away() {
    let (mut first, second) = (RedisServer::start(), RedisServer::start());
    let running = hundred(&[&first, &second]).connections(4).patience(Duration::from_millis(200)).begin();
    running.await_more(500);
    first.kill();
    let killed = running.now();
    running.await_more(500);
    running.await_more_failed(20);
    let back = running.now();
    first.restart();
    running.await_more(500);
    second.pause();
    running.await_more(100);
    second.resume();
    running.await_more(500);
    let tally = running.end();
    let away = tally.during(killed..back);
    assert!(away.of(0).failed() > 0 && away.of(0).allowed() + away.of(0).denied() == 0);
    assert!(away.of(1).failed() == 0 && away.of(1).denied() > 0);
    assert!(tally.of(0).longest_silence() >= back - killed);
    // What a killed server had counted is gone with it.
    assert!(tally.of(0).allowed() > 100 && tally.of(1).allowed() == 100);
}
