//! A metrics parser as strict as Prometheus.

use std::collections::{BTreeMap, HashMap};

/// Every series by its name and labels as written, such as `ratekeeper_keys` or `x{a="b"}`.
pub(crate) struct Metrics {
    samples: BTreeMap<String, f64>,
    pub(crate) kinds: HashMap<String, String>,
}

impl Metrics {
    /// Parses the whole text. Anything that Prometheus would reject fails the test.
    #[track_caller]
    pub(crate) fn read(text: &str) -> Metrics {
        assert!(text.ends_with('\n'), "the last line has no newline");
        let mut metrics = Metrics { samples: BTreeMap::new(), kinds: HashMap::new() };
        // The current metric family, and whether its HELP line was seen.
        let mut family = (String::new(), false);
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, text) = help.split_once(' ').expect(line);
                assert!(is_name(name) && text.ends_with('.'), "{line}");
                assert!(!metrics.kinds.contains_key(name), "{name} appears in two places");
                family = (name.to_owned(), true);
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect(line);
                assert_eq!((name, true), (family.0.as_str(), family.1), "HELP must precede TYPE, once");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(kind != "counter" || name.ends_with("_total"), "{line}");
                family.1 = false;
                metrics.kinds.insert(name.to_owned(), kind.to_owned());
            } else {
                metrics.take_sample(line, &family.0);
            }
        }
        metrics.check_histograms();
        metrics
    }

    fn take_sample(&mut self, line: &str, family: &str) {
        let (series, value) = line.rsplit_once(' ').expect(line);
        let (name, labels) = series
            .split_once('{')
            .map_or((series, ""), |(name, rest)| (name, rest.strip_suffix('}').expect(line)));
        let kind = self.kinds.get(family).expect(line);
        let belongs = match kind.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"].iter().any(|end| name == format!("{family}{end}")),
            _ => name == family,
        };
        assert!(is_name(name) && belongs, "{line} does not belong to {family}");
        assert!(labels.is_empty() != series.contains('{') && are_labels(labels), "{line}");
        let before = self.samples.insert(series.to_owned(), value.parse().expect(line));
        assert_eq!(before, None, "duplicate series {series}");
    }

    /// Checks that buckets are cumulative and that the last one contains all samples.
    fn check_histograms(&self) {
        for (family, _) in self.kinds.iter().filter(|(_, kind)| *kind == "histogram") {
            let prefix = format!("{family}_bucket{{le=\"");
            let bound = |series: &str| -> Option<f64> {
                series.strip_prefix(&prefix)?.strip_suffix("\"}")?.replace("+Inf", "inf").parse().ok()
            };
            let mut buckets: Vec<_> =
                self.samples.iter().filter_map(|(series, count)| Some((bound(series)?, *count))).collect();
            buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
            assert!(buckets.is_sorted_by_key(|(_, count)| *count), "{family}: {buckets:?}");
            let (bound, count) = buckets.last().copied().unwrap();
            assert_eq!((bound, count), (f64::INFINITY, self.samples[&format!("{family}_count")]));
            assert!(self.samples[&format!("{family}_sum")] >= 0.0);
        }
    }

    /// The value of a series by its name and labels as written; 0 if it is missing.
    pub(crate) fn value(&self, series: &str) -> f64 {
        self.samples.get(series).copied().unwrap_or(0.0)
    }

    /// Whether a series exists.
    pub(crate) fn has(&self, series: &str) -> bool {
        self.samples.contains_key(series)
    }

    /// The number of decisions with this outcome under a rule.
    pub(crate) fn decisions(&self, rule: &str, outcome: &str) -> f64 {
        self.value(&format!("ratekeeper_decisions_total{{rule=\"{rule}\",outcome=\"{outcome}\"}}"))
    }

    /// All decisions, by rule and outcome.
    pub(crate) fn all_decisions(&self) -> BTreeMap<&str, f64> {
        let own = self
            .samples
            .iter()
            .filter_map(|(series, count)| Some((series.strip_prefix("ratekeeper_decisions_total")?, *count)));
        own.collect()
    }
}

fn is_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether this is a list of `name="value"` pairs with correctly escaped values.
fn are_labels(mut labels: &str) -> bool {
    while !labels.is_empty() {
        let Some((name, rest)) = labels.split_once("=\"") else { return false };
        let Some(end) = end_of_value(rest) else { return false };
        if !is_name(name) {
            return false;
        }
        labels = &rest[end + 1..];
        match labels.strip_prefix(',') {
            Some("") => return false,
            Some(next) => labels = next,
            None if labels.is_empty() => {}
            None => return false,
        }
    }
    true
}

/// The position of a value's closing quote. `None` if the value is malformed.
fn end_of_value(text: &str) -> Option<usize> {
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some(at),
            b'\\' => {
                let (_, escaped) = bytes.next()?;
                if !b"\\\"n".contains(&escaped) {
                    return None;
                }
            }
            _ => {}
        }
    }
    None
}
