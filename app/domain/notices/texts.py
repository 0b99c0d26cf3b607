"""The words of a message: what happened in its title, what it rests on below."""

from collections.abc import Sequence
from datetime import datetime

from app.domain.changes import change_text, daily_cost
from app.domain.notices.events import TEST, Notice
from app.domain.numbers import counted
from app.domain.text import one_line
from app.domain.verdict_document import VerdictDocument
from app.domain.verdict_words import baseline_line, decision_word, headline

MOST_LINE = 500
_MOST_STACKS = 5
_HAPPENED = {
    "regression.opened": "Regression",
    "regression.reopened": "Regression is back",
    "regression.recovered": "Regression seems fixed",
    "regression.fixed": "Regression fixed",
}
_METRICS = {"step_time_ms": "step time", "peak_memory_gib": "peak memory"}


def regression_notice(
    event: str,
    *,
    project: str,
    number: int,
    metric: str,
    cause: str,
    delta_pct: float | None,
    hours_per_day: float | None,
    stacks: Sequence[tuple[str, str]],
    note: str,
    at: datetime,
) -> Notice:
    """`stacks`: key and name of each stack that it slowed down. `note`: why it changed, else empty."""
    figure = _METRICS.get(metric, metric.replace("_", " "))
    size = "" if delta_pct is None else f": {figure} {change_text(delta_pct, None, None, metric).figure}"
    names = [name for _, name in stacks]
    more = f" and {counted(len(names) - _MOST_STACKS, 'more stack')}" if len(names) > _MOST_STACKS else ""
    where = f"Where: {', '.join(names[:_MOST_STACKS])}{more}." if names else ""
    cost = "" if hours_per_day is None else f"It costs {daily_cost(hours_per_day)}."
    return Notice(
        event=event,
        project=project,
        title=_line(f"{_HAPPENED[event]}{size} in {project}"),
        lines=_lines(f"Cause: {cause}", where, cost, note),
        path=f"/regressions/{number}",
        at=at,
        data={
            "regression": {
                "id": number, "metric": metric, "cause": cause, "worst_delta_pct": delta_pct,
                "gpu_hours_per_day": hours_per_day, "stacks": [key for key, _ in stacks],
            }
        },
    )  # fmt: skip


def verdict_notice(
    event: str,
    document: VerdictDocument,
    *,
    project: str,
    run_id: int,
    name: str,
    stack: tuple[str, str],
    branch: str,
    commit: str,
    at: datetime,
) -> Notice:
    """`stack`: its key and its name."""
    word = decision_word(document.decision)
    return Notice(
        event=event,
        project=project,
        title=_line(f"{word[:1].upper()}{word[1:]}: {name} in {project}"),
        lines=_lines(
            _sentence(headline(document, _run)),
            _sentence(baseline_line(document, _run)),
            _where(stack[1], branch, commit),
        ),
        path=f"/runs/{run_id}",
        at=at,
        data={
            "run": {"id": run_id, "name": name, "branch": branch, "commit": commit, "stack": stack[0]},
            "verdict": {
                "decision": document.decision,
                "delta_pct": None if document.verdict.step_time is None else document.verdict.step_time.delta_pct,
                "provisional": document.provisional,
            },
        },
    )


def failed_notice(
    *,
    project: str,
    run_id: int,
    name: str,
    error: str,
    stack: tuple[str, str],
    branch: str,
    commit: str,
    at: datetime,
) -> Notice:
    """Of a run of which nothing could be read. `stack`: its key and its name, as far as they are known."""
    return Notice(
        event="run.failed",
        project=project,
        title=_line(f"Failed: {name} in {project}"),
        lines=_lines(error or "No figure could be read from its files.", _where(stack[1], branch, commit)),
        path=f"/runs/{run_id}",
        at=at,
        data={
            "run": {"id": run_id, "name": name, "branch": branch, "commit": commit, "stack": stack[0]},
            "verdict": None,
        },
    )


def trial_notice(*, project: str, receiver: str, path: str, by: str, at: datetime) -> Notice:
    """The test message."""
    return Notice(
        event=TEST,
        project=project,
        title=_line(f"Test message for {receiver} of {project}"),
        lines=_lines(f"{by or 'Somebody'} asked for it. News of {project} will look like this."),
        path=path,
        at=at,
    )


def _where(stack: str, branch: str, commit: str) -> str:
    """`On Qwen3-30B-A3B · 16 × H100, branch main, commit 0f3c2a9d.`; empty when nothing is known."""
    told = [stack, f"branch {branch}" if branch else "", f"commit {commit}" if commit else ""]
    text = ", ".join(part for part in told if part)
    return f"On {text}." if text else ""


def _run(number: str) -> str:
    return f"run {number}"


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _lines(*texts: str) -> tuple[str, ...]:
    return tuple(_line(text) for text in texts if text)


def _line(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= MOST_LINE else f"{text[: MOST_LINE - 1]}…"
