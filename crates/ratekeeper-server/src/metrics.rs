//! What was decided and how the server is, for Prometheus to read.
//!
//! Names are settled: dashboards and alerts rest on them. A client's key is never a label; rules are, and if there are
//! very many, those that decided least share one.

use ratekeeper::{
    DURATION_BOUNDS_MICROS, DecisionCounts, DurationHistogram, MemoryStats, RuleDecisionCounts,
};
use std::fmt::{Display, Write};

/// The content type of the text form.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The most rules that have a label of their own.
const MAX_RULE_LABELS: usize = 1_000;

/// Metrics as text, family by family.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    text: String,
}

/// What a family measures.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MetricKind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
}

impl Exposition {
    /// Nothing yet.
    pub(crate) fn new() -> Exposition {
        Exposition::default()
    }

    /// The text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// A family with samples under labels.
    pub(crate) fn family<'a, V: Display>(
        &mut self,
        name: &str,
        kind: MetricKind,
        help: &str,
        samples: impl IntoIterator<Item = (&'a [(&'a str, &'a str)], V)>,
    ) {
        self.head(name, help, if matches!(kind, MetricKind::Counter) { "counter" } else { "gauge" });
        for (labels, value) in samples {
            self.sample(name, labels, value);
        }
    }

    /// A family of one sample without labels.
    pub(crate) fn single(&mut self, name: &str, kind: MetricKind, help: &str, value: impl Display) {
        self.family(name, kind, help, [(&[][..], value)]);
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n")
            .expect("text can be written to memory");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let text = &mut self.text;
        text.push_str(name);
        let mut lead = '{';
        for (label, value) in labels {
            text.push(lead);
            write!(text, "{label}=\"{}\"", escaped(value)).expect("text can be written to memory");
            lead = ',';
        }
        if lead == ',' {
            text.push('}');
        }
        writeln!(text, " {value}").expect("text can be written to memory");
    }

    /// Every decision once, under the rule that binds.
    pub(crate) fn decisions(&mut self, outcomes: &DecisionCounts) {
        let name = "ratekeeper_decisions_total";
        self.head(
            name,
            "Checks by the rule that binds and what came of them; shadow_denied beside that.",
            "counter",
        );
        let mut sample = |rule: &str, outcome: &str, count: u64| {
            if count > 0 {
                self.sample(name, &[("rule", rule), ("outcome", outcome)], count);
            }
        };
        let mut each = |rule: &str, own: &RuleDecisionCounts| {
            sample(rule, "allowed", own.allowed);
            sample(rule, "denied", own.denied);
            sample(rule, "shadow_denied", own.shadow_denied);
            sample(rule, "degraded", own.degraded);
        };
        let total = |own: &RuleDecisionCounts| own.allowed + own.denied + own.shadow_denied + own.degraded;
        let mut rules: Vec<_> = outcomes.rules.iter().filter(|(_, own)| total(own) > 0).collect();
        let mut others = RuleDecisionCounts::default();
        if rules.len() > MAX_RULE_LABELS {
            rules.sort_by_key(|(_, own)| std::cmp::Reverse(total(own)));
            for (_, own) in rules.drain(MAX_RULE_LABELS..) {
                others.allowed += own.allowed;
                others.denied += own.denied;
                others.shadow_denied += own.shadow_denied;
                others.degraded += own.degraded;
            }
        }
        for (id, own) in rules {
            each(id, own);
        }
        each("(others)", &others);
        each("(stated)", &outcomes.stated);
        sample("(none)", "allowed", outcomes.unbound);
        sample("(allow_list)", "allowed", outcomes.allow_listed);
        sample("(deny_list)", "denied", outcomes.deny_listed);
        sample("(emergency)", "denied", outcomes.emergency);
        sample("(unknown_tier)", "denied", outcomes.unknown_tiers_refused);
    }

    /// Requests that rules could not tell apart as they should.
    pub(crate) fn odd_requests(&mut self, outcomes: &DecisionCounts) {
        self.family(
            "ratekeeper_unknown_tiers_total",
            MetricKind::Counter,
            "Checks that state a tier which the rule file does not name, and what was done with them.",
            [
                (&[("handling", "ignored")][..], outcomes.unknown_tiers_ignored),
                (&[("handling", "refused")][..], outcomes.unknown_tiers_refused),
            ],
        );
        self.family(
            "ratekeeper_missing_keys_total",
            MetricKind::Counter,
            "Checks that lack something that a rule or the default counts by, and what was done with them.",
            [
                (&[("handling", "skipped")][..], outcomes.missing_skipped),
                (&[("handling", "shared")][..], outcomes.missing_shared),
                (&[("handling", "refused")][..], outcomes.missing_refused),
            ],
        );
    }

    /// How long decisions took.
    pub(crate) fn durations(&mut self, name: &str, help: &str, durations: &DurationHistogram) {
        self.head(name, help, "histogram");
        self.histogram(name, &[], durations);
    }

    /// How long something took, under each value of a label.
    pub(crate) fn durations_by<'a>(
        &mut self,
        label: &str,
        name: &str,
        help: &str,
        durations: impl IntoIterator<Item = (&'a str, &'a DurationHistogram)>,
    ) {
        self.head(name, help, "histogram");
        for (value, durations) in durations {
            self.histogram(name, &[(label, value)], durations);
        }
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], durations: &DurationHistogram) {
        let mut seen = 0;
        let bounds = DURATION_BOUNDS_MICROS.iter().map(|bound| format!("{}", *bound as f64 / 1e6));
        let bucket = format!("{name}_bucket");
        for (count, bound) in durations.counts.iter().zip(bounds.chain(["+Inf".to_owned()])) {
            seen += count;
            self.sample(&bucket, &[labels, &[("le", &bound)]].concat(), seen);
        }
        self.sample(&format!("{name}_sum"), labels, durations.sum_nanos as f64 / 1e9);
        self.sample(&format!("{name}_count"), labels, seen);
    }

    /// What the memory store holds.
    pub(crate) fn memory(&mut self, stats: &MemoryStats) {
        use MetricKind::{Counter, Gauge};
        self.single(
            "ratekeeper_keys",
            Gauge,
            "States in memory: one for each limit that a key is under.",
            stats.keys,
        );
        self.single("ratekeeper_keys_max", Gauge, "The most states that memory may hold.", stats.max_keys);
        self.single("ratekeeper_log_entries", Gauge, "Entries of sliding window logs.", stats.roll_entries);
        self.single(
            "ratekeeper_memory_max_bytes",
            Gauge,
            "The most bytes that states can take.",
            stats.max_bytes,
        );
        let causes = [("forgotten", stats.evicted), ("moved", stats.moved), ("limit_dropped", stats.retired)];
        let causes = causes.map(|(cause, count)| ([("cause", cause)], count));
        self.family(
            "ratekeeper_evictions_total",
            Counter,
            "States that left the table before they had drained: forgotten with less than half of the limit used, \
             moved to shared cells, or dropped with their limit.",
            causes.iter().map(|(labels, count)| (&labels[..], count)),
        );
        self.single(
            "ratekeeper_shared_cell_decisions_total",
            Counter,
            "Draws decided by cells that keys share when the table is full: perhaps denied too early, never too late.",
            stats.sketched,
        );
        self.single(
            "ratekeeper_unremembered_total",
            Counter,
            "Draws for which there was no room at all, answered as on_store_failure says.",
            stats.unremembered,
        );
        self.single("ratekeeper_limits", Gauge, "Limits in use, each in its rule.", stats.limits);
        self.single("ratekeeper_limits_max", Gauge, "The most limits that can be in use.", stats.max_limits);
        self.single(
            "ratekeeper_limits_dropped_total",
            Counter,
            "Limits dropped with their states because their rule or listener had more than 65536.",
            stats.limits_retired,
        );
    }
}

/// A label's value, with what would end it escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_a_head_and_samples_their_labels() {
        let mut text = Exposition::new();
        text.single("up", MetricKind::Gauge, "Whether it is.", 1);
        text.family(
            "hits_total",
            MetricKind::Counter,
            "Hits.",
            [(&[("path", "a\"\\\n"), ("ok", "no")][..], 7)],
        );
        assert_eq!(
            text.into_text(),
            "# HELP up Whether it is.\n# TYPE up gauge\nup 1\n# HELP hits_total Hits.\n# TYPE hits_total counter\n\
             hits_total{path=\"a\\\"\\\\\\n\",ok=\"no\"} 7\n"
        );
    }

    #[test]
    fn a_histogram_adds_up() {
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
    fn very_many_rules_share_a_label() {
        let own = |allowed| RuleDecisionCounts { allowed, ..RuleDecisionCounts::default() };
        let rules = (0..1500_u64).map(|rule| (format!("r{rule}"), own(rule))).collect();
        let mut text = Exposition::new();
        text.decisions(&DecisionCounts { rules, emergency: 2, ..DecisionCounts::default() });
        let text = text.into_text();
        assert_eq!(text.lines().count(), 2 + 1000 + 1 + 1);
        assert!(text.contains("{rule=\"r1499\",outcome=\"allowed\"} 1499"));
        let rest: u64 = (1..500).sum();
        assert!(text.contains(&format!("{{rule=\"(others)\",outcome=\"allowed\"}} {rest}\n")), "{text}");
    }
}
