"""What a forge (GitHub, GitLab) is told of runs: one of three states, a line, and one comment that is found again.

Pure values. The text of a run is its `report.md`, in which names and log text are escaped already.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from app.client.plain import one_line

MOST_BYTES = 60_000
"""Of a comment. GitHub takes 65,536 characters in comments and 65,535 in the summary of a check, GitLab a million."""

_WHERE = re.compile(r" run=(\d{1,19}) -->")
_NUMBERED = re.compile(r"(.+) #(\d{1,9})")
_TITLES = {"success": "No regression", "failure": "Regression or failed run", "neutral": "No verdict to act on"}


class State(StrEnum):
    """NEUTRAL: nobody can tell (no baseline, inconclusive, not judged yet). It is never shown as green."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"


_STATE_OF_EXIT_CODE = {0: State.SUCCESS, 1: State.FAILURE, 3: State.FAILURE}
_WORST_FIRST = (State.FAILURE, State.NEUTRAL, State.SUCCESS)


@dataclass(frozen=True, slots=True)
class RunSaid:
    """A run as the service reports it. `exit_code` is None as long as there is no verdict; `markdown` its report.md.

    `key` is the same for the runs of a job from change to change; empty when nobody knows it yet.
    """

    run_id: int
    project: str
    key: str
    url: str
    headline: str
    exit_code: int | None
    markdown: str

    @property
    def state(self) -> State:
        return State.NEUTRAL if self.exit_code is None else _STATE_OF_EXIT_CODE.get(self.exit_code, State.NEUTRAL)


@dataclass(frozen=True, slots=True)
class Message:
    """What is posted. `marker` begins the comment and is the same for every report of the same thing.

    `key` is empty when it cannot be told what it is a report of.
    """

    key: str
    state: State
    name: str
    title: str
    url: str
    run_id: int
    marker: str
    text: str

    @property
    def reference(self) -> str:
        """By which a comment or a check is known as ours, and of which run."""
        return f"{self.marker} run={self.run_id} -->"

    @property
    def comment(self) -> str:
        return f"{self.reference}\n{self.text}"


def message(runs: Sequence[RunSaid], key: str = "") -> Message:
    """Of the runs of one job, at least one. `key` names it where the keys of the runs are not to."""
    runs = sorted(runs, key=lambda run: _WORST_FIRST.index(run.state))
    worst = runs[0]
    what = key or _joint_key([run.key for run in runs])
    project = ",".join(sorted({run.project for run in runs}))
    return Message(
        key=what,
        state=worst.state,
        name=f"threewalls ({shortened(what, 100)})",
        title=one_line(worst.headline) if len(runs) == 1 else _title(runs),
        url=worst.url,
        run_id=max(run.run_id for run in runs),
        marker=_marker(project, what),
        text=bounded(worst.markdown if len(runs) == 1 else _table(runs), worst.url),
    )


def no_verdict(key: str, project: str, why: str, url: str) -> Message:
    """Of no run, so a report of any run replaces it and it replaces none. `why` is text of others."""
    shown = re.sub(r"[`<>@\[\]|*_]", " ", one_line(why))
    return Message(
        key=key,
        state=State.NEUTRAL,
        name=f"threewalls ({shortened(key, 100)})",
        title=f"no verdict came: {one_line(why)}",
        url=url,
        run_id=0,
        marker=_marker(project, key),
        text=f"**… no verdict came**  \n{shortened(shown, 1000)}\n",
    )


def _marker(project: str, key: str) -> str:
    return f"<!-- threewalls:report project={quote(project, safe='')} key={quote(key, safe='')}"


def _joint_key(keys: Sequence[str]) -> str:
    """Of `perf`, `perf #2` and `perf #3` it is `perf`: a job may make three runs today and two tomorrow."""
    if not all(keys):
        return ""
    first: dict[str, tuple[int, str]] = {}
    for key in keys:
        job, number = (found[1], int(found[2])) if (found := _NUMBERED.fullmatch(key)) else (key, 1)
        first[job] = min(first.get(job, (number, key)), (number, key))
    return ",".join(sorted(key for _, key in first.values()))


def is_marked(comment: str, marker: str) -> bool:
    """Whether it begins as ours do. One that quotes ours begins with the sign of a quotation."""
    return comment.startswith(f"{marker} run=")


def newest_run(comment: str, marker: str) -> int:
    """The newest run that a marked comment tells of."""
    found = _WHERE.match(comment, len(marker))
    return int(found[1]) if found else 0


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def bounded(text: str, url: str, most: int = MOST_BYTES) -> str:
    """The text where it fits; else without what is folded; else its beginning, with the address of the rest."""
    if _size(text) <= most:
        return text
    text = "\n".join(_unfolded(text.splitlines())) + "\n"
    if _size(text) <= most:
        return text
    end = f"\nThe rest is at {url}\n"
    kept: list[str] = []
    left = most - _size(end)
    for line in text.splitlines(keepends=True):
        left -= _size(line)
        if left < 0:
            break
        kept.append(line)
    return "".join(kept) + end


def _title(runs: Sequence[RunSaid]) -> str:
    counts = [(state, sum(run.state is state for run in runs)) for state in _WORST_FIRST]
    return f"{_TITLES[runs[0].state]}: " + ", ".join(f"{count} {state}" for state, count in counts if count)


def _table(runs: Sequence[RunSaid]) -> str:
    """One row a run, the worst first, and the report of each folded below."""
    lines = [f"**{_title(runs)}**", "", "| run | verdict |", "| --- | --- |"]
    lines += [f"| {_link(run)} | {_verdict(run)} |" for run in runs]
    for run in runs:
        lines += ["", f"<details><summary>Run {run.run_id}</summary>", "", run.markdown.rstrip("\n"), "", "</details>"]
    return "\n".join(lines) + "\n"


def _verdict(run: RunSaid) -> str:
    """The first line of its report, which the service has escaped."""
    first = run.markdown.partition("\n")[0].strip()
    return first.removeprefix("**").removesuffix("**") or "…"


def _link(run: RunSaid) -> str:
    """As the report links it, with its name."""
    for line in run.markdown.splitlines():
        if line.startswith("[") and f"(run {run.run_id})](" in line and line.endswith(")"):
            return line
    return f"[run {run.run_id}]({run.url})"


def _unfolded(lines: Iterable[str]) -> Iterable[str]:
    depth = 0
    for line in lines:
        depth += line.startswith("<details>")
        if not depth:
            yield line
        depth -= line.startswith("</details>")


def _size(text: str) -> int:
    return len(text.encode())
