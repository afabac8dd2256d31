"""All faults, and the table that ``python -m tests.planted`` prints."""

from __future__ import annotations

from tests.planted import (
    Fault,
    faults_accounting,
    faults_code,
    faults_estimators,
    faults_metric,
    faults_noise_aware,
    faults_query,
    faults_randomness,
    faults_release,
    faults_schema,
    faults_state,
    faults_verdict,
    where,
)

FAULTS: tuple[Fault, ...] = (
    *faults_query.FAULTS,
    *faults_randomness.FAULTS,
    *faults_metric.FAULTS,
    *faults_accounting.FAULTS,
    *faults_state.FAULTS,
    *faults_verdict.FAULTS,
    *faults_release.FAULTS,
    *faults_noise_aware.FAULTS,
    *faults_schema.FAULTS,
    *faults_estimators.FAULTS,
    *faults_code.FAULTS,
)


def table() -> str:
    """Markdown: fault, how it comes about, what catches it."""
    lines = ["| fault | how it comes about | caught by |", "|---|---|---|"]
    for fault in FAULTS:
        caught = "<br>".join(f"`{where(check)}`" for check in fault.checks)
        lines.append(f"| {fault.name} | {fault.story} | {caught} |")
    return "\n".join(lines)
