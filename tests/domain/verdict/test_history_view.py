"""A history as its page shows it: eligible runs, levels of each configuration, drift of pins, versions, the answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from app.domain.run import Stated
from app.domain.verdict.history_view import (
    Eligibility,
    Pin,
    PlacedAlarm,
    SegmentChange,
    VersionProbe,
    alarm_of,
    answer,
    called_at,
    changed_versions,
    configurations,
    drifts,
    eligibility,
    letter,
    with_outliers,
)

BEGIN = datetime(2026, 9, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Run:
    id: int
    log_step_time: float = math.log(400)
    ordered_at: datetime = BEGIN
    commit: str = "c"
    branch: str = "main"
    purpose: str = "ci"
    config_key: str = "config"
    job: str = ""
    outcome: str = "completed"
    quarantine: str = ""
    is_steady: bool = True
    short: bool = False
    definition_version: int = 1


def pinned(run_id: int, pinned_at: datetime, pin_id: int = 1, unpinned_at: datetime | None = None) -> Pin:
    return Pin(pin_id, run_id, f"run {run_id}", "Ada", pinned_at, "", "Ada" if unpinned_at else "", unpinned_at)


def history(*levels: tuple[int, float], config_key: str = "config", first: int = 1) -> list[Run]:
    """`(runs, milliseconds)` after another, numbered from `first`, alternating by 0.2 % about their level."""
    times = [ms * (1 + 0.002 * (-1) ** k) for n, ms in levels for k in range(n)]
    return [
        Run(first + k, math.log(ms), BEGIN + timedelta(days=first - 1 + k), f"c{first + k}", config_key=config_key)
        for k, ms in enumerate(times)
    ]


def in_order(*parts: Sequence[Run]) -> list[Run]:
    return sorted((run for part in parts for run in part), key=lambda run: (run.ordered_at, run.id))


@pytest.mark.parametrize(
    ("differs", "expected"),
    [
        ({}, "counts"),
        ({"quarantine": "a bad node", "outcome": "failed"}, "quarantined"),
        ({"outcome": "out_of_memory", "log_step_time": math.nan}, "failed"),
        ({"outcome": "truncated"}, "cut_off"),
        ({"log_step_time": math.nan}, "no_figure"),
        ({"is_steady": False}, "not_steady"),
        ({"short": True}, "short"),
        ({"purpose": "experiment"}, "purpose"),
        ({"purpose": "release"}, "purpose"),
        ({"branch": "next"}, "branch"),
        ({"definition_version": 2}, "definitions"),
    ],
)
def test_what_counts(differs: dict[str, object], expected: str) -> None:
    assert eligibility(replace(Run(1), **differs), "main", 1) == expected


def test_any_branch_may_be_the_baseline_branch() -> None:
    assert eligibility(Run(1, branch="next"), "*", 1) == "counts"


def eligibilities(runs: list[Run]) -> list[str]:
    return [eligibility(run, "main", 1) for run in runs]


def test_a_change_lies_between_the_runs_that_count() -> None:
    runs = history((12, 400), (12, 424))
    runs[12] = replace(runs[12], is_steady=False)
    (configuration,) = configurations(runs, eligibilities(runs))
    (change,) = configuration.changes
    assert (change.before, change.run) == (11, 13)
    assert change.delta_pct == pytest.approx(6.0, abs=0.1)
    assert [(level.first, level.last, level.n) for level in configuration.levels] == [(0, 11, 12), (13, 23, 11)]
    assert configuration.now is not None
    assert configuration.now.step_time_ms == pytest.approx(424, rel=0.001)


def test_each_configuration_has_its_own_levels() -> None:
    old, new = history((14, 400), config_key="alltoall"), history((20, 300), config_key="hybridep", first=8)
    runs = in_order(old, new)
    first, second = configurations(runs, eligibilities(runs))
    assert (first.letter, first.config_key, first.is_last, len(first.levels)) == ("A", "alltoall", False, 1)
    assert (second.letter, second.config_key, second.is_last, len(second.levels)) == ("B", "hybridep", True, 1)
    assert not first.changes
    assert not second.changes
    assert sorted(first.runs + second.runs) == list(range(34))


def test_a_configuration_without_counted_runs_has_no_level() -> None:
    runs = [replace(run, short=True) for run in history((3, 400))]
    (configuration,) = configurations(runs, eligibilities(runs))
    assert (configuration.levels, configuration.changes, configuration.now) == ((), (), None)


@pytest.mark.parametrize(("index", "text"), [(0, "A"), (25, "Z"), (26, "AA"), (51, "AZ"), (52, "BA"), (701, "ZZ")])
def test_letters(index: int, text: str) -> None:
    assert letter(index) == text


def test_drift_of_pins() -> None:
    runs = [Run(k, math.log(ms)) for k, ms in enumerate((400, 404, 412, 424), 1)]
    runs[1] = replace(runs[1], purpose="release")
    pins = [pinned(1, BEGIN, 7, BEGIN + timedelta(days=9)), pinned(3, BEGIN + timedelta(days=9), 8)]
    newest, oldest = drifts(pins, runs, configurations(runs, eligibilities(runs)))
    level = math.exp((math.log(400) + math.log(412) + math.log(424)) / 3)  # too few runs to distinguish levels
    assert newest.since_last is not None
    assert newest.since_release is not None
    assert newest.now is not None
    assert (newest.pin.id, oldest.pin.id) == (8, 7)
    assert (newest.since_last.against_id, newest.since_release.against_id, newest.now.against_id) == (1, 2, 3)
    assert newest.since_last.delta_pct == pytest.approx(3.0)
    assert newest.since_release.delta_pct == pytest.approx(100 * (412 / 404 - 1))
    assert newest.now.delta_pct == pytest.approx(100 * (level / 412 - 1))
    assert not newest.since_last.other_configuration
    assert (oldest.since_last, oldest.since_release) == (None, None)  # none existed yet


def test_a_pin_of_another_configuration_says_so() -> None:
    runs = [Run(1), Run(2, config_key="other", short=True)]
    pins = [pinned(1, BEGIN), pinned(2, BEGIN + timedelta(days=1), 2)]
    newest, _ = drifts(pins, runs, configurations(runs, eligibilities(runs)))
    assert newest.since_last is not None
    assert newest.since_last.other_configuration
    assert newest.now is None  # none of its runs counts


def test_a_pin_of_a_run_that_is_gone_or_has_no_figure_has_no_drift() -> None:
    runs = [Run(1, math.nan), Run(2)]
    (only,) = drifts([pinned(1, BEGIN), pinned(99, BEGIN)], runs, configurations(runs, eligibilities(runs)))
    assert (only.since_last, only.since_release, only.now) == (None, None, None)


def stated(**values: str) -> dict[str, Stated]:
    return {name: Stated(value, "log line") for name, value in values.items()}


@pytest.mark.parametrize(
    ("contracts", "changes"),
    [
        ([stated(driver="550"), stated(driver="550")], []),
        ([stated(driver="550"), stated(driver="560")], [(1, 0, ["driver"])]),
        ([stated(), stated(driver="560")], []),  # learned, not changed
        ([stated(driver="550"), stated(), stated(driver="560")], [(2, 1, ["driver"])]),
        ([stated(driver="550", nccl_version="2.21"), stated(driver="560", nccl_version="2.23")], [(1, 0, 2)]),
    ],
)
def test_versions(contracts: list[dict[str, Stated]], changes: list[tuple[int, int, object]]) -> None:
    versions = changed_versions([VersionProbe(place, contract) for place, contract in enumerate(contracts)])
    assert [(version.run, version.before) for version in versions] == [(run, before) for run, before, _ in changes]
    for version, (_, _, fields) in zip(versions, changes, strict=True):
        names = [difference.field for difference in version.differences]
        assert names == fields or len(names) == fields


def answer_text(runs: list[Run], pins: tuple[Pin, ...] = (), chosen: int = -1) -> str:
    segments = configurations(runs, eligibilities(runs))
    return answer(runs, eligibilities(runs), segments[chosen], segments, pins).replace("\u202f", " ")


def test_the_answer() -> None:
    pins = (pinned(3, BEGIN, unpinned_at=BEGIN + timedelta(days=4)), pinned(4, BEGIN + timedelta(days=4)))
    text = answer_text(history((20, 19_710), (10, 20_990)), pins)
    parts = ("20.99 s", "6.5 % slower", "21 September", "1 change point", "30 runs", "#4", "5 September", "Ada")
    assert [part for part in parts if part not in text] == []


def test_the_answer_of_a_level_history() -> None:
    text = answer_text(history((20, 400)))
    assert [part for part in ("400.0 ms", "unchanged", "1 September", "20 runs") if part not in text] == []


def test_the_answer_of_a_young_history() -> None:
    text = answer_text(history((1, 400)))
    assert [part for part in ("400.8 ms", "1 eligible run", "Change points need 12 runs") if part not in text] == []


def test_the_answer_when_nothing_counts() -> None:
    runs = [replace(Run(1), short=True), replace(Run(2), outcome="failed"), replace(Run(3), short=True)]
    assert answer_text(runs).endswith(": 2 short, 1 failed.")


def test_the_answer_names_the_configuration_it_speaks_of() -> None:
    runs = in_order(history((14, 400), config_key="a"), history((20, 300), config_key="b", first=8))
    assert "configuration B of 2" in answer_text(runs)
    assert "configuration A of 2" in answer_text(runs, chosen=0)


def test_another_year_is_named() -> None:
    runs = history((30, 400), (40, 380))
    assert "faster since 1 October;" in answer_text(runs)
    runs[-1] = replace(runs[-1], ordered_at=runs[-1].ordered_at + timedelta(days=200))
    assert "faster since 1 October 2026;" in answer_text(runs)


SLOWER = SegmentChange(run=20, before=19, delta_pct=5.0, p_value=0, from_ms=400, to_ms=420)
FASTER = replace(SLOWER, delta_pct=-5.0)


@pytest.mark.parametrize(
    ("change", "alarms", "alarm"),
    [
        (SLOWER, [], None),
        (SLOWER, [PlacedAlarm(1, 20)], 1),
        (SLOWER, [PlacedAlarm(1, 18), PlacedAlarm(2, 21)], 2),  # the nearest
        (SLOWER, [PlacedAlarm(1, 17)], None),
        (SLOWER, [PlacedAlarm(1, 31)], None),  # of the level after
        (SLOWER, [PlacedAlarm(1, 5, fixed_by=20)], None),
        (FASTER, [PlacedAlarm(1, 5, fixed_by=20)], 1),
        (FASTER, [PlacedAlarm(1, 20)], None),
    ],
)
def test_the_regression_that_a_change_belongs_to(
    change: SegmentChange, alarms: list[PlacedAlarm], alarm: int | None
) -> None:
    assert alarm_of(change, 30, alarms) == alarm


@pytest.mark.parametrize(
    ("change", "verdicts", "place"),
    [
        (SLOWER, [(19, "no_change"), (20, "inconclusive"), (21, "regression"), (22, "regression")], 21),
        (SLOWER, [(23, "regression")], None),
        (SLOWER, [(20, "improvement")], None),
        (FASTER, [(18, "improvement")], 18),
    ],
)
def test_the_verdict_that_called_a_change(
    change: SegmentChange, verdicts: list[tuple[int, str]], place: int | None
) -> None:
    assert called_at(change, [position for position, _ in verdicts], dict(verdicts).__getitem__) == place


def test_two_jobs_of_one_configuration_are_two_histories() -> None:
    muon = [replace(run, job="muon") for run in history((14, 400))]
    adam = [replace(run, job="adam") for run in history((14, 480), first=20)]
    runs = in_order(muon, adam)
    segments = configurations(runs, ["counts"] * len(runs))
    assert [(own.job, len(own.runs), len(own.changes)) for own in segments] == [("muon", 14, 0), ("adam", 14, 0)]
    assert segments[1].is_named_by(segments[1].address)
    assert not segments[0].is_named_by(segments[1].address)
    alone = configurations(muon, ["counts"] * 14)
    assert [(own.job, own.address) for own in alone] == [("", "config")]


def test_reruns_of_one_commit_count_once_in_a_level() -> None:
    runs = [replace(run, commit="same") if k >= 14 else run for k, run in enumerate(history((14, 400), (4, 440)))]
    (configuration,) = configurations(runs, ["counts"] * len(runs))
    assert configuration.changes == ()
    assert sum(level.n for level in configuration.levels) == 18


@pytest.mark.parametrize(
    ("levels", "holds"),
    [([300.0], True), ([300.0, 305.0], True), ([300.0, 208.0], False), ([208.0, 300.0, 208.0], True)],
)
def test_a_mean_of_two_commits_that_differ_does_not_hold(levels: list[float], holds: bool) -> None:
    runs = in_order(*(history((1, ms), first=number) for number, ms in enumerate(levels, 1)))
    (configuration,) = configurations(runs, ["counts"] * len(runs))
    assert [level.holds for level in configuration.levels] == [holds]


def test_a_night_on_a_slow_node_is_an_outlier_and_in_no_segment() -> None:
    runs = history((14, 400), (1, 440), (10, 400), (2, 440))
    counts: list[Eligibility] = ["counts"] * len(runs)
    marked = with_outliers(runs, counts)
    assert [place for place, why in enumerate(marked) if why == "outlier"] == [14]
    (configuration,) = configurations(runs, marked)
    assert 14 not in configuration.counted
    change = history((14, 400), (10, 440))
    assert "outlier" not in with_outliers(change, ["counts"] * len(change))
