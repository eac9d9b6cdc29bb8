//! Checks of settings that are valid individually but contradict each other.

use super::table::{DefaultValue, TABLE};
use super::{SettingDiagnostic, SettingOrigin, SourcedText};

/// The settings of listeners.
const LISTENERS: [&str; 4] = ["http", "grpc", "resp", "admin"];

/// Returns the errors; `values` has the effective value of each setting, in the order of the table.
pub(super) fn check_all(values: &[Option<SourcedText>]) -> Vec<SettingDiagnostic> {
    let checks = CrossChecked { values };
    let tokens = [("admin_token_file", "admin_token"), ("api_token_file", "api_token")]
        .map(|pair| checks.check_token(pair));
    [checks.check_tls(), tokens.concat(), checks.check_listeners()].concat()
}

struct CrossChecked<'a> {
    values: &'a [Option<SourcedText>],
}

impl<'a> CrossChecked<'a> {
    fn check_tls(&self) -> Vec<SettingDiagnostic> {
        match (self.explicit_value("tls_cert"), self.explicit_value("tls_key")) {
            (Some(_), Some(_)) => Vec::new(),
            (Some(cert), None) => {
                vec![cert.diagnostic("tls_cert requires tls_key: add the key of the certificate")]
            }
            (None, Some(key)) => {
                vec![key.diagnostic("tls_key requires tls_cert: add the certificate of the key")]
            }
            (None, None) => {
                let idle = [self.explicit_value("tls_client_ca"), self.explicit_value("tls_on")]
                    .into_iter()
                    .flatten();
                idle.map(|value| value.diagnostic("this setting requires TLS: add tls_cert and tls_key"))
                    .collect()
            }
        }
    }

    fn check_token(&self, (file, token): (&str, &str)) -> Vec<SettingDiagnostic> {
        let (Some(_), Some(token)) = (self.explicit_value(file), self.explicit_value(token)) else {
            return Vec::new();
        };
        vec![
            token.diagnostic(&format!(
                "{file} is set too, but there can be only one token: remove one of them"
            )),
        ]
    }

    fn check_listeners(&self) -> Vec<SettingDiagnostic> {
        let listeners: Vec<_> =
            LISTENERS.iter().filter_map(|name| self.value(name).map(|value| (*name, value))).collect();
        // Of two contradictory values, the one that was set explicitly is blamed.
        let blamed = |listeners: &[(&str, &'a SourcedText)]| {
            let chosen = listeners.iter().rev().find(|(_, value)| value.origin != SettingOrigin::Default);
            chosen.or(listeners.first()).map(|(_, value)| *value)
        };
        if listeners.iter().all(|(_, value)| value.text == "off") {
            let message = "http, grpc, resp and admin are all off: enable at least one listener";
            return blamed(&listeners).map(|value| value.diagnostic(message)).into_iter().collect();
        }
        let mut diagnostics = Vec::new();
        for (index, (name, value)) in listeners.iter().enumerate() {
            let is_same = |(_, other): &&(&str, &SourcedText)| value.text == other.text;
            let has_port = value.text != "off" && !value.text.ends_with(":0");
            if let Some(other) = listeners[..index].iter().find(is_same).filter(|_| has_port) {
                let pair = [*other, (*name, *value)];
                let message = format!(
                    "{} and {name} can't listen on the same address: choose another for one of them",
                    other.0
                );
                diagnostics.extend(blamed(&pair).map(|value| value.diagnostic(&message)));
            }
        }
        diagnostics
    }

    /// The effective value of a setting.
    fn value(&self, name: &str) -> Option<&'a SourcedText> {
        self.values.get(TABLE.iter().position(|setting| setting.name == name)?)?.as_ref()
    }

    /// The value of a setting that was set explicitly and differs from the default. Printed settings contain the
    /// defaults too.
    fn explicit_value(&self, name: &str) -> Option<&'a SourcedText> {
        let setting = TABLE.iter().find(|setting| setting.name == name)?;
        let is_default =
            |value: &SourcedText| matches!(setting.fallback, DefaultValue::Text(text) if text == value.text);
        self.value(name).filter(|value| value.origin != SettingOrigin::Default && !is_default(value))
    }
}

impl SourcedText {
    fn diagnostic(&self, message: &str) -> SettingDiagnostic {
        SettingDiagnostic::new(self.origin.clone(), message)
    }
}
