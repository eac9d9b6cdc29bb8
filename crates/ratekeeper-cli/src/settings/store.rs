//! Where states are kept, as a setting says it: a word or a URL, of which nothing secret is ever shown.

use super::value::{SettingValue, ValueShape};
use ratekeeper::redis;
use std::fmt;
use std::ops::RangeInclusive;

/// What the URL of a store that several nodes share begins with. Each has a twin with `valkey` for `redis`, which means the
/// same.
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

/// What stands for a password that is not shown.
const HIDDEN: &str = "***";

/// The parameters of a URL that are secret.
const SECRETS: [&str; 2] = ["password", "sentinel_password"];

/// Where states are kept: `memory`, or the URL of servers that several nodes share. Both its forms for people leave
/// passwords out.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoreSetting {
    text: String,
    url: redis::StoreUrl,
}

impl StoreSetting {
    /// What it says.
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
        write!(f, "StoreUrl({self})")
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
            return Err(format!("{:?} is no store: {advice}", shown(text)));
        };
        let like_redis = match scheme.strip_prefix("valkey") {
            Some(kind) => format!("redis{kind}"),
            None => scheme.to_owned(),
        };
        if !SCHEMES.contains(&like_redis.as_str()) {
            let known = format!("{}://, the same with valkey for redis, and memory", SCHEMES.join("://, "));
            let advice = match super::nearest(&like_redis, SCHEMES) {
                Some(near) => format!("did you mean {near}://? There are {known}"),
                None => format!("there are {known}"),
            };
            return Err(format!("no store is called {scheme:?}: {advice}"));
        }
        if rest.trim_start_matches('/').is_empty() {
            return Err(format!("{text:?} does not say where the store is: write {scheme}://HOST:PORT"));
        }
        let url: redis::StoreUrl = text.parse().map_err(|error: redis::StoreUrlError| error.to_string())?;
        if passwords(&url).any(|password| password.reveal() == HIDDEN) {
            return Err(format!(
                "{HIDDEN} stands for a password that was not shown: write the password itself, or put the whole URL \
                 into the variable RATEKEEPER_STORE"
            ));
        }
        Ok(StoreSetting { text: text.to_owned(), url })
    }
}

/// The passwords of a URL, those of sentinels among them.
fn passwords(url: &redis::StoreUrl) -> impl Iterator<Item = &redis::SecretText> {
    let (servers, sentinels) = match url {
        redis::StoreUrl::Memory => (None, None),
        redis::StoreUrl::Redis(url) => match &url.form {
            redis::UrlTopology::Sentinel { login, .. } => (Some(&url.login), Some(login)),
            redis::UrlTopology::Standalone | redis::UrlTopology::Cluster | redis::UrlTopology::Sharded => {
                (Some(&url.login), None)
            }
        },
    };
    servers.into_iter().chain(sentinels).filter_map(|login| login.password.as_ref())
}

/// The text with [`HIDDEN`] for each password. Of text that can't be read as a URL, rather too much is hidden.
fn shown(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return match text.rsplit_once('@') {
            Some((_, host)) => format!("{HIDDEN}@{host}"),
            None => text.to_owned(),
        };
    };
    let (place, query) = match rest.split_once('?') {
        Some((place, query)) => (place, Some(query)),
        None => (rest, None),
    };
    // A password that was not written as it should be may have any character, so the last @ ends it.
    let place = match place.rsplit_once('@') {
        Some((credentials, host)) => match credentials.split_once(':') {
            Some((user, _)) => format!("{user}:{HIDDEN}@{host}"),
            None => place.to_owned(),
        },
        None => place.to_owned(),
    };
    let query = query.map(|query| {
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, _)) if SECRETS.contains(&name) => format!("{name}={HIDDEN}"),
            _ => pair.to_owned(),
        });
        pairs.collect::<Vec<_>>().join("&")
    });
    match query {
        Some(query) => format!("{scheme}://{place}?{query}"),
        None => format!("{scheme}://{place}"),
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
    fn every_kind_of_store_can_be_named() {
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
            assert_eq!(format!("{store:?}"), format!("StoreUrl({shown})"));
        }
        for wrong in [
            "me:secret@h",
            "redi://me:secret@h",
            "http://me:secret@h",
            "redis://me:secret",
            "redis+sentinel://a/main?sentinel_password=a&secret",
        ] {
            let said = read(wrong).unwrap_err();
            assert!(!said.contains("secret"), "{said}");
        }
    }

    #[test]
    fn what_stands_for_a_password_is_none_wherever_it_is() {
        for text in [
            "redis://me:***@h",
            "redis+sentinel://me:real@a/main?sentinel_password=***",
            "redis+sentinel://me:***@a/main?sentinel_password=real",
            "redis+sentinel://a/main?sentinel_password=***",
        ] {
            let said = read(text).unwrap_err();
            assert!(said.starts_with("*** stands for a password that was not shown"), "{text}: {said}");
        }
        assert!(read("redis+sentinel://me:re***al@a/main?sentinel_password=real***").is_ok());
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (text, said) in [
            ("disk", "\"disk\" is no store: write memory, or a URL like redis://127.0.0.1:6379"),
            ("", "\"\" is no store: write memory, or"),
            ("127.0.0.1:6379", "\"127.0.0.1:6379\" is no store: write memory, or a URL like redis://"),
            (
                "redis+clutser://h",
                "no store is called \"redis+clutser\": did you mean redis+cluster://? There are redis",
            ),
            ("http://h", "no store is called \"http\": there are redis://, rediss://, "),
            ("valkey+clutser://h", "no store is called \"valkey+clutser\": did you mean redis+cluster://?"),
            ("redis://", "\"redis://\" does not say where the store is: write redis://HOST:PORT"),
            (
                "redis://me:***@h",
                "*** stands for a password that was not shown: write the password itself, or",
            ),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.starts_with(said), "{wrong:?} does not begin with {said:?}");
        }
    }
}
