"""Alert rules for Prometheus over the metrics: few, each with what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expression: str
    lasts: str
    severity: str
    summary: str


ALERTS = (
    Alert("FrazilAbsent", "absent(frazil_ready)", "5m", "critical", "no Frazil is scraped: is it up?"),
    Alert(
        "FrazilNotReady", "frazil_ready == 0", "5m", "warning", "{{ $labels.instance }} is not ready: see /health/ready"
    ),
    Alert(
        "FrazilTopicFailed",
        "frazil_topic_failed > 0",
        "0m",
        "critical",
        "{{ $labels.topic }} takes no more messages: look at the disk, then restart the process",
    ),
    Alert(
        "FrazilTopicsBroken",
        "frazil_topics_broken > 0",
        "1m",
        "critical",
        "{{ $value }} topics cannot be used: see /health/ready, then frazil log check",
    ),
    Alert(
        "FrazilWritesFail",
        "increase(frazil_log_failed_rows_total[5m]) > 0",
        "0m",
        "critical",
        "rows could not be written: is the disk full?",
    ),
    Alert(
        "FrazilOverloaded",
        "rate(frazil_log_refused_total[5m]) > 0",
        "5m",
        "warning",
        "publishers are faster than the disk: publish in batches, or use a faster one",
    ),
    Alert(
        "FrazilAnswersSlowly",
        "histogram_quantile(0.99, sum by (instance, le) (rate(frazil_log_ack_seconds_bucket[5m]))) > 1",
        "10m",
        "warning",
        "one answer in a hundred takes more than a second: look at frazil_log_sync_seconds",
    ),
    Alert(
        "FrazilDiskBudget",
        "frazil_disk_used_bytes / frazil_disk_limit_bytes > 0.9",
        "10m",
        "warning",
        "the disk budget is used up to {{ $value | humanizePercentage }}: shorten the retention, or raise the budget",
    ),
    Alert(
        "FrazilFreshnessObjectiveMissed",
        "frazil_freshness_objective_missed > 0",
        "1m",
        "warning",
        "the table of {{ $labels.topic }} is older than it may be: see frazil pipeline status",
    ),
    Alert(
        "FrazilMoverGone",
        "frazil_mover_alive == 0 and on (instance) max by (instance) (frazil_table_lag_rows) > 0",
        "5m",
        "warning",
        "rows wait and no mover is heard of: see frazil pipeline status",
    ),
    Alert(
        "FrazilMoverFailing",
        "frazil_mover_failing > 0",
        "5m",
        "warning",
        "{{ $labels.instance }} moves nothing, its catalog, store or Spark is away: see frazil pipeline status",
    ),
    Alert(
        "FrazilMovesFail",
        "frazil_table_move_failing > 0",
        "10m",
        "warning",
        "rows of {{ $labels.topic }} cannot be moved: see frazil pipeline status",
    ),
    Alert(
        "FrazilMaintenanceFailed",
        "frazil_maintenance_failed > 0",
        "1h",
        "info",
        "tables are not kept: see frazil pipeline status, then run frazil table maintain",
    ),
    Alert(
        "FrazilSubscriptionBlocked",
        "frazil_subscription_blocked > 0",
        "5m",
        "warning",
        "{{ $labels.subscription }} of {{ $labels.topic }} waits for a message that nobody acknowledges",
    ),
    Alert(
        "FrazilSubscriptionLags",
        "frazil_subscription_lag_messages > 1000 and deriv(frazil_subscription_lag_messages[15m]) > 0",
        "30m",
        "warning",
        "{{ $labels.subscription }} of {{ $labels.topic }} falls behind: add consumers, or make them faster",
    ),
    Alert(
        "FrazilDeadLetters",
        "increase(frazil_subscription_dead_letters_total[10m]) > 0",
        "0m",
        "info",
        "{{ $labels.subscription }} of {{ $labels.topic }} gave messages up: look into the dead letter topic",
    ),
)


def alert_rules() -> dict[str, Any]:
    """A file for `rule_files` of Prometheus."""
    return {"groups": [{"name": "frazil", "rules": [_rule(one) for one in ALERTS]}]}


def _rule(one: Alert) -> dict[str, Any]:
    return {
        "alert": one.name,
        "expr": one.expression,
        "for": one.lasts,
        "labels": {"severity": one.severity},
        "annotations": {"summary": one.summary},
    }
