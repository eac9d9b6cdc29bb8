//! Parses the top level of a file: rules, default, tiers, clients, lists and file-wide settings.

use super::fields::{FieldItem, FieldReader};
use super::limits::LimitFields;
use super::{FileDraft, RuleReader};
use crate::bounds::MAX_RULES;
use crate::diagnostic::quoted;
use crate::dimension::Dimension;
use crate::path::PathStyle;
use crate::schema::field::FieldTable;
use crate::schema::table::{CLIENT, CONTENT_FIELDS, DEFAULT, FILE, PATHS, TIER, UNKNOWN_TIERS};
use crate::spec::{At, ClientSpec, FallbackSpec, FileSpec, ListEntry, Mode, RuleSpec, TierSpec, UnknownTier};
use crate::tier_names::TierNames;
use crate::yaml::{YamlNode, YamlValue};

/// The error for a file that has no rules and no limits.
pub(super) fn no_rules_error() -> String {
    "the file has no rules or limits: write at least one rule, like\nrules:\n  - id: per-key\n    limit: \
     100/min burst 20"
        .to_owned()
}

impl<'n> RuleReader<'n> {
    /// Reads the file. Returns `None` if its root is not a map.
    pub(super) fn file(&mut self, root: &'n YamlNode<'n>) -> Option<FileDraft> {
        if root.is_null() {
            return self.diagnostics.reject(root.place, no_rules_error());
        }
        let fields = FieldReader::new(root, &FILE, &mut self.diagnostics)?;
        if !fields.has_any(&CONTENT_FIELDS) && self.diagnostics.errors() == 0 {
            self.diagnostics.error(root.place, no_rules_error());
        }
        // Rules depend on these, so they come first.
        self.style = fields.find("paths").and_then(|item| self.path_style(&item)).unwrap_or_default();
        self.tiers = fields.find("tiers").and_then(|item| tier_names(&item));
        let (rules, incomplete) = fields.find("rules").map(|item| self.rules(&item)).unwrap_or_default();
        let spec = FileSpec {
            rules,
            default: fields.find("default").and_then(|item| self.default(&item)),
            tiers: fields.find("tiers").map(|item| self.tier_specs(&item)).unwrap_or_default(),
            default_tier: fields.find("default_tier").and_then(|item| Some(item.at(self.tier(&item)?))),
            clients: fields.find("clients").map(|item| self.clients(&item)).unwrap_or_default(),
            allow: self.list(&fields, "whitelist"),
            deny: self.list(&fields, "blacklist"),
            paths: self.style,
            unknown_tier: self.unknown_tier(&fields),
            missing: self.missing(&fields),
            ipv6_prefix: fields
                .read("ipv6_prefix", &mut self.diagnostics, FieldItem::integer)
                .and_then(|bits| u8::try_from(bits).ok()),
            on_store_failure: self.on_store_failure(&fields),
            consistency: self.consistency(&fields),
            store_timeout_ms: self.store_timeout_ms(&fields),
        };
        if let Some(item) = fields.find("rules") {
            self.warn_if_nothing_is_limited(&spec, &item);
        }
        fields.finish();
        Some(FileDraft { spec, incomplete })
    }

    fn rules(&mut self, item: &FieldItem<'n>) -> (Vec<RuleSpec>, Vec<bool>) {
        let items = item.list(&mut self.diagnostics);
        if items.len() > MAX_RULES {
            let message = format!(
                "a file can have at most {MAX_RULES} rules, not {}: use patterns or tiers instead",
                items.len()
            );
            self.diagnostics.error(item.name_place, message);
            return Default::default();
        }
        let rules = items.iter().filter_map(|item| self.rule(item.node));
        rules.map(|(rule, is_complete)| (rule, !is_complete)).unzip()
    }

    /// Rules that limit nothing are valid, but seldom intended.
    fn warn_if_nothing_is_limited(&mut self, spec: &FileSpec, rules: &FieldItem<'n>) {
        let is_bare = spec.default.is_none()
            && spec.tiers.is_empty()
            && spec.clients.is_empty()
            && spec.allow.is_empty()
            && spec.deny.is_empty();
        let is_off = spec.rules.iter().all(|rule| rule.mode == Mode::Disabled);
        if is_bare && is_off && self.diagnostics.errors() == 0 {
            let message = if spec.rules.is_empty() {
                "there are no rules, so everything is allowed: write one, like {id: per-key, limit: 100/min}"
            } else {
                "no rule is enabled, so everything is allowed: remove enabled: false from one, or add a default"
            };
            self.diagnostics.warn(rules.name_place, message);
        }
    }

    fn default(&mut self, item: &FieldItem<'n>) -> Option<FallbackSpec> {
        let (place, errors) = (item.name_place, self.diagnostics.errors());
        let (limit_fields, key, missing) = match self.limit_fields(item, &DEFAULT)? {
            (limit_fields, None) => (limit_fields, vec![Dimension::Client], None),
            (limit_fields, Some(fields)) => {
                let key = self.key(&fields, Dimension::Client);
                let missing = self.missing(&fields);
                fields.finish();
                (limit_fields, key, missing)
            }
        };
        let Some(limits) = limit_fields.limits else {
            if self.diagnostics.errors() == errors {
                self.diagnostics.error(place, "the default has no limit: add one, like limit: 100/min");
            }
            return None;
        };
        Some(FallbackSpec { key, missing, limits, place })
    }

    fn tier_specs(&mut self, item: &FieldItem<'n>) -> Vec<TierSpec> {
        let mut tiers = Vec::new();
        for (name, item) in item.map(&mut self.diagnostics) {
            let Some((limit_fields, fields)) = self.limit_fields(&item, &TIER) else { continue };
            let mut keys = Vec::new();
            if let Some(fields) = fields {
                keys = self.each(fields.find("keys"), |reader, item| Some(item.at(reader.pattern(item)?)));
                fields.finish();
            }
            self.check_algorithm_has_limit(&limit_fields, &item);
            self.check_name("a tier name", name.value, name.place);
            let name = At { value: name.value.to_owned(), place: name.place };
            tiers.push(TierSpec { name, keys, limits: limit_fields.limits });
        }
        tiers
    }

    fn clients(&mut self, item: &FieldItem<'n>) -> Vec<ClientSpec> {
        let mut clients = Vec::new();
        for (key, item) in item.map(&mut self.diagnostics) {
            if key.value.contains('*') {
                let message = format!(
                    "a client is one exact key, so * is not a wildcard here: write a tier with keys: [{}], or a rule",
                    quoted(key.value)
                );
                self.diagnostics.error(key.place, message);
            }
            let errors = self.diagnostics.errors();
            let Some((limit_fields, fields)) = self.limit_fields(&item, &CLIENT) else { continue };
            let (mut tier, mut valid_until) = (None, None);
            if let Some(fields) = fields {
                let named = fields.find("tier");
                tier = named.and_then(|item| Some(item.at(self.tier(&item)?)));
                valid_until = fields.read("valid_until", &mut self.diagnostics, FieldItem::timestamp);
                let is_blank =
                    named.is_none() && limit_fields.limits.is_none() && !limit_fields.names_algorithm;
                if is_blank && self.diagnostics.errors() == errors {
                    let message = "the client has neither a tier nor a limit: add one of them";
                    self.diagnostics.error(key.place, message);
                }
                fields.finish();
            }
            self.check_algorithm_has_limit(&limit_fields, &item);
            self.warn_if_expired(valid_until, key.place, "the client record");
            let key = At { value: key.value.to_owned(), place: key.place };
            clients.push(ClientSpec { key, tier, limits: limit_fields.limits, valid_until });
        }
        clients
    }

    /// Reads limits that are written as text, or as a map, which may have further fields for the caller to read.
    fn limit_fields(
        &mut self,
        item: &FieldItem<'n>,
        table: &'static FieldTable,
    ) -> Option<(LimitFields, Option<FieldReader<'n>>)> {
        if let (YamlValue::Scalar { .. }, false) = (&item.node.value, item.node.is_null()) {
            return Some((LimitFields::from_text(item, &mut self.diagnostics), None));
        }
        let fields = FieldReader::new(item.node, table, &mut self.diagnostics)?;
        Some((LimitFields::read(&fields, &mut self.diagnostics), Some(fields)))
    }

    fn check_algorithm_has_limit(&mut self, limit_fields: &LimitFields, item: &FieldItem<'n>) {
        if limit_fields.names_algorithm && limit_fields.limits.is_none() {
            self.diagnostics
                .error(item.place(), "an algorithm is set, but no limit: add one, like limit: 100/min");
        }
    }

    fn list(&mut self, fields: &FieldReader<'n>, name: &'static str) -> Vec<At<ListEntry>> {
        let mut entries = Vec::new();
        for item in fields.find_all(name) {
            let items = match &item.node.value {
                // An empty list is allowed: it is harmless.
                YamlValue::List(_) => item.list(&mut self.diagnostics),
                _ => vec![item],
            };
            entries.extend(items.iter().filter_map(|item| self.list_entry(item)));
        }
        entries
    }

    fn path_style(&mut self, item: &FieldItem<'n>) -> Option<PathStyle> {
        let fields = FieldReader::new(item.node, &PATHS, &mut self.diagnostics)?;
        let slashes = fields.read("escaped_slashes", &mut self.diagnostics, FieldItem::choice);
        let case = fields.read("ignore_case", &mut self.diagnostics, FieldItem::boolean);
        let matrix = fields.read("matrix_parameters", &mut self.diagnostics, FieldItem::choice);
        fields.finish();
        Some(PathStyle {
            keep_escaped_slashes: slashes == Some("keep"),
            ignore_case: case.unwrap_or(false),
            keep_matrix_parameters: matrix == Some("keep"),
        })
    }

    fn unknown_tier(&mut self, fields: &FieldReader<'n>) -> UnknownTier {
        let name = fields.read("unknown_tier", &mut self.diagnostics, FieldItem::choice);
        UNKNOWN_TIERS.into_iter().find(|known| Some(known.name()) == name).unwrap_or_default()
    }
}

/// Collects the tier names before the tiers themselves are read.
fn tier_names<'n>(item: &FieldItem<'n>) -> Option<TierNames<'n>> {
    let YamlValue::Map(pairs) = &item.node.value else { return None };
    Some(TierNames::new(pairs.iter().filter_map(|(name, _)| name.text()).collect()))
}
