//! One server at a time: that it can be told what to do, stopped in every way, and started anew.

use ratekeeper_core::Micros;
use ratekeeper_testkit::servers::{Brand, RedisServer, RespClient, RespReply};
use ratekeeper_testkit::{PATIENCE, within};
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn is_alive(id: u32) -> bool {
    // A process that has ended stays in the list until its parent asks after it.
    let told = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    told.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn each_brand_answers() {
    for brand in Brand::ALL {
        let server = RedisServer::setup(brand).start();
        assert_eq!(server.command(&["SET", "a", "1"]), RespReply::Simple("OK".to_owned()));
        assert_eq!(server.command(&["INCRBY", "a", "41"]), RespReply::Integer(42));
        assert_eq!(server.command(&["GET", "a"]).integer(), 42);
        assert_eq!(server.command(&["GET", "b"]), RespReply::Nil);
        let both = server.command(&["EVAL", "return {redis.call('TIME')[1] ~= nil, {1, 'x'}}", "0"]);
        assert_eq!(
            both.array()[1],
            RespReply::Array(vec![RespReply::Integer(1), RespReply::Bulk(b"x".to_vec())])
        );
        assert!(server.command(&["NOSUCH"]).error().unwrap().starts_with("ERR unknown command"));
        let has_name = server.command(&["INFO", "server"]).field("valkey_version").is_some();
        assert_eq!(has_name, brand == Brand::Valkey);
        // Its clients come by TCP.
        let mut client = RespClient::tcp(&server.address()).unwrap();
        assert_eq!(client.ask(&["GET", "a"]).unwrap().text(), "42");
        assert_eq!(server.url(), format!("redis://{}", server.address()));
    }
}

#[test]
fn a_paused_server_is_silent_and_goes_on() {
    let server = RedisServer::start();
    let mut client = RespClient::tcp(&server.address()).unwrap();
    client.set_patience(Duration::from_millis(100)).unwrap();
    server.pause();
    assert!(client.ask(&["INCR", "a"]).is_err());
    assert!(server.is_listening());
    server.resume();
    // What it was sent while it was paused is done now.
    client.set_patience(PATIENCE).unwrap();
    assert_eq!(client.read().unwrap(), RespReply::Integer(1));
}

#[test]
fn a_killed_server_is_gone_and_comes_back_at_the_same_place() {
    for brand in Brand::ALL {
        let mut server =
            RedisServer::setup(brand).set("appendonly", "yes").set("appendfsync", "always").start();
        let (address, id) = (server.address(), server.id());
        server.command(&["SET", "a", "1"]).done();
        server.kill();
        assert!(!server.is_running() && !is_alive(id) && TcpStream::connect(&address).is_err());
        server.restart();
        assert_eq!(server.address(), address);
        assert_eq!(server.command(&["GET", "a"]).integer(), 1);
        server.stop();
        assert!(!server.is_running());
        server.restart();
        assert_eq!(server.command(&["GET", "a"]).integer(), 1);
        // Restarted while it runs, it is killed first.
        server.restart();
        assert!(server.is_running());
    }
}

#[test]
fn a_dropped_server_is_gone_with_its_folder() {
    let server = RedisServer::start();
    let (id, folder) = (server.id(), server.folder().to_owned());
    server.pause();
    drop(server);
    assert!(!is_alive(id) && !folder.exists());
}

#[test]
fn passwords_users_and_memory_are_as_told() {
    let setup = RedisServer::setup(Brand::Redis).password("pa55").user("app", "on >s3cret ~app:* +@all");
    let server = setup.set("maxmemory", "20mb").set("maxmemory-policy", "allkeys-lru").start();
    let mut client = RespClient::tcp(&server.address()).unwrap();
    assert!(client.ask(&["PING"]).unwrap().error().unwrap().starts_with("NOAUTH"));
    client.ask(&["AUTH", "pa55"]).unwrap().done();
    client.ask(&["PING"]).unwrap().done();
    client.ask(&["AUTH", "app", "s3cret"]).unwrap().done();
    assert!(client.ask(&["GET", "other"]).unwrap().error().unwrap().starts_with("NOPERM"));
    assert_eq!(server.info("maxmemory_policy"), "allkeys-lru");
    assert_eq!(server.url(), format!("redis://:pa55@{}", server.address()));
}

#[test]
fn a_clock_of_its_own_goes_forth_and_back() {
    for brand in Brand::ALL {
        let server = RedisServer::setup(brand).clock(3600.0).start();
        let true_time = RedisServer::start();
        let ahead = || {
            let seconds = |server: &RedisServer| server.command(&["TIME"]).array()[0].integer();
            let (faked, real) = (seconds(&server), seconds(&true_time));
            faked - real
        };
        assert!((3598..=3601).contains(&ahead()), "{brand:?}: {}", ahead());
        for seconds in [-7200, 5] {
            server.set_clock(f64::from(seconds));
            assert!((i64::from(seconds) - ahead()).abs() <= 2, "{brand:?}: {}", ahead());
        }
        // How long something takes stays true.
        let mut client = server.connect().unwrap();
        assert_eq!(client.ask(&["BLPOP", "nothing", "0.05"]).unwrap(), RespReply::Nil);
        // To the microsecond, at once and each time.
        for micros in [1_700_000_000_000_000, 4_102_444_800_999_999, 1_709_210_096_123_457] {
            server.stop_clock(Micros::new(micros));
            let time = server.command(&["TIME"]);
            let part = |index: usize| u64::try_from(time.array()[index].integer()).unwrap();
            assert_eq!(part(0) * 1_000_000 + part(1), micros, "{brand:?}");
        }
    }
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let said = std::panic::catch_unwind(|| RedisServer::setup(Brand::Redis).set("nosuch", "setting").start());
    let said = said.unwrap_err().downcast::<String>().unwrap();
    assert!(said.contains("nosuch") && said.contains("Bad directive"), "{said}");
}

/// Runs the test below in a process of its own, and kills that in the middle.
#[test]
fn a_test_that_is_killed_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ids");
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holds_servers_when_asked_to", "--nocapture"])
        .env("TESTKIT_HOLD", &file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let ids = within(PATIENCE, "the other test has its servers", || {
        let told = fs::read_to_string(&file).ok()?;
        told.ends_with('\n')
            .then(|| told.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<u32>>())
    });
    assert!(ids.len() == 2 && ids.iter().all(|id| is_alive(*id)));
    other.kill().unwrap();
    other.wait().unwrap();
    within(PATIENCE, "the servers of a killed test end", || {
        ids.iter().all(|id| !is_alive(*id)).then_some(())
    });
}

#[test]
fn holds_servers_when_asked_to() {
    let Some(file) = std::env::var_os("TESTKIT_HOLD") else {
        return;
    };
    let (running, paused) = (RedisServer::start(), RedisServer::start());
    paused.pause();
    let new = Path::new(&file).with_extension("new");
    fs::write(&new, format!("{} {}\n", running.id(), paused.id())).unwrap();
    fs::rename(new, file).unwrap();
    within::<()>(PATIENCE, "somebody kills this test", || None);
}
