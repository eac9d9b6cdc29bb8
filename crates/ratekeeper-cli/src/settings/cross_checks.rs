//! What is wrong with settings that are each in order, but not together.

use super::table::{DefaultValue, TABLE};
use super::{SettingDiagnostic, SettingOrigin, SourcedText};

/// The settings that say where to listen.
const LISTENERS: [&str; 4] = ["http", "grpc", "resp", "admin"];

/// All of it; `said` is what is in force for each setting, in the order of the table.
pub(super) fn complaints(said: &[Option<SourcedText>]) -> Vec<SettingDiagnostic> {
    let together = CrossChecked { said };
    let tokens = [("admin_token_file", "admin_token"), ("api_token_file", "api_token")]
        .map(|pair| together.about_token(pair));
    [together.about_tls(), tokens.concat(), together.about_listeners()].concat()
}

struct CrossChecked<'a> {
    said: &'a [Option<SourcedText>],
}

impl<'a> CrossChecked<'a> {
    fn about_tls(&self) -> Vec<SettingDiagnostic> {
        match (self.set("tls_cert"), self.set("tls_key")) {
            (Some(_), Some(_)) => Vec::new(),
            (Some(cert), None) => {
                vec![cert.complain("a certificate is of no use without its key: add tls_key")]
            }
            (None, Some(key)) => {
                vec![key.complain("a key is of no use without its certificate: add tls_cert")]
            }
            (None, None) => {
                let idle = [self.set("tls_client_ca"), self.set("tls_on")].into_iter().flatten();
                idle.map(|said| said.complain("this means nothing without TLS: add tls_cert and tls_key"))
                    .collect()
            }
        }
    }

    fn about_token(&self, (file, token): (&str, &str)) -> Vec<SettingDiagnostic> {
        let (Some(_), Some(token)) = (self.set(file), self.set(token)) else { return Vec::new() };
        vec![token.complain(&format!("there is also {file}, and only one can be the token: leave one out"))]
    }

    fn about_listeners(&self) -> Vec<SettingDiagnostic> {
        let listeners: Vec<_> =
            LISTENERS.iter().filter_map(|name| self.find(name).map(|said| (*name, said))).collect();
        // Of two that are at odds, the one that somebody chose is to blame.
        let culprit = |listeners: &[(&str, &'a SourcedText)]| {
            let chosen = listeners.iter().rev().find(|(_, said)| said.origin != SettingOrigin::Default);
            chosen.or(listeners.first()).map(|(_, said)| *said)
        };
        if listeners.iter().all(|(_, said)| said.text == "off") {
            let complaint = "http, grpc, resp and admin are all off, so nobody could ask: leave one on";
            return culprit(&listeners).map(|said| said.complain(complaint)).into_iter().collect();
        }
        let mut complaints = Vec::new();
        for (index, (name, said)) in listeners.iter().enumerate() {
            let is_taken = |(_, other): &&(&str, &SourcedText)| said.text == other.text;
            let has_port = said.text != "off" && !said.text.ends_with(":0");
            if let Some(other) = listeners[..index].iter().find(is_taken).filter(|_| has_port) {
                let pair = [*other, (*name, *said)];
                let complaint = format!(
                    "{} and {name} can't listen on the same port: choose another for one of them",
                    other.0
                );
                complaints.extend(culprit(&pair).map(|said| said.complain(&complaint)));
            }
        }
        complaints
    }

    /// What is in force for a setting.
    fn find(&self, name: &str) -> Option<&'a SourcedText> {
        self.said.get(TABLE.iter().position(|setting| setting.name == name)?)?.as_ref()
    }

    /// What somebody said of a setting that is not what holds anyway. Printed settings say the defaults too.
    fn set(&self, name: &str) -> Option<&'a SourcedText> {
        let setting = TABLE.iter().find(|setting| setting.name == name)?;
        let is_default =
            |said: &SourcedText| matches!(setting.fallback, DefaultValue::Text(text) if text == said.text);
        self.find(name).filter(|said| said.origin != SettingOrigin::Default && !is_default(said))
    }
}

impl SourcedText {
    fn complain(&self, wrong: &str) -> SettingDiagnostic {
        SettingDiagnostic::new(self.origin.clone(), wrong)
    }
}
