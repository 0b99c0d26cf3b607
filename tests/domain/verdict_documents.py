"""Verdict documents for tests: the judge's result for records, as the service would store it."""

from collections.abc import Sequence

from app.domain.verdict.assess import assess
from app.domain.verdict.baseline import BaselineRules
from app.domain.verdict.document import VerdictDocument, verdict_document
from app.domain.verdict.record import RunRecord
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior
from tests.domain.verdict.matching_runs import make_record

SURE = Prior(variance=0.004**2, degrees_of_freedom=20, configurations=9)
"""Launches that vary by 0.4 %, as learned from nine other configurations."""


def make_baseline(n: int = 12, **other: object) -> list[RunRecord]:
    """Runs 1 to n, which vary by 0.2 %."""
    return [make_record(str(k + 1), slower=0.002 * (k % 3 - 1), **other) for k in range(n)]


def make_document(
    candidate: RunRecord | Sequence[RunRecord],
    earlier: Sequence[RunRecord] = (),
    *,
    prior: Prior = SURE,
    pinned: frozenset[str] = frozenset(),
) -> VerdictDocument:
    candidates = [candidate] if isinstance(candidate, RunRecord) else list(candidate)
    assessment = assess(candidates, earlier, prior=prior, rules=BaselineRules("main", pinned))
    metrics: dict[str, dict[str, None]] = {record.run: {} for record in (*candidates, *earlier)}
    return verdict_document(assessment, tuple(record.run for record in candidates), metrics, definition_version=1)


__all__ = ["DEFAULT_PRIOR", "SURE", "make_baseline", "make_document", "make_record"]
