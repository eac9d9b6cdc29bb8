//! A rule: its name, whom it binds, what it counts, and the limits of single clients.

use super::RuleReader;
use super::fields::{FieldItem, FieldReader};
use super::limits::LimitFields;
use crate::diagnostic::{near, quoted};
use crate::dimension::Dimension;
use crate::pattern::Pattern;
use crate::schema::table::{MATCH, RULE};
use crate::spec::{
    At, Consistency, FailureMode, MOST_ID, MatchSpec, MissingKey, Mode, OverrideSpec, Position, RuleSpec,
};
use crate::yaml::YamlNode;
use ratekeeper_core::Algorithm;
use std::num::NonZeroU16;

/// The most names that a key may have: with what else a store needs, they stay below the parts of a key.
pub(crate) const MOST_DIMENSIONS: usize = 8;

impl<'n> RuleReader<'n> {
    /// Reads a rule, and says whether all of it is in order.
    pub(super) fn rule(&mut self, node: &'n YamlNode<'n>) -> Option<(RuleSpec, bool)> {
        let errors = self.complaints.errors();
        let fields = FieldReader::read(node, &RULE, &mut self.complaints)?;
        let id = self.id(&fields);
        let when = self.when(&fields);
        let asks_for_descriptor = !when.descriptor.is_empty();
        let terms = LimitFields::read(&fields, &mut self.complaints);
        let overrides = self.overrides(&fields, &terms);
        if terms.names_law
            && terms.limits.is_none()
            && overrides.is_empty()
            && self.complaints.errors() == errors
        {
            let said = "the rule names an algorithm and no limit: add one, or leave the algorithm out, since \
                        what it inherits \
                        has its own";
            self.complaints.error(id.place, said);
        }
        // A rule that asks for a descriptor is one of a proxy's, and those count what the proxy sends.
        let usual = if asks_for_descriptor { Dimension::Descriptor } else { Dimension::ApiKey };
        let rule = RuleSpec {
            id,
            version: fields.find("version").and_then(|item| item.whole(&mut self.complaints)),
            description: self.text_of(fields.find("description")),
            mode: self.mode(&fields),
            when,
            key: self.key(&fields, usual),
            missing: self.missing(&fields),
            limits: terms.limits,
            overrides,
            on_store_failure: self.on_store_failure(&fields),
            consistency: self.consistency(&fields),
            store_timeout_ms: self.store_timeout_ms(&fields),
        };
        self.complain_of_leased_log(&rule, &fields);
        fields.finish();
        Some((rule, self.complaints.errors() == errors))
    }

    /// The rule's name; empty if it can't be read, and then there is a complaint.
    fn id(&mut self, fields: &FieldReader<'n>) -> At<String> {
        let Some(item) = fields.find("id") else { return At { value: String::new(), place: fields.place } };
        let text = item.text(&mut self.complaints).unwrap_or_default();
        self.complain_of_name("an id", text, item.place());
        item.at(text.to_owned())
    }

    /// Names go into header fields, metrics and bodies as they are, so nothing in them may need to be escaped.
    pub(super) fn complain_of_name(&mut self, what: &str, text: &str, place: Position) {
        let is_known = |c: char| c.is_ascii_alphanumeric() || "._:/-".contains(c);
        if let Some(odd) = text.chars().find(|c| !is_known(*c)) {
            let said = format!(
                "{what} has no {odd:?}: write letters, digits and . _ : / - only, like {}",
                suggest_id(text)
            );
            self.complaints.error(place, said);
        } else if text.len() > MOST_ID {
            let said = format!("{what} has at most {MOST_ID} characters, not {}: shorten it", text.len());
            self.complaints.error(place, said);
        }
    }

    fn mode(&mut self, fields: &FieldReader<'n>) -> Mode {
        let enabled = fields.find("enabled").and_then(|item| item.flag(&mut self.complaints)).unwrap_or(true);
        let shadow = fields.find("shadow").and_then(|item| item.flag(&mut self.complaints)).unwrap_or(false);
        match (enabled, shadow) {
            (false, _) => Mode::Disabled,
            (true, true) => Mode::Shadow,
            (true, false) => Mode::Enforced,
        }
    }

    /// What is counted apart, if the fields say it; else this.
    pub(super) fn key(&mut self, fields: &FieldReader<'n>, usual: Dimension) -> Vec<Dimension> {
        let Some(item) = fields.find("key") else { return vec![usual] };
        let items = item.one_or_list(&mut self.complaints);
        let is_alone = items.len() == 1;
        let mut key: Vec<Dimension> = Vec::new();
        for item in &items {
            let Some(name) = item.text(&mut self.complaints) else { continue };
            if name == "global" {
                if !is_alone {
                    let said = "global is one count for all, so it stands alone: leave it out, or the others";
                    self.complaints.error(item.place(), said);
                }
                continue;
            }
            let dimension = Dimension::named(name);
            if let Dimension::Attribute(name) = &dimension {
                self.complain_of_attribute(name, item.place());
            }
            if key.contains(&dimension) {
                let said = format!("{dimension} is in the key twice: once is enough");
                self.complaints.error(item.place(), said);
                continue;
            }
            key.push(dimension);
        }
        if key.len() > MOST_DIMENSIONS {
            let said =
                format!("a key has at most {MOST_DIMENSIONS} names, not {}: leave some out", key.len());
            self.complaints.error(item.place(), said);
        }
        key.sort();
        key
    }

    fn complain_of_attribute(&mut self, name: &str, place: Position) {
        if !Dimension::is_attribute(name) {
            let said = format!(
                "{} is no name of an attribute: write letters, digits, _, - and . only, like tenant_id",
                quoted(name)
            );
            self.complaints.error(place, said);
        } else if let Some(meant) = near(name, Dimension::NAMES).or_else(|| foreign_dimension(name)) {
            let said = format!(
                "{name} is taken for an attribute that callers send, and whoever does not send it is not \
                 counted: did you \
                 mean {meant}?"
            );
            self.complaints.warn(place, said);
        } else if let Some((source, _)) = name.split_once('.').filter(|(first, _)| is_message_part(first)) {
            let said = format!(
                "{name} is taken for an attribute that callers send; rules see no {source} by themselves: write \
                 api_key for the client's key, or have callers send an attribute of this name"
            );
            self.complaints.warn(place, said);
        }
    }

    fn overrides(&mut self, fields: &FieldReader<'n>, terms: &LimitFields) -> Vec<OverrideSpec> {
        let Some(item) = fields.find("override") else { return Vec::new() };
        let mut overrides = Vec::new();
        for (key, item) in item.map(&mut self.complaints) {
            if key.value.contains('*') {
                let said = format!(
                    "an override is for one key, so * means nothing in it: write a rule above this one with \
                     match: \
                     {{api_key: {}}}",
                    quoted(key.value)
                );
                self.complaints.error(key.place, said);
            }
            let Some((limits, valid_until)) = terms.read_override(&item, &mut self.complaints) else {
                continue;
            };
            self.complain_of_past(valid_until, key.place, "the override");
            overrides.push(OverrideSpec { key: own(key), limits, valid_until });
        }
        overrides
    }

    pub(super) fn missing(&mut self, fields: &FieldReader<'n>) -> Option<MissingKey> {
        let name = fields.find("missing")?.choice(&mut self.complaints)?;
        [MissingKey::Skip, MissingKey::Refuse, MissingKey::Shared]
            .into_iter()
            .find(|known| known.name() == name)
    }

    pub(super) fn on_store_failure(&mut self, fields: &FieldReader<'n>) -> Option<FailureMode> {
        let name = fields.find("on_store_failure")?.choice(&mut self.complaints)?;
        [FailureMode::Open, FailureMode::Closed, FailureMode::Local]
            .into_iter()
            .find(|mode| mode.name() == name)
    }

    pub(super) fn consistency(&mut self, fields: &FieldReader<'n>) -> Option<Consistency> {
        let name = fields.find("consistency")?.choice(&mut self.complaints)?;
        [Consistency::Exact, Consistency::Leased, Consistency::Local]
            .into_iter()
            .find(|known| known.name() == name)
    }

    pub(super) fn store_timeout_ms(&mut self, fields: &FieldReader<'n>) -> Option<NonZeroU16> {
        fields.find("store_timeout")?.timeout_ms(&mut self.complaints)
    }

    fn complain_of_leased_log(&mut self, rule: &RuleSpec, fields: &FieldReader<'n>) {
        let own = rule.limits.iter().flatten();
        let overridden = rule.overrides.iter().flat_map(|client| &client.limits);
        let has_log =
            own.chain(overridden).any(|limit| matches!(limit.law(), Algorithm::SlidingWindowLog(_)));
        if let (true, Some(Consistency::Leased), Some(item)) =
            (has_log, rule.consistency, fields.find("consistency"))
        {
            let said = "a sliding_window_log can't be leased, because every unit has its time: write exact, \
                        or use \
                        sliding_window_counter";
            self.complaints.error(item.place(), said);
        }
    }

    /// Whom the rule binds. A condition that can't be read is missing, and then there is a complaint.
    fn when(&mut self, fields: &FieldReader<'n>) -> MatchSpec {
        let rule_tier = fields.find("tier");
        let mut when = match fields
            .find("match")
            .and_then(|item| FieldReader::read(item.node, &MATCH, &mut self.complaints))
        {
            Some(fields) => self.conditions(fields),
            None => MatchSpec::default(),
        };
        if let Some(item) = rule_tier {
            when.rule_tier = self.tier(&item);
            if let Some(tier) =
                when.rule_tier.as_ref().filter(|tier| !when.tiers.is_empty() && !when.tiers.contains(tier))
            {
                let said = format!(
                    "the rule is for tier {tier}, and match.tier leaves it out, so it can never match: write \
                     the tier in one \
                     place only"
                );
                self.complaints.error(item.place(), said);
            }
        }
        when
    }

    fn conditions(&mut self, fields: FieldReader<'n>) -> MatchSpec {
        let when = MatchSpec {
            api_key: fields.find("api_key").and_then(|item| self.pattern(&item)),
            path: self.path(&fields),
            methods: self.each(fields.find("method"), Self::method),
            tiers: self.each(fields.find("tier"), Self::tier),
            rule_tier: None,
            ip: self.each(fields.find("ip"), Self::network),
            attributes: self.attributes(&fields),
            domain: fields.find("domain").and_then(|item| self.pattern(&item)),
            descriptor: fields.find("descriptor").map(|item| self.descriptor(&item)).unwrap_or_default(),
        };
        fields.finish();
        when
    }

    fn method(&mut self, item: &FieldItem<'n>) -> Option<String> {
        let text = item.text(&mut self.complaints)?;
        let method = text.to_ascii_uppercase();
        if !text.bytes().all(|byte| byte.is_ascii_alphabetic()) {
            let said = format!(
                "{} is no method: write one like POST, or leave method out to match all",
                quoted(text)
            );
            self.complaints.error(item.place(), said);
            return None;
        }
        if matches!(&*method, "ANY" | "ALL") {
            let said = format!("{text} is taken for a method's name: leave method out to match all");
            self.complaints.warn(item.place(), said);
        } else if let (false, Some(near)) = (METHODS.contains(&&*method), near(&method, LOWER_METHODS)) {
            let said = format!(
                "{text} is no method that HTTP knows, and matches only requests that say so: did you mean {}?",
                near.to_ascii_uppercase()
            );
            self.complaints.warn(item.place(), said);
        }
        Some(method)
    }

    fn attributes(&mut self, fields: &FieldReader<'n>) -> Vec<(String, Vec<Pattern>)> {
        let Some(item) = fields.find("attributes") else { return Vec::new() };
        let mut attributes = Vec::new();
        for (name, item) in item.map(&mut self.complaints) {
            if !Dimension::is_attribute(name.value) {
                let said = format!(
                    "{} is no name of an attribute: write letters, digits, _, - and . only, like tenant_id",
                    quoted(name.value)
                );
                self.complaints.error(name.place, said);
            }
            let patterns = self.each(Some(item), Self::pattern);
            attributes.push((name.value.to_owned(), patterns));
        }
        attributes
    }

    /// Each of the values of a field that takes one or a list, as far as it can be read.
    pub(super) fn each<T>(
        &mut self,
        item: Option<FieldItem<'n>>,
        read: fn(&mut RuleReader<'n>, &FieldItem<'n>) -> Option<T>,
    ) -> Vec<T> {
        let items = item.map(|item| item.one_or_list(&mut self.complaints)).unwrap_or_default();
        items.iter().filter_map(|item| read(self, item)).collect()
    }
}

/// What other limiters call something that has another name here.
fn foreign_dimension(name: &str) -> Option<&'static str> {
    match &*name.to_ascii_lowercase() {
        "ip_address" | "ip-address" | "ipaddress" | "client_ip" | "client-ip" | "clientip" | "remote_ip"
        | "remote_addr" | "source_ip" | "src_ip" | "x-forwarded-for" | "x-real-ip" => Some("ip"),
        "apikey" | "api-key" | "x-api-key" | "authorization" | "consumer" => Some("api_key"),
        "url" | "uri" | "request_uri" | "route" => Some("path"),
        "http_method" | "request_method" | "verb" => Some("method"),
        "identity" | "caller" | "client_id" => Some("client"),
        _ => None,
    }
}

/// Whether it is a part of a message that other limiters look for keys in: `header.x-api-key`.
fn is_message_part(name: &str) -> bool {
    matches!(
        &*name.to_ascii_lowercase(),
        "header" | "headers" | "cookie" | "cookies" | "query" | "claim" | "jwt" | "request" | "http"
    )
}

/// The methods of HTTP, of WebDAV and of caches.
const METHODS: [&str; 22] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "CONNECT",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "QUERY",
    "PURGE",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "MKCOL",
    "PROPFIND",
    "PROPPATCH",
    "REPORT",
    "SEARCH",
    "ACL",
    "BAN",
];
/// Those that people may have meant, as `near` compares them.
const LOWER_METHODS: [&str; 9] =
    ["get", "post", "put", "delete", "patch", "head", "options", "connect", "trace"];

/// The nearest to a name that an id may be.
fn suggest_id(text: &str) -> String {
    let known = |c: char| if c.is_ascii_alphanumeric() || "._:/-".contains(c) { c } else { '-' };
    text.chars().take(MOST_ID).map(known).collect()
}

fn own(text: At<&str>) -> At<String> {
    At { value: text.value.to_owned(), place: text.place }
}
