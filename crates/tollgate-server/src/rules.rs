//! The file that says which limits there are.
//!
//! It is YAML, written by people, so every complaint names the place and what to write instead. What is wrong with the
//! file's shape (its YAML, an unknown field) ends the reading; what is wrong with its values is told all at once. A
//! [`Rules`] that exists can be enforced: nothing about it is checked again.

use serde::Deserialize;
use serde_saphyr::{Error as YamlError, Location, MessageFormatter, Spanned, UserMessageFormatter};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io, slice};
use tollgate::{Align, Law, Leak, Limit, LimitError, LogSize, MAX_DRAWS, Quota, QuotaError, Zone};

/// The laws that a rule may name. A concurrency limit is missing: a check over HTTP has no release yet.
const LAWS: [Law; 5] = [
    Law::TokenBucket,
    Law::LeakyBucket(Leak::Meter),
    Law::FixedWindow(Align::Wall(Zone::UTC)),
    Law::SlidingWindowCounter,
    Law::SlidingWindowLog(LogSize::Modest),
];

/// What a file looks like, for whoever wrote something else.
const EXAMPLE: &str = "write at least one rule, like\nrules:\n  - id: per-key\n    limit: 100/min burst 20";

/// Which limits there are: at least one, and no more than a request can pass.
///
/// ```
/// use tollgate_server::Rules;
///
/// let rules = Rules::parse("
/// rules:
///   - id: per-key
///     limits: [100/s, 10000/h]
///   - id: smooth
///     limit: 600/min
///     algorithm: sliding_window_counter
/// ").expect("the rules are in order");
/// assert_eq!(rules.limits().len(), 3);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

/// Limits under one name. For now they bind every key, each key by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    id: String,
    limits: Vec<Limit>,
}

impl Rules {
    /// The rules for those who wrote none: a hundred a minute for each key.
    ///
    /// # Panics
    /// Never: every law can honour a quota so round.
    pub fn built_in() -> Rules {
        let limit = Limit::new(Law::TokenBucket, Quota::per_minute(100)).expect("the quota is round");
        Rules(vec![Rule { id: "default".to_owned(), limits: vec![limit] }])
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it can't be read, or with all that is wrong with what it says.
    pub fn read(path: &Path) -> Result<Rules, RulesError> {
        let text = fs::read_to_string(path)
            .map_err(|source| RulesError::Unreadable { path: path.into(), source })?;
        Rules::parse(&text).map_err(|complaints| RulesError::Invalid { path: path.into(), complaints })
    }

    /// Reads what a file says.
    ///
    /// # Errors
    /// With what is wrong with it, from top to bottom.
    pub fn parse(text: &str) -> Result<Rules, Vec<Complaint>> {
        let file: FileSpec =
            serde_saphyr::from_str(text).map_err(|error| vec![Complaint::about_shape(&error)])?;
        compile(&file.rules)
    }

    /// The rules, in the order of the file.
    pub fn all(&self) -> &[Rule] {
        &self.0
    }

    /// The limits of all rules, in the order of the file.
    pub fn limits(&self) -> Vec<Limit> {
        self.0.iter().flat_map(|rule| rule.limits.iter().copied()).collect()
    }
}

impl Rule {
    /// Its name, which no other rule of the file has.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its limits, at least one.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSpec {
    rules: Spanned<Vec<RuleSpec>>,
}

/// A rule as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleSpec {
    id: Spanned<String>,
    limit: Option<Spanned<String>>,
    limits: Option<Spanned<Vec<Spanned<String>>>>,
    algorithm: Option<Spanned<String>>,
}

fn compile(specs: &Spanned<Vec<RuleSpec>>) -> Result<Rules, Vec<Complaint>> {
    let mut complaints = Vec::new();
    complain_of_ids(&specs.value, &mut complaints);
    complain_of_count(specs, &mut complaints);
    let rules = specs.value.iter().map(|spec| compile_rule(spec, &mut complaints)).collect();
    complaints.sort_by_key(|complaint| (complaint.line, complaint.column));
    if complaints.is_empty() { Ok(Rules(rules)) } else { Err(complaints) }
}

fn complain_of_ids(specs: &[RuleSpec], complaints: &mut Vec<Complaint>) {
    let mut lines = HashMap::new();
    for RuleSpec { id, .. } in specs {
        if id.value.is_empty() {
            complaints.push(Complaint::at(id, "an id can't be empty: give the rule a name of its own"));
        } else if let Some(line) = lines.insert(&id.value, id.referenced.line()) {
            let said =
                format!("the id {:?} is taken by the rule in line {line}: give this one another", id.value);
            complaints.push(Complaint::at(id, said));
        }
    }
}

fn complain_of_count(specs: &Spanned<Vec<RuleSpec>>, complaints: &mut Vec<Complaint>) {
    let limits: usize = specs.value.iter().map(|spec| spec.quotas().len()).sum();
    if specs.value.is_empty() {
        complaints.push(Complaint::at(specs, format!("there are no rules: {EXAMPLE}")));
    } else if limits > MAX_DRAWS {
        let said = format!(
            "a request can pass at most {MAX_DRAWS} limits, not {limits}: leave out those that others imply"
        );
        complaints.push(Complaint::at(specs, said));
    }
}

/// The rule that is meant. If it brought complaints, it is only good for finding more of them.
fn compile_rule(spec: &RuleSpec, complaints: &mut Vec<Complaint>) -> Rule {
    let law = spec.law().unwrap_or_else(|complaint| {
        complaints.push(complaint);
        Law::TokenBucket
    });
    complaints.extend(spec.complain_of_quotas());
    let mut limits = Vec::new();
    for quota in spec.quotas() {
        match compile_limit(law, quota) {
            Ok(limit) => limits.push(limit),
            Err(complaint) => complaints.push(complaint),
        }
    }
    Rule { id: spec.id.value.clone(), limits }
}

impl RuleSpec {
    fn law(&self) -> Result<Law, Complaint> {
        let Some(name) = &self.algorithm else { return Ok(Law::TokenBucket) };
        let known = LAWS.map(Law::name).join(", ");
        let found = LAWS.into_iter().find(|law| law.name() == name.value);
        found.ok_or_else(|| match name.value == Law::Concurrency.name() {
            true => Complaint::at(
                name,
                format!("concurrency counts what is in flight, and a check over HTTP has no release yet: write one of {known}"),
            ),
            false => Complaint::at(name, format!("unknown algorithm {:?}: write one of {known}", name.value)),
        })
    }

    /// Its quotas, whichever way they are written.
    fn quotas(&self) -> &[Spanned<String>] {
        match (&self.limit, &self.limits) {
            (_, Some(limits)) => &limits.value,
            (Some(limit), None) => slice::from_ref(limit),
            (None, None) => &[],
        }
    }

    fn complain_of_quotas(&self) -> Option<Complaint> {
        match (&self.limit, &self.limits) {
            (Some(limit), Some(_)) => {
                Some(Complaint::at(limit, "a rule has limit or limits: put them all into limits"))
            }
            (None, Some(limits)) if limits.value.is_empty() => Some(Complaint::at(
                limits,
                "a rule needs at least one limit: write some, like limits: [100/s, 10000/h]",
            )),
            (None, None) => {
                Some(Complaint::at(&self.id, "the rule has no limit: add one, like limit: 100/min burst 20"))
            }
            (Some(_), None) | (None, Some(_)) => None,
        }
    }
}

fn compile_limit(law: Law, text: &Spanned<String>) -> Result<Limit, Complaint> {
    let quota: Quota =
        text.value.parse().map_err(|error: QuotaError| Complaint::at(text, error.to_string()))?;
    Limit::new(law, quota).map_err(|error| match error {
        LimitError::LogTooLong { .. } => Complaint::at(
            text,
            format!(
                "sliding_window_log remembers every unit, and {quota} is more than the {} a key it may: \
                 lower the amount, or use sliding_window_counter",
                Limit::MODEST_LOG
            ),
        ),
        error => Complaint::at(text, error.to_string()),
    })
}

/// What is wrong in one place, and what to write there instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    line: u64,
    column: u64,
    said: String,
}

impl Complaint {
    fn at<T>(place: &Spanned<T>, said: impl Into<String>) -> Complaint {
        Complaint::at_location(place.referenced, said.into())
    }

    fn at_location(location: Location, said: String) -> Complaint {
        Complaint { line: location.line(), column: location.column(), said }
    }

    /// What keeps the file from being read at all.
    fn about_shape(error: &YamlError) -> Complaint {
        let location = error.location().unwrap_or(Location::UNKNOWN);
        let said = match error.without_snippet() {
            YamlError::SerdeUnknownField { field, expected, .. } => {
                format!("unknown field {field:?}: the fields here are {}", expected.join(", "))
            }
            YamlError::SerdeMissingField { field, .. } => format!("the field {field:?} is missing: add it"),
            YamlError::DuplicateMappingKey { key: Some(field), .. } => {
                format!("the field {field:?} is there twice: keep one of them")
            }
            YamlError::NullIntoString { .. } => {
                "there is no value here: write one, or leave the field out".to_owned()
            }
            YamlError::Eof { .. } => format!("the file says nothing: {EXAMPLE}"),
            // What the parser awaits goes by names that only its authors know.
            YamlError::Unexpected { expected, .. } => match *expected {
                "mapping start" => format!("fields belong here: {EXAMPLE}"),
                "sequence start" => {
                    "a list belongs here: write [one, another], or each on a line behind -".to_owned()
                }
                "string scalar" => {
                    "a single value belongs here: write it without brackets or fields".to_owned()
                }
                expected => format!("{expected} belongs here"),
            },
            other => UserMessageFormatter.format_message(other).into_owned(),
        };
        Complaint::at_location(location, said)
    }
}

/// `3:12: what is wrong`, or without the place if it is not known.
impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.said),
            line => write!(f, "{line}:{}: {}", self.column, self.said),
        }
    }
}

/// Why there are no rules to enforce.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// The file could not be read.
    #[error("cannot read the rules in {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file was read, and what it says can't be enforced. Nothing of it is.
    #[error("{}", list(path, complaints))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, from top to bottom.
        complaints: Vec<Complaint>,
    },
}

/// One complaint a line, each behind the file's name, as compilers write them.
fn list(path: &Path, complaints: &[Complaint]) -> String {
    let lines: Vec<_> =
        complaints.iter().map(|complaint| format!("{}:{complaint}", path.display())).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, said: &[&str]) {
        let complaints = Rules::parse(text).expect_err("the rules are not in order");
        let complaints: Vec<_> = complaints.iter().map(ToString::to_string).collect();
        assert_eq!(complaints.len(), said.len(), "{complaints:#?}");
        for (complaint, said) in complaints.iter().zip(said) {
            assert!(complaint.starts_with(said), "{complaint:?} does not begin with {said:?}");
        }
    }

    #[test]
    fn a_limit_is_written_alone_or_in_a_list_under_any_law() {
        let rules = Rules::parse(
            "
rules:
  - id: per-key            # as people write it
    limit: 100/min burst 20
  - {id: pair, limits: [\"100/s\", '10000/h'], algorithm: sliding_window_counter}
  - {id: leak, limit: 5/s, algorithm: leaky_bucket}
  - {id: clock, limit: 5/day, algorithm: fixed_window}
  - {id: log, limit: 5/s, algorithm: sliding_window_log}
  - {id: 7, limit: 7/s, algorithm: token_bucket}
",
        )
        .unwrap();
        let shown = |rule: &Rule| {
            format!("{}: {:?}", rule.id(), rule.limits().iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let shown: Vec<_> = rules.all().iter().map(shown).collect();
        assert_eq!(
            shown,
            [
                r#"per-key: ["token_bucket 100/min burst 20"]"#,
                r#"pair: ["sliding_window_counter 100/s", "sliding_window_counter 10000/h"]"#,
                r#"leak: ["leaky_bucket 5/s"]"#,
                r#"clock: ["fixed_window 5/day"]"#,
                r#"log: ["sliding_window_log 5/s"]"#,
                r#"7: ["token_bucket 7/s"]"#,
            ]
        );
        assert_eq!(rules.limits().len(), 7);
    }

    #[test]
    fn what_is_wrong_with_values_is_told_all_at_once() {
        check(
            "
rules:
  - id: ''
    limits: [1/x, 5, 20000/s]
    algorithm: sliding_window_log
  - id: b
    algorithm: concurrency
  - id: b
    limit: 4/s
    limits: [0/s]
    algorithm: gcra
  - id: c
    limits: []
  - id: d
    limit: 3/s burst 4
    algorithm: fixed_window
",
            &[
                "3:9: an id can't be empty: give",
                "4:14: cannot read \"x\" as a period: write",
                "4:19: cannot read \"5\" as a quota: write",
                "4:22: sliding_window_log remembers every unit, and 20000/s is more than the 10000",
                "6:9: the rule has no limit: add",
                "7:16: concurrency counts what is in flight, and a check over HTTP has no release yet: write one of token_bucket,",
                "8:9: the id \"b\" is taken by the rule in line 6: give",
                "9:12: a rule has limit or limits: put",
                "10:14: an amount of 0 would refuse everything: write",
                "11:16: unknown algorithm \"gcra\": write one of token_bucket, leaky_bucket, fixed_window, \
                 sliding_window_counter, sliding_window_log",
                "13:13: a rule needs at least one limit: write",
                "15:12: fixed_window has no burst, but the quota is 3/s burst 4: leave",
            ],
        );
        let many = format!("rules:\n  - id: a\n    limits: [{}]\n", "1/s, ".repeat(17));
        check(&many, &["2:3: a request can pass at most 16 limits, not 17: leave out"]);
    }

    #[test]
    fn what_is_wrong_with_the_shape_is_told_in_plain_words() {
        let rule = "rules:\n  - id: a\n    limit: 5/s\n";
        check("", &["1:1: the file says nothing: write at least one rule, like\nrules:\n"]);
        check("rules:", &["1:6: there are no rules: write"]);
        check("rules: []", &["1:8: there are no rules: write"]);
        check("rules: 3", &["1:8: a list belongs here: write"]);
        check("- a", &["1:1: fields belong here: write"]);
        check("rules: [a]", &["1:9: fields belong here: write"]);
        check("rules:\n  - [a, 1/s]", &["2:5: fields belong here: write"]);
        check("rule: []", &["1:1: unknown field \"rule\": the fields here are rules"]);
        check(
            &format!("{rule}    burst: 3"),
            &["4:5: unknown field \"burst\": the fields here are id, limit, limits, algorithm"],
        );
        check(&format!("{rule}    limit: 6/s"), &["4:5: the field \"limit\" is there twice: keep"]);
        check(&format!("{rule}    algorithm: [x]"), &["4:16: a single value belongs here: write"]);
        check("rules:\n  - limit: 1/s", &["2:5: the field \"id\" is missing: add"]);
        check("rules:\n  - id: ~", &["2:9: there is no value here: write"]);
        check("rules:\n  - id: a\n   limit: 5/s", &["3:4: "]);
        check("rules: *a", &["1:8: "]);
    }

    #[test]
    fn the_built_in_rules_are_a_hundred_a_minute() {
        assert_eq!(Rules::built_in(), Rules::parse("rules: [{id: default, limit: 100/min}]").unwrap());
    }
}
