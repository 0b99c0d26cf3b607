"""What a run fell back from: its baseline if it is slower, or the last run that fitted if it ran out of memory.

Each names what has changed since and how to revert it. The rules use both as facts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlmodel import Session, col

from app.domain.contract.fields import CONFIG_FIELDS, PREFIX, STACK_FIELDS
from app.domain.contract.values import shown
from app.domain.rules.rule import Setting
from app.domain.run import Stated
from app.domain.verdict.differences import Difference, axis_of, differing
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.evidence import change_pct, value_text
from app.storage.runs import RunDetail, stored_contract
from app.storage.suspect_evidence import suspects_with_evidence
from app.storage.tables import RunResultRow, RunRow, select_any
from app.storage.verdicts import current_verdict, regressions_of

REGRESSION_RULE, FITTED_RULE = "val-regression-cause", "fit-go-back"
"""Rules about setbacks."""
_CLOSED = ("expected", "invalid")
_EARLIER = 30
"""Earlier runs that are searched for one that fitted. A contract is 15 KB of JSON."""

Facts = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Setbacks:
    """Setbacks of a run. `undo`: the earlier values of contract fields, by rule."""

    facts: Facts = field(default_factory=dict)
    undo: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)


def setbacks_of(
    session: Session, run: RunDetail, document: VerdictDocument | None = None, *, in_regressions: bool = True
) -> Setbacks:
    """Return the setbacks; empty if the run is neither slower than its baseline nor out of memory.

    `document`: its verdict, if it is in memory. `in_regressions` False: the run is known to be in no regression.
    """
    facts: dict[str, object] = {}
    undo: dict[str, Mapping[str, Setting]] = {}
    if any(failure.kind == "out_of_memory" for failure in run.failures) and (fitted := _fitted(session, run)):
        run_id, differences = fitted
        undo[FITTED_RULE] = _values_before(differences)
        facts |= {
            "fitted_run": run_id,
            "fitted_differs": [difference.field for difference in differences],
            "fitted_undo": _undo_text(differences),
        }
    if document is None and (verdict := current_verdict(session, run.id)) is not None:
        document = verdict.document
    if document is not None and _is_slower(session, run, document, in_regressions=in_regressions):
        facts |= {"regression_pct": max(change_pct(document) or 0.0, 0.01)}
        causes = _causes(session, run, document)
        certain = [cause for cause in causes if cause.is_certain]
        facts |= {
            "regression_cause": _cause_text(causes),
            "regression_undo": _undo_text(certain) or "Rerun the job on other nodes, because no known field differs.",
        }
        undo[REGRESSION_RULE] = _values_before(certain)
    return Setbacks(facts, undo)


def _is_slower(session: Session, run: RunDetail, document: VerdictDocument, *, in_regressions: bool) -> bool:
    """Return whether its verdict or a regression says so; expected and invalid regressions do not count."""
    of_run = regressions_of(session, run.id) if in_regressions else ()
    regressions = [item for item in of_run if item.metric == "step_time_ms"]
    if regressions:
        return any(item.shown_state not in _CLOSED for item in regressions)
    return document.decision == "regression" and (document.verdict.step_time is not None)


def _causes(session: Session, run: RunDetail, document: VerdictDocument) -> tuple[Difference, ...]:
    """Return the most likely suspect, with all knobs that changed together with it."""
    ranked = suspects_with_evidence(session, run.id, document)
    differences = [item.suspect.difference for item in ranked if item.support != "unlikely"]
    differing = [difference for difference in differences if difference is not None]
    if not differing:
        return ()
    first = differing[0]
    if first.role == "info":
        return (first,)
    return tuple(item for item in differing if item.role != "info" and item.is_certain == first.is_certain)


def _cause_text(causes: Sequence[Difference]) -> str:
    if not causes:
        return "no known field differs, so suspect the nodes or chance"
    return "; ".join(f"{cause.field} {_side(cause.a)} to {_side(cause.b)}" for cause in causes[:3])


_HASH = re.compile(r"[0-9a-f]{40}")
_SHORT_HASH = 12


def _side(value: Stated | None) -> str:
    """Return a value for a sentence: the first digits of a commit, which identify it for git."""
    text = value_text(value)[:100]
    return (text[:_SHORT_HASH] if _HASH.fullmatch(text) else text) or "not stated"


def _undo_text(differences: Sequence[Difference]) -> str:
    """Return how to revert, by the kind of each difference."""
    sentences = []
    for difference in differences[:5]:
        before, now = _side(difference.a), _side(difference.b)
        if difference.axis == "code":
            sentences.append(f"Bisect the code: `git bisect start {now} {before}`.")
        elif difference.axis == "place":
            sentences.append(f"Run on {difference.field} {before} again.")
        else:
            sentences.append(f"Set {difference.field} back to {before}.")
    return " ".join(sentences)


def _values_before(differences: Sequence[Difference]) -> dict[str, Setting]:
    """Return the earlier values of fields that a launch can set; commit, container and node are not among them."""
    return {
        difference.field: difference.a.value
        for difference in differences
        if difference.a is not None and difference.axis in ("recipe", "workload") and PREFIX not in difference.field
    }


def _fitted(session: Session, run: RunDetail) -> tuple[int, tuple[Difference, ...]] | None:
    """Return the most similar earlier run of the same model and GPUs that fitted, with the differences."""
    model, gpu = run.contract.get("model"), run.contract.get("gpu")
    if model is None or gpu is None or run.ordered_at is None:
        return None
    rows = session.execute(
        select_any(RunRow.id, RunResultRow.contract)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(
            col(RunRow.project_id) == run.project_id,
            col(RunRow.model) == shown(model.value),
            col(RunRow.gpu) == shown(gpu.value),
            col(RunRow.status) == "ready",
            col(RunRow.is_steady).is_(True),
            col(RunRow.quarantine) == "",
            col(RunRow.ordered_at) < run.ordered_at,
            col(RunRow.id) != run.id,
        )
        .order_by(col(RunRow.ordered_at).desc())
        .limit(_EARLIER)
    )
    fewest: tuple[int, tuple[Difference, ...]] | None = None
    for row in rows:
        differences = _since(row.contract or {}, run.contract)
        if differences and (fewest is None or len(differences) < len(fewest[1])):
            fewest = row.id, differences
    return fewest


def _since(earlier: Mapping[str, Any], now: Mapping[str, Stated]) -> tuple[Difference, ...]:
    """Return known differences that a launch can revert, without those derived from other fields."""
    before = stored_contract(earlier)
    names = dict.fromkeys((*STACK_FIELDS, *CONFIG_FIELDS))
    return tuple(
        difference
        for difference in differing(names, before, now)
        if difference.is_certain
        and axis_of(difference.field) != "place"
        and difference.b is not None
        and difference.b.source != "derived"
    )
