//! One server: commands, settings, and every way to stop and restart it.

use ratekeeper_core::Micros;
use ratekeeper_testkit::servers::{Brand, RedisServer, RespClient, RespReply};
use ratekeeper_testkit::{TEST_TIMEOUT, wait_for};
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn is_alive(id: u32) -> bool {
    // An ended process stays a zombie until its parent waits for it.
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
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
        // Clients connect over TCP.
        let mut client = RespClient::connect_tcp(&server.address()).unwrap();
        assert_eq!(client.call(&["GET", "a"]).unwrap().text(), "42");
        assert_eq!(server.url(), format!("redis://{}", server.address()));
    }
}

#[test]
fn a_paused_server_is_silent_until_resumed() {
    let server = RedisServer::start();
    let mut client = RespClient::connect_tcp(&server.address()).unwrap();
    client.set_timeout(Duration::from_millis(100)).unwrap();
    server.pause();
    assert!(client.call(&["INCR", "a"]).is_err());
    assert!(server.is_listening());
    server.resume();
    // Commands sent during the pause are executed now.
    client.set_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(client.read().unwrap(), RespReply::Integer(1));
}

#[test]
fn a_killed_server_restarts_at_the_same_address_with_its_data() {
    for brand in Brand::ALL {
        let mut server =
            RedisServer::setup(brand).set("appendonly", "yes").set("appendfsync", "always").start();
        let (address, id) = (server.address(), server.pid());
        server.command(&["SET", "a", "1"]).expect_ok();
        server.kill();
        assert!(!server.is_running() && !is_alive(id) && TcpStream::connect(&address).is_err());
        server.restart();
        assert_eq!(server.address(), address);
        assert_eq!(server.command(&["GET", "a"]).integer(), 1);
        server.stop();
        assert!(!server.is_running());
        server.restart();
        assert_eq!(server.command(&["GET", "a"]).integer(), 1);
        // A running server is killed before it is restarted.
        server.restart();
        assert!(server.is_running());
    }
}

#[test]
fn dropping_a_server_removes_process_and_folder() {
    let server = RedisServer::start();
    let (id, folder) = (server.pid(), server.folder().to_owned());
    server.pause();
    drop(server);
    assert!(!is_alive(id) && !folder.exists());
}

#[test]
fn passwords_users_and_memory_are_configured() {
    let setup = RedisServer::setup(Brand::Redis).password("pa55").user("app", "on >s3cret ~app:* +@all");
    let server = setup.set("maxmemory", "20mb").set("maxmemory-policy", "allkeys-lru").start();
    let mut client = RespClient::connect_tcp(&server.address()).unwrap();
    assert!(client.call(&["PING"]).unwrap().error().unwrap().starts_with("NOAUTH"));
    client.call(&["AUTH", "pa55"]).unwrap().expect_ok();
    client.call(&["PING"]).unwrap().expect_ok();
    client.call(&["AUTH", "app", "s3cret"]).unwrap().expect_ok();
    assert!(client.call(&["GET", "other"]).unwrap().error().unwrap().starts_with("NOPERM"));
    assert_eq!(server.info("maxmemory_policy"), "allkeys-lru");
    assert_eq!(server.url(), format!("redis://:pa55@{}", server.address()));
}

#[test]
fn a_fake_clock_moves_forwards_and_backwards() {
    for brand in Brand::ALL {
        let server = RedisServer::setup(brand).clock(3600.0).start();
        let reference = RedisServer::start();
        let ahead = || {
            let seconds = |server: &RedisServer| server.command(&["TIME"]).array()[0].integer();
            let (faked, real) = (seconds(&server), seconds(&reference));
            faked - real
        };
        assert!((3598..=3601).contains(&ahead()), "{brand:?}: {}", ahead());
        for seconds in [-7200, 5] {
            server.set_clock(f64::from(seconds));
            assert!((i64::from(seconds) - ahead()).abs() <= 2, "{brand:?}: {}", ahead());
        }
        // Durations stay real.
        let mut client = server.connect().unwrap();
        assert_eq!(client.call(&["BLPOP", "nothing", "0.05"]).unwrap(), RespReply::Nil);
        // A frozen clock is exact to the microsecond, at once and each time.
        for micros in [1_700_000_000_000_000, 4_102_444_800_999_999, 1_709_210_096_123_457] {
            server.freeze_clock(Micros::new(micros));
            let time = server.command(&["TIME"]);
            let part = |index: usize| u64::try_from(time.array()[index].integer()).unwrap();
            assert_eq!(part(0) * 1_000_000 + part(1), micros, "{brand:?}");
        }
    }
}

#[test]
fn a_failed_start_reports_the_log() {
    let result =
        std::panic::catch_unwind(|| RedisServer::setup(Brand::Redis).set("nosuch", "setting").start());
    let message = result.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("nosuch") && message.contains("Bad directive"), "{message}");
}

/// Runs the test below in another process, and kills that process.
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
    let ids = wait_for(TEST_TIMEOUT, "the other test has started its servers", || {
        let text = fs::read_to_string(&file).ok()?;
        text.ends_with('\n')
            .then(|| text.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<u32>>())
    });
    assert!(ids.len() == 2 && ids.iter().all(|id| is_alive(*id)));
    other.kill().unwrap();
    other.wait().unwrap();
    wait_for(TEST_TIMEOUT, "the servers of a killed test end", || {
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
    fs::write(&new, format!("{} {}\n", running.pid(), paused.pid())).unwrap();
    fs::rename(new, file).unwrap();
    wait_for::<()>(TEST_TIMEOUT, "this test is killed", || None);
}
