"""Scrapes /metrics with the Prometheus parser, and checks names, types, labels and buckets."""

import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

url, token, secret_key = sys.argv[1:]
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
with urllib.request.urlopen(request, timeout=10) as response:
    content_type, text = response.headers["content-type"], response.read().decode()
assert content_type.startswith("text/plain; version=0.0.4"), content_type
assert secret_key not in text, "client keys never appear in the metrics"

families = {family.name: family for family in text_string_to_metric_families(text)}
expected = {
    "ratekeeper_build_info": "gauge",
    "ratekeeper_connections": "gauge",
    "ratekeeper_connections_max": "gauge",
    "ratekeeper_decision_duration_seconds": "histogram",
    "ratekeeper_decisions": "counter",
    "ratekeeper_denials_unlogged": "counter",
    "ratekeeper_emergency_limit_on": "gauge",
    "ratekeeper_evictions": "counter",
    "ratekeeper_idle_connections_closed": "counter",
    "ratekeeper_keys": "gauge",
    "ratekeeper_keys_max": "gauge",
    "ratekeeper_limits": "gauge",
    "ratekeeper_limits_dropped": "counter",
    "ratekeeper_limits_max": "gauge",
    "ratekeeper_log_entries": "gauge",
    "ratekeeper_log_lines_dropped": "counter",
    "ratekeeper_memory_max_bytes": "gauge",
    "ratekeeper_missing_keys": "counter",
    "ratekeeper_open_files_max": "gauge",
    "ratekeeper_rules": "gauge",
    "ratekeeper_rules_last_load_success_timestamp_seconds": "gauge",
    "ratekeeper_rules_last_load_successful": "gauge",
    "ratekeeper_rules_load_failures": "counter",
    "ratekeeper_rules_loads": "counter",
    "ratekeeper_sketch_decisions": "counter",
    "ratekeeper_start_time_seconds": "gauge",
    "ratekeeper_unfinished_bodies_rejected": "counter",
    "ratekeeper_unfinished_body_bytes": "gauge",
    "ratekeeper_unfinished_body_bytes_max": "gauge",
    "ratekeeper_unknown_tiers": "counter",
    "ratekeeper_uncounted_checks": "counter",
}
found = {name: family.type for name, family in families.items()}
assert found == expected, f"found {found}"

decisions = families["ratekeeper_decisions"].samples
assert decisions, "checks were decided"
for sample in decisions:
    assert set(sample.labels) == {"rule", "outcome"}, sample
    assert sample.labels["outcome"] in {"allowed", "denied", "shadow_denied", "degraded"}, sample

buckets = [sample.value for sample in families["ratekeeper_decision_duration_seconds"].samples if "le" in sample.labels]
assert buckets == sorted(buckets), buckets
print(f"metrics: {len(families)} families, {int(sum(sample.value for sample in decisions))} decisions counted")
