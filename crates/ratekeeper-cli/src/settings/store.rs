//! The `store` setting: `memory` or a URL. Passwords are never shown.

use super::value::{SettingValue, ValueShape};
use ratekeeper_redis::{HIDDEN_PASSWORD, StoreUrl, StoreUrlError};
use std::fmt;
use std::ops::RangeInclusive;

/// Where states are stored: `memory`, or the URL of a shared store. `Display` and `Debug` show it as written, but
/// without passwords.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoreSetting {
    text: String,
    url: StoreUrl,
}

impl StoreSetting {
    /// The parsed URL.
    pub(crate) fn url(&self) -> &StoreUrl {
        &self.url
    }
}

impl fmt::Display for StoreSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&StoreUrl::hide_passwords(&self.text))
    }
}

impl fmt::Debug for StoreSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreSetting({self})")
    }
}

impl SettingValue for StoreSetting {
    const SHAPE: ValueShape = ValueShape { show: StoreUrl::hide_passwords, ..ValueShape::word("URL") };

    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<StoreSetting, String> {
        let url: StoreUrl = text.parse().map_err(|error| explain(text, &error))?;
        if url.has_hidden_password() {
            return Err(format!(
                "{HIDDEN_PASSWORD} is a placeholder for a hidden password: write the password itself, or put the whole \
                 URL into the variable RATEKEEPER_STORE"
            ));
        }
        Ok(StoreSetting { text: text.to_owned(), url })
    }
}

/// Says what is wrong with a URL, and what to write instead.
fn explain(text: &str, error: &StoreUrlError) -> String {
    let shown = StoreUrl::hide_passwords(text);
    match (error, text.split_once("://")) {
        (StoreUrlError::UnknownScheme, None) => {
            format!("invalid store {shown:?}: write memory, or a URL like redis://127.0.0.1:6379")
        }
        (StoreUrlError::UnknownScheme, Some((scheme, _))) => {
            let schemes: Vec<&str> = StoreUrl::schemes().collect();
            let known = format!("{}://, the same with valkey for redis, and memory", schemes.join("://, "));
            match ratekeeper::rules::closest_name(&scheme.replacen("valkey", "redis", 1), schemes) {
                Some(nearest) => {
                    format!("unknown store {scheme:?}: did you mean {nearest}://? The stores are {known}")
                }
                None => format!("unknown store {scheme:?}: the stores are {known}"),
            }
        }
        (StoreUrlError::NoServer, Some((scheme, _))) => {
            format!("{shown:?} has no host: write {scheme}://HOST:PORT")
        }
        _ => error.to_string(),
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
        assert!(read("memory").unwrap().url() == &StoreUrl::Memory);
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
            assert!(store.url() != &StoreUrl::Memory && store.to_string() == text, "{store}");
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
