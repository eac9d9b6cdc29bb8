//! Parses a rule: its id, conditions, key, limits and overrides.

use super::RuleReader;
use super::fields::{FieldItem, FieldReader};
use super::limits::LimitFields;
use crate::bounds::{MAX_DIMENSIONS, MAX_ID_BYTES};
use crate::diagnostic::{closest_name, quoted};
use crate::dimension::Dimension;
use crate::pattern::Pattern;
use crate::schema::table::{CONSISTENCIES, FAILURE_MODES, MATCH, MISSING_MODES, RULE};
use crate::spec::{
    At, Consistency, FailureMode, MatchSpec, MissingKey, Mode, OverrideSpec, Position, RuleSpec,
};
use crate::yaml::YamlNode;
use ratekeeper_core::Algorithm;
use std::num::NonZeroU16;

impl<'n> RuleReader<'n> {
    /// Reads a rule. The flag is `true` if it has no errors.
    pub(super) fn rule(&mut self, node: &'n YamlNode<'n>) -> Option<(RuleSpec, bool)> {
        let errors = self.diagnostics.errors();
        let fields = FieldReader::new(node, &RULE, &mut self.diagnostics)?;
        let id = self.id(&fields);
        let match_spec = self.when(&fields);
        let asks_for_descriptor = !match_spec.descriptor.is_empty();
        let limit_fields = LimitFields::read(&fields, &mut self.diagnostics);
        let overrides = self.overrides(&fields, &limit_fields);
        if limit_fields.names_algorithm
            && limit_fields.limits.is_none()
            && overrides.is_empty()
            && self.diagnostics.errors() == errors
        {
            let message = "the rule has an algorithm, but no limit: add a limit, or leave the algorithm out, since \
                           inherited limits have their own";
            self.diagnostics.error(id.place, message);
        }
        // A rule that matches a descriptor is for a proxy, so it counts by the descriptor that the proxy sends.
        let usual = if asks_for_descriptor { Dimension::Descriptor } else { Dimension::ApiKey };
        let rule = RuleSpec {
            id,
            version: fields.read("version", &mut self.diagnostics, FieldItem::integer),
            description: self.text_of(fields.find("description")),
            mode: self.mode(&fields),
            when: match_spec,
            key: self.key(&fields, usual),
            missing: self.missing(&fields),
            limits: limit_fields.limits,
            overrides,
            on_store_failure: self.on_store_failure(&fields),
            consistency: self.consistency(&fields),
            store_timeout_ms: self.store_timeout_ms(&fields),
        };
        self.check_leased_log(&rule, &fields);
        fields.finish();
        Some((rule, self.diagnostics.errors() == errors))
    }

    /// The rule's id. Reports an error and returns an empty id if it can't be read.
    fn id(&mut self, fields: &FieldReader<'n>) -> At<String> {
        let Some(item) = fields.find("id") else { return At { value: String::new(), place: fields.place } };
        let text = item.text(&mut self.diagnostics).unwrap_or_default();
        self.check_name("an id", text, item.place());
        item.at(text.to_owned())
    }

    /// Checks an id or a tier name. Names go into header fields, metrics and bodies unescaped, so they may contain only
    /// characters that need no escaping.
    pub(super) fn check_name(&mut self, what: &str, text: &str, place: Position) {
        let is_known = |c: char| c.is_ascii_alphanumeric() || "._:/-".contains(c);
        if let Some(odd) = text.chars().find(|c| !is_known(*c)) {
            let message = format!(
                "{what} can't contain {odd:?}: use only letters, digits and . _ : / -, like {}",
                suggest_id(text)
            );
            self.diagnostics.error(place, message);
        } else if text.len() > MAX_ID_BYTES {
            let message =
                format!("{what} can have at most {MAX_ID_BYTES} characters, not {}: shorten it", text.len());
            self.diagnostics.error(place, message);
        }
    }

    fn mode(&mut self, fields: &FieldReader<'n>) -> Mode {
        let enabled = fields.read("enabled", &mut self.diagnostics, FieldItem::boolean);
        let shadow = fields.read("shadow", &mut self.diagnostics, FieldItem::boolean);
        match (enabled, shadow) {
            (Some(false), _) => Mode::Disabled,
            (_, Some(true)) => Mode::Shadow,
            _ => Mode::Enforced,
        }
    }

    /// Reads `key`; `usual` if it is left out.
    pub(super) fn key(&mut self, fields: &FieldReader<'n>, usual: Dimension) -> Vec<Dimension> {
        let Some(item) = fields.find("key") else { return vec![usual] };
        let items = item.one_or_list(&mut self.diagnostics);
        let is_alone = items.len() == 1;
        let mut key: Vec<Dimension> = Vec::new();
        for item in &items {
            let Some(name) = item.text(&mut self.diagnostics) else { continue };
            if name == "global" {
                if !is_alone {
                    let message = "global counts all requests together, so it must be the only name: leave out \
                                   global or the others";
                    self.diagnostics.error(item.place(), message);
                }
                continue;
            }
            let dimension = Dimension::named(name);
            if let Dimension::Attribute(name) = &dimension {
                self.check_attribute_name(name, item.place());
            }
            if key.contains(&dimension) {
                let message = format!("{dimension} is in the key twice: leave one out");
                self.diagnostics.error(item.place(), message);
                continue;
            }
            key.push(dimension);
        }
        if key.len() > MAX_DIMENSIONS {
            let message =
                format!("a key can have at most {MAX_DIMENSIONS} names, not {}: leave some out", key.len());
            self.diagnostics.error(item.place(), message);
        }
        key.sort();
        key
    }

    fn check_attribute_name(&mut self, name: &str, place: Position) {
        if !Dimension::is_attribute_name(name) {
            self.diagnostics.error(place, attribute_name_error(name));
        } else if let Some(meant) =
            closest_name(name, Dimension::BUILT_IN_NAMES).or_else(|| foreign_dimension(name))
        {
            let message = format!(
                "{name} is treated as an attribute that callers send, and requests without it are not counted: did \
                 you mean {meant}?"
            );
            self.diagnostics.warn(place, message);
        } else if let Some((source, _)) = name.split_once('.').filter(|(first, _)| is_message_part(first)) {
            let message = format!(
                "{name} is treated as an attribute that callers send, since rules have no access to the {source}: \
                 write api_key for the client's key, or have callers send an attribute of this name"
            );
            self.diagnostics.warn(place, message);
        }
    }

    fn overrides(&mut self, fields: &FieldReader<'n>, limit_fields: &LimitFields) -> Vec<OverrideSpec> {
        let Some(item) = fields.find("override") else { return Vec::new() };
        let mut overrides = Vec::new();
        for (key, item) in item.map(&mut self.diagnostics) {
            if key.value.contains('*') {
                let message = format!(
                    "an override is for one exact key, so * is not a wildcard here: write a rule above this one with \
                     match: {{api_key: {}}}",
                    quoted(key.value)
                );
                self.diagnostics.error(key.place, message);
            }
            let Some((limits, valid_until)) = limit_fields.read_override(&item, &mut self.diagnostics) else {
                continue;
            };
            self.warn_if_expired(valid_until, key.place, "the override");
            overrides.push(OverrideSpec { key: to_owned_text(key), limits, valid_until });
        }
        overrides
    }

    pub(super) fn missing(&mut self, fields: &FieldReader<'n>) -> Option<MissingKey> {
        let name = fields.read("missing", &mut self.diagnostics, FieldItem::choice)?;
        MISSING_MODES.into_iter().find(|known| known.name() == name)
    }

    pub(super) fn on_store_failure(&mut self, fields: &FieldReader<'n>) -> Option<FailureMode> {
        let name = fields.read("on_store_failure", &mut self.diagnostics, FieldItem::choice)?;
        FAILURE_MODES.into_iter().find(|mode| mode.name() == name)
    }

    pub(super) fn consistency(&mut self, fields: &FieldReader<'n>) -> Option<Consistency> {
        let name = fields.read("consistency", &mut self.diagnostics, FieldItem::choice)?;
        CONSISTENCIES.into_iter().find(|known| known.name() == name)
    }

    pub(super) fn store_timeout_ms(&mut self, fields: &FieldReader<'n>) -> Option<NonZeroU16> {
        fields.read("store_timeout", &mut self.diagnostics, FieldItem::timeout_ms)
    }

    fn check_leased_log(&mut self, rule: &RuleSpec, fields: &FieldReader<'n>) {
        let own = rule.limits.iter().flatten();
        let overridden = rule.overrides.iter().flat_map(|client| &client.limits);
        let has_log =
            own.chain(overridden).any(|limit| matches!(limit.algorithm(), Algorithm::SlidingWindowLog(_)));
        if let (true, Some(Consistency::Leased), Some(item)) =
            (has_log, rule.consistency, fields.find("consistency"))
        {
            let message = "a sliding_window_log can't be leased, because it records the time of every unit: write \
                           exact, or use sliding_window_counter";
            self.diagnostics.error(item.place(), message);
        }
    }

    /// Reads the conditions of a rule. Invalid conditions are reported and left out.
    fn when(&mut self, fields: &FieldReader<'n>) -> MatchSpec {
        let rule_tier = fields.find("tier");
        let mut when = match fields
            .find("match")
            .and_then(|item| FieldReader::new(item.node, &MATCH, &mut self.diagnostics))
        {
            Some(fields) => self.conditions(fields),
            None => MatchSpec::default(),
        };
        if let Some(item) = rule_tier {
            when.rule_tier = self.tier(&item);
            if let Some(tier) =
                when.rule_tier.as_ref().filter(|tier| !when.tiers.is_empty() && !when.tiers.contains(tier))
            {
                let message = format!(
                    "the rule is for tier {tier}, but match.tier does not include it, so the rule never matches: write \
                     the tier in one place only"
                );
                self.diagnostics.error(item.place(), message);
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
        let text = item.text(&mut self.diagnostics)?;
        let method = text.to_ascii_uppercase();
        if !text.bytes().all(|byte| byte.is_ascii_alphabetic()) {
            let message = format!(
                "{} is not a method: write one like POST, or leave method out to match all",
                quoted(text)
            );
            return self.diagnostics.reject(item.place(), message);
        }
        if matches!(&*method, "ANY" | "ALL") {
            let message = format!("{text} is treated as the name of a method: leave method out to match all");
            self.diagnostics.warn(item.place(), message);
        } else if let (false, Some(near)) =
            (METHODS.contains(&&*method), closest_name(&method, LOWER_METHODS))
        {
            let message = format!(
                "{text} is not an HTTP method, so it matches only requests with exactly this method: did you mean {}?",
                near.to_ascii_uppercase()
            );
            self.diagnostics.warn(item.place(), message);
        }
        Some(method)
    }

    fn attributes(&mut self, fields: &FieldReader<'n>) -> Vec<(String, Vec<Pattern>)> {
        let Some(item) = fields.find("attributes") else { return Vec::new() };
        let mut attributes = Vec::new();
        for (name, item) in item.map(&mut self.diagnostics) {
            if !Dimension::is_attribute_name(name.value) {
                self.diagnostics.error(name.place, attribute_name_error(name.value));
            }
            let patterns = self.each(Some(item), Self::pattern);
            attributes.push((name.value.to_owned(), patterns));
        }
        attributes
    }

    /// Reads every value of a field that takes one value or a list. Invalid values are left out.
    pub(super) fn each<T>(
        &mut self,
        item: Option<FieldItem<'n>>,
        read: fn(&mut RuleReader<'n>, &FieldItem<'n>) -> Option<T>,
    ) -> Vec<T> {
        let items = item.map(|item| item.one_or_list(&mut self.diagnostics)).unwrap_or_default();
        items.iter().filter_map(|item| read(self, item)).collect()
    }
}

fn attribute_name_error(name: &str) -> String {
    format!(
        "{} is not a valid attribute name: use only letters, digits, _, - and ., like tenant_id",
        quoted(name)
    )
}

/// The name used here for what other limiters call `name`. Returns `None` if there is none.
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

/// Whether `name` is a part of an HTTP message that other limiters read keys from, as in `header.x-api-key`.
fn is_message_part(name: &str) -> bool {
    matches!(
        &*name.to_ascii_lowercase(),
        "header" | "headers" | "cookie" | "cookies" | "query" | "claim" | "jwt" | "request" | "http"
    )
}

/// The methods of HTTP, WebDAV and HTTP caches.
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
/// The methods that a misspelled one is compared with, in lower case as `closest_name` expects.
const LOWER_METHODS: [&str; 9] =
    ["get", "post", "put", "delete", "patch", "head", "options", "connect", "trace"];

/// The text with every invalid character replaced by `-`.
fn suggest_id(text: &str) -> String {
    let known = |c: char| if c.is_ascii_alphanumeric() || "._:/-".contains(c) { c } else { '-' };
    text.chars().take(MAX_ID_BYTES).map(known).collect()
}

fn to_owned_text(text: At<&str>) -> At<String> {
    At { value: text.value.to_owned(), place: text.place }
}
