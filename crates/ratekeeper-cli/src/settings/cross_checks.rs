//! Checks of settings that are valid individually but contradict each other.

use super::table::{DefaultValue, TABLE};
use super::{SettingErrors, SettingOrigin, SettingValues, SourcedText};

/// The settings of listeners.
const LISTENERS: [&str; 4] = ["http", "grpc", "resp", "admin"];

pub(super) fn check(values: &SettingValues, errors: &mut SettingErrors) {
    check_tls(values, errors);
    for (file, token) in [("admin_token_file", "admin_token"), ("api_token_file", "api_token")] {
        if let (Some(_), Some(token)) = (explicit_value(values, file), explicit_value(values, token)) {
            let message = format!("{file} is set too, but there can be only one token: remove one of them");
            errors.add(&token.origin, message);
        }
    }
    check_listeners(values, errors);
}

fn check_tls(values: &SettingValues, errors: &mut SettingErrors) {
    match (explicit_value(values, "tls_cert"), explicit_value(values, "tls_key")) {
        (Some(_), Some(_)) => {}
        (Some(cert), None) => {
            errors.add(&cert.origin, "tls_cert requires tls_key: add the key of the certificate");
        }
        (None, Some(key)) => {
            errors.add(&key.origin, "tls_key requires tls_cert: add the certificate of the key");
        }
        (None, None) => {
            for idle in ["tls_client_ca", "tls_on"].iter().filter_map(|name| explicit_value(values, name)) {
                errors.add(&idle.origin, "this setting requires TLS: add tls_cert and tls_key");
            }
        }
    }
}

fn check_listeners(values: &SettingValues, errors: &mut SettingErrors) {
    let listeners = LISTENERS.map(|name| (name, &values[name]));
    if listeners.iter().all(|(_, value)| value.text == "off") {
        let message = "http, grpc, resp and admin are all off: enable at least one listener";
        errors.add(blamed(&listeners), message);
        return;
    }
    for (index, (name, value)) in listeners.iter().enumerate() {
        let has_port = value.text != "off" && !value.text.ends_with(":0");
        let same = listeners[..index].iter().find(|(_, other)| has_port && other.text == value.text);
        if let Some(other) = same {
            let message = format!(
                "{} and {name} can't listen on the same address: choose another for one of them",
                other.0
            );
            errors.add(blamed(&[*other, (name, value)]), message);
        }
    }
}

/// Of contradictory values, the last one that was set explicitly is blamed.
fn blamed<'a>(values: &[(&str, &'a SourcedText)]) -> &'a SettingOrigin {
    let mut origins = values.iter().rev().map(|(_, value)| &value.origin);
    origins.find(|origin| **origin != SettingOrigin::Default).unwrap_or(&SettingOrigin::Default)
}

/// The value of a setting that was set explicitly and differs from the default. Printed settings contain the defaults
/// too.
fn explicit_value<'a>(values: &'a SettingValues, name: &str) -> Option<&'a SourcedText> {
    let value = values.get(name).filter(|value| value.origin != SettingOrigin::Default)?;
    let setting = TABLE.iter().find(|setting| setting.name == name)?;
    let is_default = matches!(setting.fallback, DefaultValue::Text(text) if text == value.text);
    (!is_default).then_some(value)
}
