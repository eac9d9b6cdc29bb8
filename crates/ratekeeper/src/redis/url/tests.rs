//! What a store's URL may say, and what each mistake is told.

use super::{Credentials, RedisUrl, SecretText, ServerAddress, StoreUrl, StoreUrlError, UrlTopology};
use proptest::prelude::*;

fn read(text: &str) -> RedisUrl {
    match text.parse() {
        Ok(StoreUrl::Redis(url)) => *url,
        other => panic!("{text}: {other:?}"),
    }
}

/// Says that a URL is read, and shown again as `shown`.
fn check(text: &str, shown: &str) {
    let url: StoreUrl = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(url.to_string(), shown, "{text}");
}

fn refuse(text: &str, part_of_advice: &str) {
    let error = text.parse::<StoreUrl>().expect_err(text).to_string();
    assert!(error.contains(part_of_advice), "{text}: {error}");
}

#[test]
fn every_form_is_read_and_shown_without_its_password() {
    check("memory", "memory");
    check("redis://localhost", "redis://localhost:6379");
    check("redis://localhost/", "redis://localhost:6379");
    check("redis://10.0.0.1:7000/3", "redis://10.0.0.1:7000/3");
    check("redis://[::1]", "redis://[::1]:6379");
    check("redis://[::1]:7000", "redis://[::1]:7000");
    check("valkey://cache", "redis://cache:6379");
    check("redis://:hidden@h", "redis://:***@h:6379");
    check("redis://me:hidden@h", "redis://me:***@h:6379");
    check("redis://m%3Ae:hid%40den@h", "redis://m%3Ae:***@h:6379");
    check("rediss://h?ca=/etc/ca.pem", "rediss://h:6379?ca=/etc/ca.pem");
    check("rediss://h?cert=c.pem&key=k.pem", "rediss://h:6379?cert=c.pem&key=k.pem");
    check("redis+sentinel://a,b:7/main", "redis+sentinel://a:26379,b:7/main");
    check(
        "rediss+sentinel://u:hidden@a/main/2?sentinel_user=s&sentinel_password=hidden",
        "rediss+sentinel://u:***@a:26379/main/2?sentinel_user=s&sentinel_password=***",
    );
    check("redis+cluster://a:1,b:2,c:3", "redis+cluster://a:1,b:2,c:3");
    check("rediss+cluster://a:1/0", "rediss+cluster://a:1");
    check("redis+sharded://a:1,b:2/5", "redis+sharded://a:1,b:2/5");
    check("redis+unix:///run/redis.sock?db=2", "redis+unix:///run/redis.sock?db=2");
    check("redis+unix://:hidden@/run/redis.sock", "redis+unix://:***@/run/redis.sock");
}

#[test]
fn escapes_are_undone_where_they_are_meant() {
    let url = read("redis://a%3Ab:p%40%2F%3F%23%25%C3%A9@h");
    let login = Credentials { user: Some("a:b".into()), password: Some(SecretText::new("p@/?#%é")) };
    assert_eq!(url.login, login);
    let url = read("redis+sentinel://h/my%2Fmaster?sentinel_password=a%26b");
    let login = Credentials { user: None, password: Some(SecretText::new("a&b")) };
    assert_eq!(url.form, UrlTopology::Sentinel { master: "my/master".into(), login });
}

#[test]
fn servers_are_read_as_they_are_written() {
    let tcp = |host: &str, port| ServerAddress::Tcp { host: host.into(), port };
    assert_eq!(
        read("redis+sharded://a,b:1,[fe80::1]:2").servers,
        [tcp("a", 6379), tcp("b", 1), tcp("fe80::1", 2)]
    );
}

#[test]
fn every_mistake_says_what_to_write_instead() {
    refuse("", "redis://host:port");
    refuse("localhost:6379", "redis://host:port");
    refuse("http://localhost", "redis://host:port");
    refuse("redis+://h", "redis://host:port");
    refuse("redis+magic://h", "redis+cluster://");
    refuse("redis://", "names no server");
    refuse("redis:///2", "names no server");
    refuse("redis://a,b", "redis+cluster://");
    refuse("redis+cluster://a,,b", "host:port");
    refuse("redis+cluster://a,a:6379", "twice");
    refuse("redis://h:99999", "host:port");
    refuse("redis://h:0", "host:port");
    refuse("redis://h:+1", "host:port");
    refuse("redis://::1", "brackets");
    refuse("redis://[::1", "brackets");
    refuse("redis://[nonsense]:1", "brackets");
    refuse("redis://h/one", "/0");
    refuse("redis://h/-1", "/0");
    refuse("redis://h/1/2", "database alone");
    refuse("redis+cluster://h/1", "only database 0");
    refuse("redis+sentinel://h", "mastername");
    refuse("redis+sentinel://h/", "mastername");
    refuse("redis://h?ca=x", "ca behind ?");
    refuse("redis://h?ca=x", "rediss");
    refuse("rediss://h?verify=no", "?ca=FILE");
    refuse("redis+sentinel://h/m?sentinel_password=a&b", "%26 for &");
    refuse("redis://me:secret", "@host:port");
    refuse("redis+cluster://a,b:c", "server 2 of");
    refuse("rediss://h?ca=", "ca=");
    refuse("rediss://h?ca=a&ca=b", "once");
    refuse("rediss://h?cert=a", "&key=FILE");
    refuse("rediss+unix:///s", "redis+unix://");
    refuse("redis+unix://", "redis+unix:///path");
    refuse("redis://u:p%zz@h", "%25");
    refuse("redis://u:p%ff@h", "%25");
    refuse("redis://u:p@q@h", "%40");
    refuse("redis://u:p/q@h", "%2F");
    refuse("redis://u:p?q@h", "%3F");
    refuse("redis://u:p#q@h", "%23");
    refuse("redis://u:p:q@h", "%3A");
    let many: Vec<String> = (0..=super::MAX_SERVERS).map(|port| format!("h:{}", port + 1)).collect();
    assert_eq!(
        format!("redis+cluster://{}", many.join(",")).parse::<StoreUrl>(),
        Err(StoreUrlError::TooManyServers)
    );
}

#[test]
fn a_password_is_never_shown() {
    let texts = [
        "redis://u:hunter2@h",
        "redis+sentinel://u:hunter2@h/m?sentinel_password=hunter2",
        "redis://u:hunter2@h:bad",
        "redis://u:hunter2@h/bad",
        "redis://u:hunter2/@h",
        // Without a host.
        "redis://u:hunter2",
        "redis://:hunter2",
        "redis://u:hunter2/0",
        "redis+cluster://a,u:hunter2",
        "redis://u:1/hunter2",
        "redis://u:1/hunter2/2",
        // Without an escape.
        "redis+sentinel://h/m?sentinel_password=a&hunter2",
        "redis+sentinel://h/m?sentinel_password=a&hunter2=b",
        "rediss://h?hunter2",
    ];
    // A password that is written as a user's name is one that can't be told from it.
    for text in texts {
        let shown = match text.parse::<StoreUrl>() {
            Ok(url) => format!("{url} {url:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains("hunter2"), "{text}: {shown}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(redis|rediss)?(\\+(cluster|sentinel|unix|sharded))?(://)?[ -~é]{0,40}") {
        if let Ok(url) = text.parse::<StoreUrl>() {
            // What is shown is a URL again, of the same store.
            let again: StoreUrl = url.to_string().parse().map_err(|error| TestCaseError::fail(format!("{url}: {error}")))?;
            prop_assert_eq!(again.to_string(), url.to_string());
        }
    }

    #[test]
    fn every_login_can_be_written(user in "[^\\x00]{1,12}", password in "[^\\x00]{0,12}") {
        let escaped = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
        let url = read(&format!("redis://{}:{}@h", escaped(&user), escaped(&password)));
        prop_assert_eq!(url.login, Credentials { user: Some(user), password: Some(SecretText::new(password)) });
    }
}
