//! The file as a whole, and what stands beside the rules: default, tiers, clients, lists.

use super::fields::{FieldItem, FieldReader};
use super::limits::LimitFields;
use super::{FileDraft, RuleReader, TierNames};
use crate::diagnostic::quoted;
use crate::dimension::Dimension;
use crate::path::PathStyle;
use crate::schema::table::{CLIENT, DEFAULT, FILE, FieldTable, PATHS, TIER};
use crate::spec::{At, ClientSpec, FallbackSpec, FileSpec, ListEntry, Mode, RuleSpec, TierSpec, UnknownTier};
use crate::yaml::{YamlNode, YamlValue};

/// The most rules that a file may have.
pub(crate) const MOST_RULES: usize = 100_000;

/// The fields of which a file must have one to say anything.
pub(crate) const SUBSTANCE: [&str; 6] = ["rules", "default", "tiers", "clients", "whitelist", "blacklist"];

/// What to say of a file in which there is nothing.
pub(super) fn says_nothing() -> String {
    "the file says nothing: write at least one rule, like\nrules:\n  - id: per-key\n    limit: 100/min burst \
     20"
    .to_owned()
}

impl<'n> RuleReader<'n> {
    /// Reads the file, or nothing if it is no map.
    pub(super) fn file(&mut self, root: &'n YamlNode<'n>) -> Option<FileDraft> {
        if root.is_null() {
            self.complaints.error(root.place, says_nothing());
            return None;
        }
        let fields = FieldReader::read(root, &FILE, &mut self.complaints)?;
        if !fields.has_any(&SUBSTANCE) && self.complaints.errors() == 0 {
            self.complaints.error(root.place, says_nothing());
        }
        // Rules are read with what these say.
        self.style = fields.find("paths").and_then(|item| self.path_style(&item)).unwrap_or_default();
        self.tiers = fields.find("tiers").and_then(|item| tier_names(&item));
        let (rules, unsound) = fields.find("rules").map(|item| self.rules(&item)).unwrap_or_default();
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
            ipv6_prefix: fields.find("ipv6_prefix").and_then(|item| self.bits(&item)),
            on_store_failure: self.on_store_failure(&fields),
            consistency: self.consistency(&fields),
            store_timeout_ms: self.store_timeout_ms(&fields),
        };
        if let Some(item) = fields.find("rules") {
            self.warn_of_no_limits(&spec, &item);
        }
        fields.finish();
        Some(FileDraft { spec, unsound })
    }

    fn rules(&mut self, item: &FieldItem<'n>) -> (Vec<RuleSpec>, Vec<bool>) {
        let items = item.list(&mut self.complaints);
        if items.len() > MOST_RULES {
            let said = format!(
                "a file has at most {MOST_RULES} rules, not {}: write patterns, or tiers",
                items.len()
            );
            self.complaints.error(item.named_at, said);
            return Default::default();
        }
        let rules = items.iter().filter_map(|item| self.rule(item.node));
        rules.map(|(rule, is_sound)| (rule, !is_sound)).unzip()
    }

    /// Rules that limit nobody are allowed, and seldom meant.
    fn warn_of_no_limits(&mut self, spec: &FileSpec, rules: &FieldItem<'n>) {
        let is_bare = spec.default.is_none()
            && spec.tiers.is_empty()
            && spec.clients.is_empty()
            && spec.allow.is_empty()
            && spec.deny.is_empty();
        let is_off = spec.rules.iter().all(|rule| rule.mode == Mode::Disabled);
        if is_bare && is_off && self.complaints.errors() == 0 {
            let said = match spec.rules.is_empty() {
                true => {
                    "there are no rules, so everything is allowed: write one, like {id: per-key, limit: \
                     100/min}"
                }
                false => {
                    "no rule is enabled, so everything is allowed: leave enabled: false out of one, or add a \
                     default"
                }
            };
            self.complaints.warn(rules.named_at, said);
        }
    }

    fn default(&mut self, item: &FieldItem<'n>) -> Option<FallbackSpec> {
        let (place, errors) = (item.named_at, self.complaints.errors());
        let (terms, key, missing) = match self.terms(item, &DEFAULT)? {
            (terms, None) => (terms, vec![Dimension::Client], None),
            (terms, Some(fields)) => {
                let key = self.key(&fields, Dimension::Client);
                let missing = self.missing(&fields);
                fields.finish();
                (terms, key, missing)
            }
        };
        let Some(limits) = terms.limits else {
            if self.complaints.errors() == errors {
                self.complaints.error(place, "the default has no limit: add one, like limit: 100/min");
            }
            return None;
        };
        Some(FallbackSpec { key, missing, limits, place })
    }

    fn tier_specs(&mut self, item: &FieldItem<'n>) -> Vec<TierSpec> {
        let mut tiers = Vec::new();
        for (name, item) in item.map(&mut self.complaints) {
            let Some((terms, fields)) = self.terms(&item, &TIER) else { continue };
            let mut keys = Vec::new();
            if let Some(fields) = fields {
                keys = self.each(fields.find("keys"), |reader, item| Some(item.at(reader.pattern(item)?)));
                fields.finish();
            }
            self.complain_of_idle_law(&terms, &item);
            self.complain_of_name("a tier's name", name.value, name.place);
            let name = At { value: name.value.to_owned(), place: name.place };
            tiers.push(TierSpec { name, keys, limits: terms.limits });
        }
        tiers
    }

    fn clients(&mut self, item: &FieldItem<'n>) -> Vec<ClientSpec> {
        let mut clients = Vec::new();
        for (key, item) in item.map(&mut self.complaints) {
            if key.value.contains('*') {
                let said = format!(
                    "a client is one key, so * means nothing in it: write a tier with keys: [{}], or a rule",
                    quoted(key.value)
                );
                self.complaints.error(key.place, said);
            }
            let errors = self.complaints.errors();
            let Some((terms, fields)) = self.terms(&item, &CLIENT) else { continue };
            let (mut tier, mut valid_until) = (None, None);
            if let Some(fields) = fields {
                let named = fields.find("tier");
                tier = named.and_then(|item| Some(item.at(self.tier(&item)?)));
                valid_until = fields.find("valid_until").and_then(|item| item.moment(&mut self.complaints));
                let says_nothing = named.is_none() && terms.limits.is_none() && !terms.names_law;
                if says_nothing && self.complaints.errors() == errors {
                    let said = "nothing is said of the client: give it a tier or a limit";
                    self.complaints.error(key.place, said);
                }
                fields.finish();
            }
            self.complain_of_idle_law(&terms, &item);
            self.complain_of_past(valid_until, key.place, "the client record");
            let key = At { value: key.value.to_owned(), place: key.place };
            clients.push(ClientSpec { key, tier, limits: terms.limits, valid_until });
        }
        clients
    }

    /// Limits that are written as text alone, or with fields, which may have more in them.
    fn terms(
        &mut self,
        item: &FieldItem<'n>,
        table: &'static FieldTable,
    ) -> Option<(LimitFields, Option<FieldReader<'n>>)> {
        if let (YamlValue::Scalar { .. }, false) = (&item.node.value, item.node.is_null()) {
            return Some((LimitFields::of_text(item, &mut self.complaints), None));
        }
        let fields = FieldReader::read(item.node, table, &mut self.complaints)?;
        Some((LimitFields::read(&fields, &mut self.complaints), Some(fields)))
    }

    fn complain_of_idle_law(&mut self, terms: &LimitFields, item: &FieldItem<'n>) {
        if terms.names_law && terms.limits.is_none() {
            self.complaints
                .error(item.place(), "there is an algorithm and no limit: add one, like limit: 100/min");
        }
    }

    fn list(&mut self, fields: &FieldReader<'n>, name: &'static str) -> Vec<At<ListEntry>> {
        let mut entries = Vec::new();
        for item in fields.find_all(name) {
            let items = match &item.node.value {
                // A list that is empty says so, and harms nobody.
                YamlValue::List(_) => item.list(&mut self.complaints),
                _ => vec![item],
            };
            entries.extend(items.iter().filter_map(|item| self.whom(item)));
        }
        entries
    }

    fn path_style(&mut self, item: &FieldItem<'n>) -> Option<PathStyle> {
        let fields = FieldReader::read(item.node, &PATHS, &mut self.complaints)?;
        let slashes = fields.find("escaped_slashes").and_then(|item| item.choice(&mut self.complaints));
        let case = fields.find("ignore_case").and_then(|item| item.flag(&mut self.complaints));
        let matrix = fields.find("matrix_parameters").and_then(|item| item.choice(&mut self.complaints));
        fields.finish();
        Some(PathStyle {
            keep_escaped_slashes: slashes == Some("keep"),
            ignore_case: case.unwrap_or(false),
            keep_matrix_parameters: matrix == Some("keep"),
        })
    }

    fn unknown_tier(&mut self, fields: &FieldReader<'n>) -> UnknownTier {
        let name = fields.find("unknown_tier").and_then(|item| item.choice(&mut self.complaints));
        match name {
            Some("refuse") => UnknownTier::Refuse,
            _ => UnknownTier::Ignore,
        }
    }

    fn bits(&mut self, item: &FieldItem<'n>) -> Option<u8> {
        u8::try_from(item.whole(&mut self.complaints)?).ok()
    }
}

/// The names of the tiers, before anything else of them is read.
fn tier_names<'n>(item: &FieldItem<'n>) -> Option<TierNames<'n>> {
    let YamlValue::Map(pairs) = &item.node.value else { return None };
    Some(TierNames::new(pairs.iter().filter_map(|(name, _)| name.text()).collect()))
}
