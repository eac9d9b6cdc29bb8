//! The `store` setting: `memory` or a URL. Passwords are never shown.

use super::value::{SettingValue, ValueShape};
use ratekeeper_redis as redis;
use std::fmt;
use std::ops::RangeInclusive;

/// The URL schemes of shared stores. Each also exists with `valkey` in place of `redis`, with the same meaning.
const SCHEMES: [&str; 9] = [
    "redis",
    "rediss",
    "redis+unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "redis+sharded",
    "rediss+sharded",
];

/// The placeholder for a password.
const HIDDEN: &str = "***";

/// The query parameters that are secret.
const SECRETS: [&str; 2] = ["password", "sentinel_password"];

/// Where states are stored: `memory`, or the URL of a shared store. `Display` and `Debug` hide passwords.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoreSetting {
    text: String,
    url: redis::StoreUrl,
}

impl StoreSetting {
    /// The parsed URL.
    pub(crate) fn url(&self) -> &redis::StoreUrl {
        &self.url
    }
}

impl fmt::Display for StoreSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.text))
    }
}

impl fmt::Debug for StoreSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreSetting({self})")
    }
}

impl SettingValue for StoreSetting {
    const SHAPE: ValueShape = ValueShape { show: shown, ..ValueShape::word("URL") };

    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<StoreSetting, String> {
        let advice = "write memory, or a URL like redis://127.0.0.1:6379";
        if text == "memory" {
            return Ok(StoreSetting { text: text.to_owned(), url: redis::StoreUrl::Memory });
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("invalid store {:?}: {advice}", shown(text)));
        };
        let redis_scheme = match scheme.strip_prefix("valkey") {
            Some(kind) => format!("redis{kind}"),
            None => scheme.to_owned(),
        };
        if !SCHEMES.contains(&redis_scheme.as_str()) {
            let known = format!("{}://, the same with valkey for redis, and memory", SCHEMES.join("://, "));
            let advice = match ratekeeper::rules::closest_name(&redis_scheme, SCHEMES) {
                Some(nearest) => format!("did you mean {nearest}://? The stores are {known}"),
                None => format!("the stores are {known}"),
            };
            return Err(format!("unknown store {scheme:?}: {advice}"));
        }
        if rest.trim_start_matches('/').is_empty() {
            return Err(format!("{text:?} has no host: write {scheme}://HOST:PORT"));
        }
        let url: redis::StoreUrl = text.parse().map_err(|error: redis::StoreUrlError| error.to_string())?;
        if passwords(&url).any(|password| password.reveal() == HIDDEN) {
            return Err(format!(
                "{HIDDEN} is a placeholder for a hidden password: write the password itself, or put the whole URL \
                 into the variable RATEKEEPER_STORE"
            ));
        }
        Ok(StoreSetting { text: text.to_owned(), url })
    }
}

/// The passwords of a URL, including those of sentinels.
fn passwords(url: &redis::StoreUrl) -> impl Iterator<Item = &redis::SecretText> {
    let (servers, sentinels) = match url {
        redis::StoreUrl::Memory => (None, None),
        redis::StoreUrl::Redis(url) => match &url.topology {
            redis::UrlTopology::Sentinel { credentials: login, .. } => (Some(&url.credentials), Some(login)),
            redis::UrlTopology::Standalone | redis::UrlTopology::Cluster | redis::UrlTopology::Sharded => {
                (Some(&url.credentials), None)
            }
        },
    };
    servers.into_iter().chain(sentinels).filter_map(|login| login.password.as_ref())
}

/// The text with [`HIDDEN`] in place of each password. In text that can't be parsed as a URL, too much is hidden rather
/// than too little.
fn shown(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return match text.rsplit_once('@') {
            Some((_, host)) => format!("{HIDDEN}@{host}"),
            None => text.to_owned(),
        };
    };
    let (authority, query) = match rest.split_once('?') {
        Some((authority, query)) => (authority, Some(query)),
        None => (rest, None),
    };
    // An unescaped password may contain any character, so the last @ ends it.
    let authority = match authority.rsplit_once('@') {
        Some((credentials, host)) => match credentials.split_once(':') {
            Some((user, _)) => format!("{user}:{HIDDEN}@{host}"),
            None => authority.to_owned(),
        },
        None => authority.to_owned(),
    };
    let query = query.map(|query| {
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, _)) if SECRETS.contains(&name) => format!("{name}={HIDDEN}"),
            _ => pair.to_owned(),
        });
        pairs.collect::<Vec<_>>().join("&")
    });
    match query {
        Some(query) => format!("{scheme}://{authority}?{query}"),
        None => format!("{scheme}://{authority}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn read(text: &str) -> Result<StoreSetting, String> {
        StoreSetting::read(text, &(0..=0))
    }

    #[test]
    fn every_kind_of_store_is_accepted() {
        assert!(read("memory").unwrap().url() == &redis::StoreUrl::Memory);
        for text in [
            "redis://127.0.0.1",
            "redis://h:6379/3",
            "rediss://h:6380?ca=ca.pem",
            "redis+unix:///run/redis.sock",
            "redis+sentinel://a:26379,b:26379/main/2",
            "rediss+sentinel://a:26379/main",
            "redis+cluster://a:7000,b:7000",
            "rediss+cluster://a:7000",
            "redis+sharded://a:6379,b:6379",
            "rediss+sharded://a:6379",
            "valkey://h:6379/3",
            "valkeys://h:6380?ca=ca.pem",
            "valkey+unix:///run/valkey.sock",
            "valkey+sentinel://a:26379/main",
            "valkeys+cluster://a:7000",
            "valkey+sharded://a:6379,b:6379",
        ] {
            let store = read(text).unwrap();
            assert!(store.url() != &redis::StoreUrl::Memory && store.to_string() == text, "{store}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        for (text, shown) in [
            ("redis://:secret@h:6379", "redis://:***@h:6379"),
            ("redis://me:secret@h:6379/1", "redis://me:***@h:6379/1"),
            ("redis://me:se%3Ac%2Fr%40et@h", "redis://me:***@h"),
            ("redis://me@h", "redis://me@h"),
            (
                "redis+sentinel://me:secret@a,b/main?sentinel_user=x&sentinel_password=secret",
                "redis+sentinel://me:***@a,b/main?sentinel_user=x&sentinel_password=***",
            ),
        ] {
            let store = read(text).unwrap();
            assert_eq!(store.to_string(), shown);
            assert_eq!(format!("{store:?}"), format!("StoreSetting({shown})"));
        }
        for text in [
            "me:secret@h",
            "redi://me:secret@h",
            "http://me:secret@h",
            "redis://me:secret",
            "redis+sentinel://a/main?sentinel_password=a&secret",
        ] {
            let message = read(text).unwrap_err();
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn the_placeholder_is_not_accepted_as_a_password() {
        for text in [
            "redis://me:***@h",
            "redis+sentinel://me:real@a/main?sentinel_password=***",
            "redis+sentinel://me:***@a/main?sentinel_password=real",
            "redis+sentinel://a/main?sentinel_password=***",
        ] {
            let message = read(text).unwrap_err();
            assert!(message.starts_with("*** is a placeholder for a hidden password"), "{text}: {message}");
        }
        assert!(read("redis+sentinel://me:re***al@a/main?sentinel_password=real***").is_ok());
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, expected) in [
            ("disk", "invalid store \"disk\": write memory, or a URL like redis://127.0.0.1:6379"),
            ("", "invalid store \"\": write memory, or"),
            ("127.0.0.1:6379", "invalid store \"127.0.0.1:6379\": write memory, or a URL like redis://"),
            (
                "redis+clutser://h",
                "unknown store \"redis+clutser\": did you mean redis+cluster://? The stores are redis",
            ),
            ("http://h", "unknown store \"http\": the stores are redis://, rediss://, "),
            ("valkey+clutser://h", "unknown store \"valkey+clutser\": did you mean redis+cluster://?"),
            ("redis://", "\"redis://\" has no host: write redis://HOST:PORT"),
            ("redis://me:***@h", "*** is a placeholder for a hidden password: write the password itself, or"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.starts_with(expected), "{message:?} does not begin with {expected:?}");
        }
    }
}
