"""Measure an upgrade: one container (driver, cluster, version) against another, over all stacks of a project.

Each stack with runs on both sides gets a single-field contrast, measured like a verdict but not a verdict on the code.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.domain.contract.fields import FIELDS, STACK_FIELDS
from app.domain.contract.values import comparable
from app.domain.numbers import THIN, daily_cost, grouped, plural
from app.domain.verdict.comparability import Comparability, Difference, compare_contracts
from app.domain.verdict.decide import judge
from app.domain.verdict.record import RunFacts, RunRecord, current_level
from app.domain.verdict.special import t_two_sided_p
from app.domain.verdict.step_time import (
    DEFAULT_PRIOR,
    Prior,
    RunEstimate,
    StepTimeChange,
    Verdict,
    family_prior,
    select_baseline,
)

# --- Control the false discoveries among many stacks: Benjamini and Hochberg 1995. Every stack is judged on its own,
# with at most 0.5 % false regressions. Over 100 stacks of one commit or upgrade, one such regression is likely. The
# q-value of a change is the expected share of chance among the changes that are at least as clear, so it depends on
# the number of tested stacks. It changes no decision; it shows which ones to doubt.

MOST_Q = 0.05
"""A called change with a larger q-value may be chance."""
CALLED = ("regression", "improvement")


@dataclass(frozen=True, slots=True)
class Discovery:
    """`p_value`: two-sided, of no change in this stack; `q_value`: the same over all stacks."""

    p_value: float
    q_value: float

    @property
    def may_be_chance(self) -> bool:
        return self.q_value > MOST_Q


def discoveries(changes: Sequence[StepTimeChange | None]) -> list[Discovery | None]:
    """Return p- and q-values of the changes of several stacks, in their order; None without a change."""
    tested = [(position, _p_value(change)) for position, change in enumerate(changes) if change is not None]
    result: list[Discovery | None] = [None] * len(changes)
    q_value = 1.0
    for rank, (position, p) in reversed(list(enumerate(sorted(tested, key=lambda pair: pair[1]), 1))):
        q_value = min(q_value, p * len(tested) / rank)
        result[position] = Discovery(p, q_value)
    return result


def doubt(changes: Sequence[StepTimeChange | None], noun: str = "stack") -> str:
    """Say how many of the called changes may be chance, given the number of tests; empty for none."""
    pairs = list(zip(changes, discoveries(changes), strict=True))
    doubtful = [
        change
        for change, discovery in pairs
        if change and discovery and change.decision in CALLED and discovery.may_be_chance
    ]
    if not doubtful:
        return ""
    tested = sum(change is not None for change in changes)
    return f"{len(doubtful)} of these changes may be chance, given {plural(tested, noun)}"


def _p_value(change: StepTimeChange) -> float:
    if change.standard_error <= 0:
        return 0.0 if change.shift else 1.0
    return t_two_sided_p(change.shift / change.standard_error, change.degrees_of_freedom)


# --- An upgrade.

UPGRADE_FIELDS = (
    "container",
    "cluster",
    "driver",
    *(name for name, field in FIELDS.items() if field.group == "Software" and field.role == "info"),
)
"""Fields that a project upgrades as a whole. A knob or a workload is not an upgrade."""
NEAR = 3
"""Most further fields in which a stack may differ from one on the other side to be shown as a near pair."""

Word = Literal[
    "worse", "better", "no change", "inconclusive", "unconfirmed", "in one run", "already slow", "not judged"
]
_WORDS: Mapping[str, Word] = {"regression": "worse", "improvement": "better", "no_change": "no change"}


@dataclass(frozen=True, slots=True)
class ConfigRuns:
    """Runs of one config key and job that share the value of the field, oldest first; at least one.

    `newest`: one of them.
    """

    newest: RunRecord
    runs: tuple[RunFacts, ...]

    @property
    def commits(self) -> set[str]:
        return {run.commit for run in self.runs} - {""}


@dataclass(frozen=True, slots=True)
class JudgedChange:
    """The change of a job and configuration as it was judged after the upgrade."""

    old: ConfigRuns
    new: ConfigRuns
    measured: Verdict


@dataclass(frozen=True, slots=True)
class Pair:
    """A job and configuration on both sides: as judged, else measured over the runs of its current segments.

    `discovery`: how likely its change is chance, over all pairs. `is_judged`: the job was upgraded so; else it ran
    another value in between, or both in turn. `is_counted`: it is judged, or no pair is. `is_confirmed`: whether the
    regression that the upgrade opened counts its slowdown; None if it is in none. `already_slow`: the regression in
    which the job was slow on the old side already, if one continued on the new side.
    """

    old: RunRecord
    new: RunRecord
    comparability: Comparability
    measured: Verdict
    shares_commits: bool
    discovery: Discovery | None = None
    is_judged: bool = False
    is_counted: bool = True
    is_confirmed: bool | None = None
    already_slow: int | None = None

    def differs_besides(self, field: str) -> tuple[Difference, ...]:
        """Return what changed together with the upgraded field."""
        members = (*self.comparability.stack, *self.comparability.knobs)
        return tuple(difference for difference in members if difference.field != field)

    @property
    def word(self) -> Word:
        """Return the decision on step time.

        It is `not judged` for a job that was not upgraded directly. A slowdown is `already slow` if it began before the
        upgrade, `unconfirmed` if only one unsteady run shows it, and `in one run` if its regression counts only jobs
        that several runs show.
        """
        time = self.measured.step_time
        if not self.is_counted:
            return "not judged"
        if time is None:
            return "inconclusive"
        if time.decision == "regression" and self.already_slow is not None:
            return "already slow"
        if time.decision == "regression" and self.is_confirmed is False:
            return "in one run"
        if time.decision == "regression" and self.is_confirmed is None and self.measured.is_one_drifting_run:
            return "unconfirmed"
        return _WORDS.get(time.decision, "inconclusive")


@dataclass(frozen=True, slots=True)
class NearPair:
    """A stack of the new side and the nearest of the old side, with their differences in other fields."""

    old: RunRecord
    new: RunRecord
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class UpgradeReport:
    """An upgrade measured. `pairs`: sorted by `slowest_first`.

    `only_old`, `only_new`: newest run of each stack without a pair.
    """

    field: str
    old_value: str
    new_value: str
    pairs: tuple[Pair, ...]
    near: tuple[NearPair, ...]
    only_old: tuple[RunRecord, ...]
    only_new: tuple[RunRecord, ...]

    @property
    def counted(self) -> tuple[Pair, ...]:
        """Return the pairs that were judged, which lists of upgrades state as well; all pairs if none was."""
        return tuple(pair for pair in self.pairs if pair.is_counted)

    @property
    def cause_key(self) -> str:
        """Key of the regression that this upgrade opened."""
        return cause_key(self.field, self.old_value, self.new_value)


def cause_key(field: str, old_value: str, new_value: str) -> str:
    """Return the key that groups all regressions of one upgrade."""
    return f"upgrade:{field}:{old_value}:{new_value}"


class OldSideFamily:
    """Run-to-run variation learned from the other configurations of the old side with the same GPU and class."""

    def __init__(self, configs: Sequence[ConfigRuns]) -> None:
        self._levels = [(config, _estimates(current_level(config.runs, DEFAULT_PRIOR))) for config in configs]

    def prior(self, old: ConfigRuns) -> Prior:
        gpu, style = old.newest.contract.get("gpu"), old.newest.semantic_class
        return family_prior(
            level
            for config, level in self._levels
            if config is not old and config.newest.contract.get("gpu") == gpu and config.newest.semantic_class == style
        )


def compare_sides(
    field: str,
    old_value: str,
    new_value: str,
    old: Sequence[ConfigRuns],
    new: Sequence[ConfigRuns],
    *,
    judged: Sequence[JudgedChange] = (),
) -> UpgradeReport:
    """Measure the upgrade, except for the changes that were judged.

    `old` and `new`: usable CI runs of each side by configuration and job, in any order.
    """
    before, after = _by_stack(old, field), _by_stack(new, field)
    family = OldSideFamily(old)
    pairs = [replace(_as_pair(change.old, change.new, change.measured), is_judged=True) for change in judged]
    done = {_history(change.new) for change in judged}
    near: list[NearPair] = []
    unmatched = []
    for stack, configs in after.items():
        others = [config for config in configs if _history(config) not in done]
        matches = [pair for config in others if (pair := _pair(field, config, before.get(stack, ()), family))]
        pairs += matches
        if not matches and len(others) == len(configs):
            unmatched.append(_newest(configs))
    only_new = []
    for config in unmatched:
        nearest = _nearest(field, config, [_newest(configs) for configs in before.values()])
        near += [nearest] if nearest else []
        only_new += [] if nearest else [config.newest]
    seen = {*(pair.old.stack_key for pair in pairs), *(pair.old.stack_key for pair in near)}
    only_old = [run for configs in before.values() if (run := _newest(configs).newest).stack_key not in seen]
    chances = discoveries([pair.measured.step_time for pair in pairs])
    pairs = [
        replace(pair, discovery=chance, is_counted=pair.is_judged or not judged)
        for pair, chance in zip(pairs, chances, strict=True)
    ]
    ordered = slowest_first(pairs)
    return UpgradeReport(field, old_value, new_value, ordered, tuple(near), tuple(only_old), tuple(only_new))


def slowest_first(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Sort by the change of step time: after those of the upgrade those that were already slow, then inconclusive ones.

    The largest of the inconclusive ones are the noisiest. Jobs that were not upgraded directly come last.
    """
    last = ("already slow", "inconclusive", "not judged")

    def place(pair: Pair) -> tuple[int, float]:
        time = pair.measured.step_time
        return last.index(pair.word) + 1 if pair.word in last else 0, -(time.shift if time is not None else 0.0)

    return tuple(sorted(pairs, key=place))


def _history(config: ConfigRuns) -> tuple[str, str, str]:
    return config.newest.stack_key, config.newest.config_key, config.newest.job


def _as_pair(old: ConfigRuns, new: ConfigRuns, measured: Verdict) -> Pair:
    comparability = compare_contracts(old.newest, new.newest)
    return Pair(old.newest, new.newest, comparability, measured, bool(old.commits & new.commits))


def shared_stacks(field: str, old: Iterable[RunRecord], new: Iterable[RunRecord]) -> int:
    """Count the stacks with runs on both sides that differ only in the field."""
    return len({_rest(run, field) for run in old} & {_rest(run, field) for run in new})


def _by_stack(configs: Iterable[ConfigRuns], field: str) -> dict[tuple[object, ...], list[ConfigRuns]]:
    stacks: dict[tuple[object, ...], list[ConfigRuns]] = {}
    for config in configs:
        stacks.setdefault(_rest(config.newest, field), []).append(config)
    return stacks


def _rest(run: RunRecord, field: str) -> tuple[object, ...]:
    """Return the stack without the field. An unknown value equals only another unknown value."""
    names = [name for name in STACK_FIELDS if name != field]
    return tuple(comparable(name, run.contract[name].value) if name in run.contract else None for name in names)


def _pair(field: str, new: ConfigRuns, candidates: Sequence[ConfigRuns], family: OldSideFamily) -> Pair | None:
    """Pair a configuration with the same one and job of the old side; None when each also differs in a knob."""
    same_job = [config for config in candidates if config.newest.is_of_job(new.newest)]
    for old in sorted(same_job, key=lambda config: -_number(config.newest.run)):
        comparability = compare_contracts(old.newest, new.newest)
        members = (*comparability.stack, *comparability.knobs)
        if all(member.field == field for member in members):
            prior = family.prior(old)
            after, before = (_estimates(current_level(side.runs, prior)) for side in (new, old))
            # Outliers of the new side are dropped like those of a baseline.
            measured = judge(select_baseline(after, prior.variance).used, before, prior)
            return _as_pair(old, new, measured)
    return None


def _estimates(runs: Iterable[RunFacts]) -> list[RunEstimate]:
    return [run.estimate for run in runs]


def _newest(configs: Sequence[ConfigRuns]) -> ConfigRuns:
    return max(configs, key=lambda config: _number(config.newest.run))


def _nearest(field: str, new: ConfigRuns, old: Sequence[ConfigRuns]) -> NearPair | None:
    """Return the old stack that differs in the fewest further fields; None when all differ in more than NEAR."""
    near = []
    for config in old:
        comparability = compare_contracts(config.newest, new.newest)
        others = tuple(d for d in (*comparability.stack, *comparability.knobs) if d.field != field)
        if len(others) <= NEAR:
            near.append(NearPair(config.newest, new.newest, others))
    return min(near, key=lambda pair: len(pair.differences), default=None)


def _number(run: str) -> int:
    """Return the run's number; runs are numbered in the order of their upload."""
    return int(run) if run.isdigit() else 0


def shared_commit_label(field: str) -> str:
    """Name the test that tells an upgrade from a code change: `Run one commit in both containers`."""
    return f"Run one commit {'in both containers' if field == 'container' else 'on both sides'}"


# --- The result in one sentence.


def upgrade_sentence(report: UpgradeReport, gpu_hours_per_day: float | None, cost_end: str = "") -> str:
    """Summarise: `3 of 5 jobs slower by 4.1 to 6.8 %, 2 unchanged; about 57 GPU-h/day.`

    `cost_end`: `, last run 30 Sep`, empty for a cost of now. It is named if all jobs moved alike: a lead has few words.
    """
    if not report.pairs:
        return f"No stack can be compared on both sides{_why_none(report)}."
    parts = list(_parts(report.counted))
    text = ", ".join(parts)
    if chance := doubt([pair.measured.step_time for pair in report.counted], "job"):
        text += f"; {chance}"
    if gpu_hours_per_day:
        text += f"; {daily_cost(gpu_hours_per_day)}{cost_end if len(parts) == 1 else ''}"
    return f"{text}."


def _parts(pairs: Sequence[Pair]) -> Iterator[str]:
    unconfirmed, once = ([pair for pair in pairs if pair.word == word] for word in ("unconfirmed", "in one run"))
    already = sum(pair.word == "already slow" for pair in pairs)
    total, slower = len(pairs), _decided([pair for pair in pairs if pair.word == "worse"], "regression")
    faster, still = _decided(pairs, "improvement"), _decided(pairs, "no_change")
    groups = [
        (len(slower), f"slower{_by(slower)}"),
        (len(faster), f"faster{_by(faster)}"),
        (len(still), "unchanged"),
        (len(unconfirmed), f"unconfirmed (slower{_by(_decided(unconfirmed, 'regression'))})"),
        (len(once), f"slower{_by(_decided(once, 'regression'))} in one run"),
        (already, "already slow"),
    ]
    groups.append((total - sum(n for n, _ in groups), "inconclusive"))
    shown = [(n, words) for n, words in groups if n]
    for k, (n, words) in enumerate(shown):
        yield f"{_first(n, total)} {words}" if k == 0 else f"{n} {words}"
    hungry = [pair for pair in pairs if pair.measured.memory and pair.measured.memory.decision == "regression"]
    if hungry:
        yield f"{plural(len(hungry), 'needs', 'need')} significantly more memory"


def _decided(pairs: Sequence[Pair], decision: str) -> list[float]:
    """Return the sizes of step-time changes with this decision, in percent, ascending."""
    times = (pair.measured.step_time for pair in pairs)
    return sorted(abs(time.delta_pct) for time in times if time is not None and time.decision == decision)


def _first(n: int, total: int) -> str:
    """Return `3 of 5 jobs`, `All 3 jobs` or `The only job is`."""
    if total == 1:
        return "The only job is"
    return f"All {total} jobs" if n == total else f"{n} of {plural(total, 'job')}"


def _by(sizes: Sequence[float]) -> str:
    """Return ` by 4.1 to 6.8 %`, or one number when both ends look the same."""
    if not sizes:
        return ""
    decimals = 1 if sizes[-1] >= 0.995 else 2
    low, high = (grouped(size, decimals) for size in (sizes[0], sizes[-1]))
    return f" by {low}{THIN}%" if low == high else f" by {low} to {high}{THIN}%"


def _why_none(report: UpgradeReport) -> str:
    if report.near:
        return f": {plural(len(report.near), 'near match', 'near matches')} with more than {report.field} different"
    if not report.only_old and not report.only_new:
        return f": no CI run has {report.field} {report.old_value} or {report.new_value}"
    missing = report.new_value if report.only_old else report.old_value
    return f": also run a stack with {report.field} {missing}"
