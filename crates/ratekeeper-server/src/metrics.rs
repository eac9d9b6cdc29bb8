//! Metrics in the Prometheus text format.
//!
//! Names are stable: dashboards and alerts depend on them. A client's key is never a label. Rules are; of more than a
//! thousand, those with the fewest decisions share one label.

use ratekeeper::{
    DURATION_BOUNDS_MICROS, DecisionCounts, DurationHistogram, MemoryStats, RuleDecisionCounts,
};
use std::fmt::{Display, Write};

/// The content type of the Prometheus text format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The maximum number of rules with their own label.
const MAX_RULE_LABELS: usize = 1_000;

/// Builds the text of a scrape, one metric family after the other.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    text: String,
}

/// The type of a metric family.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
}

impl Exposition {
    /// An empty exposition.
    pub(crate) fn new() -> Exposition {
        Exposition::default()
    }

    /// The text of the scrape.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Writes a family of labelled samples.
    pub(crate) fn family<'a, V: Display>(
        &mut self,
        name: &str,
        kind: MetricKind,
        help: &str,
        samples: impl IntoIterator<Item = (&'a [(&'a str, &'a str)], V)>,
    ) {
        self.header(name, help, if matches!(kind, MetricKind::Counter) { "counter" } else { "gauge" });
        for (labels, value) in samples {
            self.sample(name, labels, value);
        }
    }

    /// Writes a family of one sample without labels.
    pub(crate) fn single(&mut self, name: &str, kind: MetricKind, help: &str, value: impl Display) {
        self.family(name, kind, help, [(&[][..], value)]);
    }

    fn header(&mut self, name: &str, help: &str, kind: &str) {
        write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n")
            .expect("writing to a String never fails");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let text = &mut self.text;
        text.push_str(name);
        let mut separator = '{';
        for (label, value) in labels {
            text.push(separator);
            write!(text, "{label}=\"{}\"", escape_label(value)).expect("writing to a String never fails");
            separator = ',';
        }
        if separator == ',' {
            text.push('}');
        }
        writeln!(text, " {value}").expect("writing to a String never fails");
    }

    /// Writes the decision counters: each decision once, under the rule that decided.
    pub(crate) fn decisions(&mut self, counts: &DecisionCounts) {
        let name = "ratekeeper_decisions_total";
        self.header(
            name,
            "Checks by deciding rule and outcome; shadow_denied is counted in addition.",
            "counter",
        );
        let mut sample = |rule: &str, outcome: &str, count: u64| {
            if count > 0 {
                self.sample(name, &[("rule", rule), ("outcome", outcome)], count);
            }
        };
        let mut each = |rule: &str, rule_counts: &RuleDecisionCounts| {
            sample(rule, "allowed", rule_counts.allowed);
            sample(rule, "denied", rule_counts.denied);
            sample(rule, "shadow_denied", rule_counts.shadow_denied);
            sample(rule, "degraded", rule_counts.degraded);
        };
        let total = |rule_counts: &RuleDecisionCounts| {
            rule_counts.allowed + rule_counts.denied + rule_counts.shadow_denied + rule_counts.degraded
        };
        let mut rules: Vec<_> =
            counts.rules.iter().filter(|(_, rule_counts)| total(rule_counts) > 0).collect();
        let mut others = RuleDecisionCounts::default();
        if rules.len() > MAX_RULE_LABELS {
            rules.sort_by_key(|(_, rule_counts)| std::cmp::Reverse(total(rule_counts)));
            for (_, rule_counts) in rules.drain(MAX_RULE_LABELS..) {
                others.allowed += rule_counts.allowed;
                others.denied += rule_counts.denied;
                others.shadow_denied += rule_counts.shadow_denied;
                others.degraded += rule_counts.degraded;
            }
        }
        for (id, rule_counts) in rules {
            each(id, rule_counts);
        }
        each("(others)", &others);
        each("(stated)", &counts.inline);
        sample("(none)", "allowed", counts.no_rule);
        sample("(allow_list)", "allowed", counts.allow_listed);
        sample("(deny_list)", "denied", counts.deny_listed);
        sample("(emergency)", "denied", counts.emergency);
        sample("(unknown_tier)", "denied", counts.unknown_tiers_denied);
    }

    /// Writes the counters of requests with an unknown tier or without a key.
    pub(crate) fn irregular_requests(&mut self, counts: &DecisionCounts) {
        self.family(
            "ratekeeper_unknown_tiers_total",
            MetricKind::Counter,
            "Checks with a tier that the rule file does not define, by handling.",
            [
                (&[("handling", "ignored")][..], counts.unknown_tiers_ignored),
                (&[("handling", "refused")][..], counts.unknown_tiers_denied),
            ],
        );
        self.family(
            "ratekeeper_missing_keys_total",
            MetricKind::Counter,
            "Checks that lack a part of the key of a rule or the default, by handling.",
            [
                (&[("handling", "skipped")][..], counts.missing_skipped),
                (&[("handling", "shared")][..], counts.missing_shared),
                (&[("handling", "refused")][..], counts.missing_denied),
            ],
        );
    }

    /// Writes a histogram of durations.
    pub(crate) fn durations(&mut self, name: &str, help: &str, durations: &DurationHistogram) {
        self.header(name, help, "histogram");
        self.histogram(name, &[], durations);
    }

    /// Writes histograms of durations, one per value of `label`.
    pub(crate) fn durations_by<'a>(
        &mut self,
        label: &str,
        name: &str,
        help: &str,
        durations: impl IntoIterator<Item = (&'a str, &'a DurationHistogram)>,
    ) {
        self.header(name, help, "histogram");
        for (value, durations) in durations {
            self.histogram(name, &[(label, value)], durations);
        }
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], durations: &DurationHistogram) {
        let mut cumulative = 0;
        let bounds = DURATION_BOUNDS_MICROS.iter().map(|bound| format!("{}", *bound as f64 / 1e6));
        let bucket = format!("{name}_bucket");
        for (count, bound) in durations.counts.iter().zip(bounds.chain(["+Inf".to_owned()])) {
            cumulative += count;
            self.sample(&bucket, &[labels, &[("le", &bound)]].concat(), cumulative);
        }
        self.sample(&format!("{name}_sum"), labels, durations.sum_nanos as f64 / 1e9);
        self.sample(&format!("{name}_count"), labels, cumulative);
    }

    /// Writes the metrics of the memory store.
    pub(crate) fn memory(&mut self, stats: &MemoryStats) {
        use MetricKind::{Counter, Gauge};
        self.single("ratekeeper_keys", Gauge, "States in memory: one per key and limit.", stats.keys);
        self.single("ratekeeper_keys_max", Gauge, "Maximum number of states in memory.", stats.max_keys);
        self.single("ratekeeper_log_entries", Gauge, "Entries of sliding window logs.", stats.list_entries);
        self.single(
            "ratekeeper_memory_max_bytes",
            Gauge,
            "Maximum number of bytes that states can take.",
            stats.max_bytes,
        );
        let causes = [
            ("forgotten", stats.evicted),
            ("moved", stats.moved_to_sketch),
            ("limit_dropped", stats.retired),
        ];
        let causes = causes.map(|(cause, count)| ([("cause", cause)], count));
        self.family(
            "ratekeeper_evictions_total",
            Counter,
            "States removed before they had drained: forgotten with less than half of the limit used, \
             moved to the sketch, or dropped with their limit.",
            causes.iter().map(|(labels, count)| (&labels[..], count)),
        );
        self.single(
            "ratekeeper_sketch_decisions_total",
            Counter,
            "Draws decided by the sketch because the table is full: may deny too early, never admits too much.",
            stats.sketch_decisions,
        );
        self.single(
            "ratekeeper_uncounted_checks_total",
            Counter,
            "Draws that no memory was left to count, answered as on_store_failure says.",
            stats.uncounted,
        );
        self.single("ratekeeper_limits", Gauge, "Limits in use, counted per rule.", stats.limits);
        self.single("ratekeeper_limits_max", Gauge, "Maximum number of limits in use.", stats.max_limits);
        self.single(
            "ratekeeper_limits_dropped_total",
            Counter,
            "Limits dropped with their states because their rule or listener had more than 65536.",
            stats.limits_retired,
        );
    }
}

/// A label value with backslashes, quotes and newlines escaped.
fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_a_header_and_samples_have_labels() {
        let mut text = Exposition::new();
        text.single("up", MetricKind::Gauge, "Whether it is up.", 1);
        text.family(
            "hits_total",
            MetricKind::Counter,
            "Hits.",
            [(&[("path", "a\"\\\n"), ("ok", "no")][..], 7)],
        );
        assert_eq!(
            text.into_text(),
            "# HELP up Whether it is up.\n# TYPE up gauge\nup 1\n# HELP hits_total Hits.\n# TYPE hits_total counter\n\
             hits_total{path=\"a\\\"\\\\\\n\",ok=\"no\"} 7\n"
        );
    }

    #[test]
    fn histogram_buckets_are_cumulative() {
        let mut durations = DurationHistogram::default();
        durations.counts[0] = 3;
        durations.counts[2] = 2;
        durations.counts[DURATION_BOUNDS_MICROS.len()] = 1;
        durations.sum_nanos = 1_500_000_000;
        let mut text = Exposition::new();
        text.durations("d", "D.", &durations);
        let text = text.into_text();
        for line in [
            "d_bucket{le=\"0.000001\"} 3",
            "d_bucket{le=\"0.000005\"} 5",
            "d_bucket{le=\"+Inf\"} 6",
            "d_sum 1.5",
            "d_count 6",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn rules_beyond_the_label_limit_share_one() {
        let rule_counts = |allowed| RuleDecisionCounts { allowed, ..RuleDecisionCounts::default() };
        let rules = (0..1500_u64).map(|rule| (format!("r{rule}"), rule_counts(rule))).collect();
        let mut text = Exposition::new();
        text.decisions(&DecisionCounts { rules, emergency: 2, ..DecisionCounts::default() });
        let text = text.into_text();
        assert_eq!(text.lines().count(), 2 + 1000 + 1 + 1);
        assert!(text.contains("{rule=\"r1499\",outcome=\"allowed\"} 1499"));
        let rest: u64 = (1..500).sum();
        assert!(text.contains(&format!("{{rule=\"(others)\",outcome=\"allowed\"}} {rest}\n")), "{text}");
    }
}
