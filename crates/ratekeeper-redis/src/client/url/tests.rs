//! Valid store URLs, and the message for each kind of error.

use super::{Credentials, RedisUrl, SecretText, ServerAddress, StoreUrl, StoreUrlError, UrlTopology};
use proptest::prelude::*;

fn read(text: &str) -> RedisUrl {
    match text.parse() {
        Ok(StoreUrl::Redis(url)) => *url,
        other => panic!("{text}: {other:?}"),
    }
}

/// Checks that a URL is valid and displayed as `shown`.
fn check(text: &str, shown: &str) {
    let url: StoreUrl = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(url.to_string(), shown, "{text}");
}

/// Checks that a URL is invalid and that the message contains this advice.
fn check_invalid(text: &str, part_of_advice: &str) {
    let error = text.parse::<StoreUrl>().expect_err(text).to_string();
    assert!(error.contains(part_of_advice), "{text}: {error}");
}

#[test]
fn every_scheme_is_parsed_and_displayed_without_its_password() {
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
fn percent_escapes_are_decoded() {
    let url = read("redis://a%3Ab:p%40%2F%3F%23%25%C3%A9@h");
    let credentials = Credentials { user: Some("a:b".into()), password: Some(SecretText::new("p@/?#%é")) };
    assert_eq!(url.credentials, credentials);
    let url = read("redis+sentinel://h/my%2Fmaster?sentinel_password=a%26b");
    let credentials = Credentials { user: None, password: Some(SecretText::new("a&b")) };
    assert_eq!(url.topology, UrlTopology::Sentinel { master: "my/master".into(), credentials });
}

#[test]
fn servers_are_parsed_with_their_default_port() {
    let tcp = |host: &str, port| ServerAddress::Tcp { host: host.into(), port };
    assert_eq!(
        read("redis+sharded://a,b:1,[fe80::1]:2").servers,
        [tcp("a", 6379), tcp("b", 1), tcp("fe80::1", 2)]
    );
}

#[test]
fn every_error_says_what_to_write_instead() {
    check_invalid("", "redis://host:port");
    check_invalid("localhost:6379", "redis://host:port");
    check_invalid("http://localhost", "redis://host:port");
    check_invalid("redis+://h", "redis://host:port");
    check_invalid("redis+magic://h", "redis+cluster://");
    check_invalid("redis://", "names no server");
    check_invalid("redis:///2", "names no server");
    check_invalid("redis://a,b", "redis+cluster://");
    check_invalid("redis+cluster://a,,b", "host:port");
    check_invalid("redis+cluster://a,a:6379", "twice");
    check_invalid("redis://h:99999", "host:port");
    check_invalid("redis://h:0", "host:port");
    check_invalid("redis://h:+1", "host:port");
    check_invalid("redis://::1", "brackets");
    check_invalid("redis://[::1", "brackets");
    check_invalid("redis://[nonsense]:1", "brackets");
    check_invalid("redis://h/one", "/0");
    check_invalid("redis://h/-1", "/0");
    check_invalid("redis://h/1/2", "only the number of a database");
    check_invalid("redis+cluster://h/1", "only database 0");
    check_invalid("redis+sentinel://h", "mastername");
    check_invalid("redis+sentinel://h/", "mastername");
    check_invalid("redis://h?ca=x", "ca is not allowed after ?");
    check_invalid("redis://h?ca=x", "rediss");
    check_invalid("rediss://h?verify=no", "?ca=FILE");
    check_invalid("redis+sentinel://h/m?sentinel_password=a&b", "%26 for &");
    check_invalid("redis://me:secret", "@host:port");
    check_invalid("redis+cluster://a,b:c", "server 2 of");
    check_invalid("rediss://h?ca=", "ca=");
    check_invalid("rediss://h?ca=a&ca=b", "once");
    check_invalid("rediss://h?cert=a", "&key=FILE");
    check_invalid("rediss+unix:///s", "redis+unix://");
    check_invalid("redis+unix://", "redis+unix:///path");
    check_invalid("redis://u:p%zz@h", "%25");
    check_invalid("redis://u:p%ff@h", "%25");
    check_invalid("redis://u:p@q@h", "%40");
    check_invalid("redis://u:p/q@h", "%2F");
    check_invalid("redis://u:p?q@h", "%3F");
    check_invalid("redis://u:p#q@h", "%23");
    check_invalid("redis://u:p:q@h", "%3A");
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
        // The host is missing.
        "redis://u:hunter2",
        "redis://:hunter2",
        "redis://u:hunter2/0",
        "redis+cluster://a,u:hunter2",
        "redis://u:1/hunter2",
        "redis://u:1/hunter2/2",
        // An escape is missing.
        "redis+sentinel://h/m?sentinel_password=a&hunter2",
        "redis+sentinel://h/m?sentinel_password=a&hunter2=b",
        "rediss://h?hunter2",
    ];
    // A password in the place of the user name can't be recognized.
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
    fn any_text_is_parsed_or_rejected(
        text in "(redis|rediss)?(\\+(cluster|sentinel|unix|sharded))?(://)?[ -~é]{0,40}",
    ) {
        if let Ok(url) = text.parse::<StoreUrl>() {
            // The displayed text is a URL of the same store.
            let parsed = url.to_string().parse::<StoreUrl>();
            let parsed = parsed.map_err(|error| TestCaseError::fail(format!("{url}: {error}")))?;
            prop_assert_eq!(parsed.to_string(), url.to_string());
        }
    }

    #[test]
    fn any_credentials_can_be_escaped(user in "[^\\x00]{1,12}", password in "[^\\x00]{0,12}") {
        let escaped = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
        let url = read(&format!("redis://{}:{}@h", escaped(&user), escaped(&password)));
        prop_assert_eq!(url.credentials, Credentials { user: Some(user), password: Some(SecretText::new(password)) });
    }
}
