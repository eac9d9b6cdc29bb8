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

/// All metrics with their help texts. Those whose name ends with `_total` are counters.
const METRICS: &str = "\
ratekeeper_build_info The running version.
ratekeeper_start_time_seconds Start time in Unix seconds.
ratekeeper_decisions_total Checks by deciding rule and outcome; shadow_denied is counted in addition.
ratekeeper_unknown_tiers_total Checks with a tier that the rule file does not define, by handling.
ratekeeper_missing_keys_total Checks that lack a part of the key of a rule or the default, by handling.
ratekeeper_decision_duration_seconds Decision latency; one batch in 64 is sampled.
ratekeeper_denials_unlogged_total Denials that were not logged, because there were too many.
ratekeeper_log_lines_dropped_total Log lines dropped because they could not be written, or not in time.
ratekeeper_keys States in memory: one per key and limit.
ratekeeper_keys_max Maximum number of states in memory.
ratekeeper_log_entries Entries of sliding window logs.
ratekeeper_memory_max_bytes Maximum number of bytes that states can take.
ratekeeper_evictions_total States removed before they had drained: forgotten with less than half of the limit used, \
    moved to the sketch, or dropped with their limit.
ratekeeper_sketch_decisions_total Draws decided by the sketch because the table is full: may deny too early, never \
    admits too much.
ratekeeper_uncounted_checks_total Draws that no memory was left to count, answered as on_store_failure says.
ratekeeper_limits Limits in use, counted per rule.
ratekeeper_limits_max Maximum number of limits in use.
ratekeeper_limits_dropped_total Limits dropped with their states because their rule or listener had more than 65536.
ratekeeper_store_info The store's topology.
ratekeeper_store_degraded 1 while some requests are decided without the store.
ratekeeper_live_nodes Nodes that share the store, as last known.
ratekeeper_store_batches_total Calls to the store, each with a batch of requests.
ratekeeper_store_requests_total Requests sent to the store.
ratekeeper_store_coalesced_total Requests coalesced into an equal one.
ratekeeper_store_denied_from_memory_total Requests denied without a store call, because no unit can have been refilled \
    yet.
ratekeeper_store_local_decisions_total Requests decided by this node's share of a limit, because the store did not \
    answer.
ratekeeper_store_degraded_seconds_total Seconds in which some requests were decided without the store.
ratekeeper_lease_units_lent_total Units leased from the store.
ratekeeper_lease_units_spent_total Leased units that were spent.
ratekeeper_lease_units_returned_total Leased units that were returned to the store.
ratekeeper_lease_units_expired_total Leased units that expired: neither spent nor returned in time.
ratekeeper_lease_granted_total Draws granted from a lease.
ratekeeper_lease_denied_total Draws denied without a store call, because the store had nothing left a moment ago.
ratekeeper_lease_denied_stale_total Draws denied without a store call although enough units may have been refilled \
    meanwhile.
ratekeeper_lease_misses_total Draws of leased limits that were sent to the store.
ratekeeper_lease_renewals_total Lease requests and reports sent to the store without a draw.
ratekeeper_lease_unacknowledged_total Lease requests and reports that the store did not acknowledge.
ratekeeper_lease_table_full_total Draws whose keys did not fit into the lease table.
ratekeeper_lease_keys Keys in the lease table.
ratekeeper_store_up 1 if the circuit breaker is closed.
ratekeeper_store_breaker_state Circuit breaker: 0 closed, 1 half-open, 2 open.
ratekeeper_store_writable 1 if the circuit breaker is closed and the server accepts writes.
ratekeeper_store_may_evict 1 if the server may evict states of clients that are being denied.
ratekeeper_store_reconnects_total Connections made after the initial ones.
ratekeeper_store_script_loads_total Number of times the script was loaded.
ratekeeper_store_clock_drift_seconds How far the server's clock is ahead of this node's.
ratekeeper_store_failures_total Failed calls by kind of failure.
ratekeeper_store_errors_total Errors returned by the server and failed attempts to use it, by cause.
ratekeeper_store_call_duration_seconds Duration of calls that were answered.
ratekeeper_rules Rules in force, including the default, tiers and clients.
ratekeeper_rules_loads_total Number of times rules were put in force.
ratekeeper_rules_load_failures_total Number of rule loads that failed.
ratekeeper_rules_last_load_successful 1 if the rules in force are those in the file.
ratekeeper_rules_last_load_success_timestamp_seconds When rules were last put in force, in Unix seconds.
ratekeeper_emergency_limit_on 1 while the emergency limit is on.
ratekeeper_connections Open connections.
ratekeeper_connections_max Maximum number of open connections.
ratekeeper_idle_connections_closed_total Idle connections to the admin listener that were closed to accept new ones.
ratekeeper_open_files_max Maximum number of open files.
ratekeeper_unfinished_body_bytes Bytes held for bodies that are not yet complete.
ratekeeper_unfinished_body_bytes_max Maximum number of bytes held for incomplete bodies.
ratekeeper_unfinished_bodies_rejected_total Bodies rejected because other incomplete bodies used up the budget.";

/// Builds the text of a scrape, one metric family after the other.
#[derive(Debug)]
pub(crate) struct Exposition {
    text: String,
    /// The metrics, each a line with its name and its help text.
    metrics: &'static str,
}

impl Exposition {
    /// An empty exposition.
    pub(crate) fn new() -> Exposition {
        Exposition { text: String::new(), metrics: METRICS }
    }

    /// The text of the scrape.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Writes a counter or a gauge with labelled samples.
    pub(crate) fn family<'a, const LABELS: usize, V: Display>(
        &mut self,
        name: &str,
        samples: impl IntoIterator<Item = ([(&'a str, &'a str); LABELS], V)>,
    ) {
        self.header(name, if name.ends_with("_total") { "counter" } else { "gauge" });
        for (labels, value) in samples {
            self.sample(name, &labels, value);
        }
    }

    /// Writes a counter or a gauge of one sample without labels.
    pub(crate) fn single(&mut self, name: &str, value: impl Display) {
        self.family(name, [([], value)]);
    }

    fn header(&mut self, name: &str, kind: &str) {
        let mut lines = self.metrics.lines();
        let help = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let help = help.expect("every metric is in the table");
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
        self.header(name, "counter");
        let mut sample = |rule: &str, outcome: &str, count: u64| {
            if count > 0 {
                self.sample(name, &[("rule", rule), ("outcome", outcome)], count);
            }
        };
        let mut each = |rule: &str, rule_counts: &RuleDecisionCounts| {
            for (outcome, count) in outcomes(rule_counts) {
                sample(rule, outcome, count);
            }
        };
        let total = |rule_counts: &RuleDecisionCounts| {
            outcomes(rule_counts).iter().map(|(_, count)| count).sum::<u64>()
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
        let handling = |handling, count| ([("handling", handling)], count);
        self.family(
            "ratekeeper_unknown_tiers_total",
            [
                handling("ignored", counts.unknown_tiers_ignored),
                handling("refused", counts.unknown_tiers_denied),
            ],
        );
        self.family(
            "ratekeeper_missing_keys_total",
            [
                handling("skipped", counts.missing_skipped),
                handling("shared", counts.missing_shared),
                handling("refused", counts.missing_denied),
            ],
        );
    }

    /// Writes a family of histograms of durations.
    pub(crate) fn durations<'a, const LABELS: usize>(
        &mut self,
        name: &str,
        samples: impl IntoIterator<Item = ([(&'a str, &'a str); LABELS], &'a DurationHistogram)>,
    ) {
        self.header(name, "histogram");
        for (labels, durations) in samples {
            self.histogram(name, &labels, durations);
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
        self.single("ratekeeper_keys", stats.keys);
        self.single("ratekeeper_keys_max", stats.max_keys);
        self.single("ratekeeper_log_entries", stats.list_entries);
        self.single("ratekeeper_memory_max_bytes", stats.max_bytes);
        let causes = [
            ("forgotten", stats.evicted),
            ("moved", stats.moved_to_sketch),
            ("limit_dropped", stats.retired),
        ];
        self.family("ratekeeper_evictions_total", causes.map(|(cause, count)| ([("cause", cause)], count)));
        self.single("ratekeeper_sketch_decisions_total", stats.sketch_decisions);
        self.single("ratekeeper_uncounted_checks_total", stats.uncounted);
        self.single("ratekeeper_limits", stats.limits);
        self.single("ratekeeper_limits_max", stats.max_limits);
        self.single("ratekeeper_limits_dropped_total", stats.limits_retired);
    }
}

/// The outcomes of a rule's decisions and their counts.
fn outcomes(counts: &RuleDecisionCounts) -> [(&'static str, u64); 4] {
    [
        ("allowed", counts.allowed),
        ("denied", counts.denied),
        ("shadow_denied", counts.shadow_denied),
        ("degraded", counts.degraded),
    ]
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
        let mut text = Exposition { text: String::new(), metrics: "up Whether it is up.\nhits_total Hits." };
        text.single("up", 1);
        text.family("hits_total", [([("path", "a\"\\\n"), ("ok", "no")], 7)]);
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
        let mut text = Exposition { text: String::new(), metrics: "d D." };
        text.durations("d", [([], &durations)]);
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
