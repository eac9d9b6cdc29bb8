"""Scrapes /metrics as Prometheus would, and holds it to what its readers rely on."""

import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

url, token, secret_key = sys.argv[1:]
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
with urllib.request.urlopen(request, timeout=10) as answer:
    kind, text = answer.headers["content-type"], answer.read().decode()
assert kind.startswith("text/plain; version=0.0.4"), kind
assert secret_key not in text, "a client's key is never a label"

families = {family.name: family for family in text_string_to_metric_families(text)}
expected = {
    "tollgate_build_info": "gauge",
    "tollgate_connections": "gauge",
    "tollgate_connections_max": "gauge",
    "tollgate_decision_duration_seconds": "histogram",
    "tollgate_decisions": "counter",
    "tollgate_denials_unlogged": "counter",
    "tollgate_emergency_limit_on": "gauge",
    "tollgate_evictions": "counter",
    "tollgate_idle_connections_closed": "counter",
    "tollgate_keys": "gauge",
    "tollgate_keys_max": "gauge",
    "tollgate_limits": "gauge",
    "tollgate_limits_dropped": "counter",
    "tollgate_limits_max": "gauge",
    "tollgate_log_entries": "gauge",
    "tollgate_log_lines_dropped": "counter",
    "tollgate_memory_max_bytes": "gauge",
    "tollgate_missing_keys": "counter",
    "tollgate_open_files_max": "gauge",
    "tollgate_rules": "gauge",
    "tollgate_rules_last_load_success_timestamp_seconds": "gauge",
    "tollgate_rules_last_load_successful": "gauge",
    "tollgate_rules_load_failures": "counter",
    "tollgate_rules_loads": "counter",
    "tollgate_shared_cell_decisions": "counter",
    "tollgate_start_time_seconds": "gauge",
    "tollgate_unfinished_bodies_refused": "counter",
    "tollgate_unfinished_body_bytes": "gauge",
    "tollgate_unfinished_body_bytes_max": "gauge",
    "tollgate_unknown_tiers": "counter",
    "tollgate_unremembered": "counter",
}
found = {name: family.type for name, family in families.items()}
assert found == expected, f"found {found}"

decisions = families["tollgate_decisions"].samples
assert decisions, "checks were decided"
for sample in decisions:
    assert set(sample.labels) == {"rule", "outcome"}, sample
    assert sample.labels["outcome"] in {"allowed", "denied", "shadow_denied", "degraded"}, sample

buckets = [sample.value for sample in families["tollgate_decision_duration_seconds"].samples if "le" in sample.labels]
assert buckets == sorted(buckets), buckets
print(f"metrics: {len(families)} families, {int(sum(sample.value for sample in decisions))} decisions counted")
