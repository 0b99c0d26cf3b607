"""The effect of an upgrade, as tables: from runs of both sides to pairs, near misses and a sentence."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.domain.numbers import THIN
from app.domain.verdict.step_time import MemoryChange
from app.domain.verdict.upgrade import ConfigRuns, UpgradeReport, compare_sides, shared_stacks, upgrade_sentence
from tests.domain.verdict.matching_runs import make_record

OLD, NEW = "train:2026.09", "train:2026.10"
NOISE = (0.0, 0.002, -0.002, 0.001, -0.001, 0.003)


def config(
    value: str,
    fields: Mapping[str, Any] | None = None,
    *,
    slower: float = 0.0,
    first: int = 1,
    field: str = "container",
) -> ConfigRuns:
    """Six runs of one configuration that vary by 0.2 %, numbered from `first`."""
    stated = {**(fields or {}), field: value}
    runs = [make_record(str(first + k), stated, slower=slower + noise) for k, noise in enumerate(NOISE)]
    return ConfigRuns(runs[-1], tuple(runs))


def report(old: Sequence[ConfigRuns], new: Sequence[ConfigRuns], field: str = "container") -> UpgradeReport:
    return compare_sides(field, OLD, NEW, old, new)


def sentence(upgrade: UpgradeReport, hours: float | None = None, cost_end: str = "") -> str:
    return upgrade_sentence(upgrade, hours, cost_end).replace(THIN, " ")


def test_each_stack_on_both_sides_is_measured_the_slowest_first() -> None:
    changes = {1024: 0.0, 2048: 0.06, 4096: -0.08, 8192: 0.09}
    old = [config(OLD, {"seq_len": n}, first=100 * k) for k, n in enumerate(changes, 1)]
    new = [config(NEW, {"seq_len": n}, slower=d, first=100 * k + 50) for k, (n, d) in enumerate(changes.items(), 1)]
    upgrade = report(old, new)
    assert [pair.new.contract["seq_len"].value for pair in upgrade.pairs] == [8192, 2048, 1024, 4096]
    assert [pair.word for pair in upgrade.pairs] == ["worse", "worse", "no change", "better"]
    assert all(pair.comparability.attributed_to == "container" for pair in upgrade.pairs)
    assert (upgrade.near, upgrade.only_old, upgrade.only_new) == ((), (), ())
    assert re.findall(r"\d+(?:\.\d)?", sentence(upgrade, 57.4)) == ["2", "4", "6.2", "9.4", "1", "7.7", "1", "57"]
    assert sentence(upgrade, 57.4, ", last run 30 Sep").endswith(" GPU-h/day."), "few words"
    alike = replace(upgrade, pairs=upgrade.pairs[:1])
    assert sentence(alike, 57.4, ", last run 30 Sep").endswith(" GPU-h/day, last run 30 Sep.")


def test_inconclusive_stacks_come_last_and_more_memory_is_not_slower() -> None:
    noisy = ConfigRuns(
        make_record("250", {"container": NEW, "seq_len": 2048}, slower=0.4),
        tuple(make_record(str(248 + k), {"container": NEW, "seq_len": 2048}, slower=0.4 * k) for k in range(3)),
    )
    old = [config(OLD, {"seq_len": n}, first=100 * k) for k, n in enumerate((1024, 2048), 1)]
    upgrade = report(old, [noisy, config(NEW, {"seq_len": 1024}, slower=0.06, first=150)])
    assert [pair.word for pair in upgrade.pairs] == ["worse", "inconclusive"]
    last, first = (pair.measured.step_time for pair in reversed(upgrade.pairs))
    assert last is not None
    assert first is not None
    assert last.shift > first.shift
    more = MemoryChange("regression", 60.0, 66.0, 10.0, 1.0)
    hungry = replace(upgrade.pairs[0].measured, memory=more, step_time=replace(first, decision="improvement"))
    assert replace(upgrade.pairs[0], measured=hungry).word == "better"


@pytest.mark.parametrize(
    ("field", "old", "new"),
    [("cluster", "west", "east"), ("driver", "570.1", "580.2"), ("nccl_version", "2.25", "2.27")],
)
def test_any_place_or_version_may_be_the_upgrade(field: str, old: str, new: str) -> None:
    sides = [config(old, field=field)], [config(new, field=field, slower=0.1, first=50)]
    upgrade = compare_sides(field, old, new, *sides)
    assert [pair.word for pair in upgrade.pairs] == ["worse"]
    assert "10.5 %" in sentence(upgrade)
    assert upgrade.cause_key == f"upgrade:{field}:{old}:{new}"


def test_a_stack_on_one_side_only_says_what_is_missing() -> None:
    upgrade = report([config(OLD)], [])
    assert [run.run for run in upgrade.only_old] == ["6"]
    assert "container train:2026.10" in sentence(upgrade)
    upgrade = report([], [config(NEW)])
    assert [run.run for run in upgrade.only_new] == ["6"]
    assert "container train:2026.09" in sentence(upgrade)


def test_a_stack_that_differs_in_more_is_named_with_the_fields_and_not_measured() -> None:
    old = [config(OLD), config(OLD, {"model": "DeepSeek-V3", "gpu": "B200", "gpus": 256, "seq_len": 8192}, first=20)]
    upgrade = report(old, [config(NEW, {"gpu": "GB200"}, slower=0.1, first=50)])
    assert not upgrade.pairs
    assert [[difference.field for difference in near.differences] for near in upgrade.near] == [["gpu"]]
    assert [run.run for run in upgrade.only_old] == ["25"]
    assert "1 near match" in sentence(upgrade)


def test_a_contrast_with_a_changed_knob_is_not_attributed() -> None:
    upgrade = report([config(OLD)], [config(NEW, {"dispatcher": "deepep"}, slower=0.1, first=50)])
    assert not upgrade.pairs
    assert [[difference.field for difference in near.differences] for near in upgrade.near] == [["dispatcher"]]


def test_of_several_configurations_the_one_without_another_knob_is_the_counterpart() -> None:
    old = [config(OLD, {"dispatcher": "alltoall"}), config(OLD, {"dispatcher": "deepep"}, first=20, slower=-0.2)]
    upgrade = report(old, [config(NEW, {"dispatcher": "alltoall"}, slower=0.1, first=50)])
    assert [(pair.old.run, pair.word) for pair in upgrade.pairs] == [("6", "worse")]


def test_only_the_current_level_of_either_side_counts() -> None:
    """A slowdown from before the upgrade is not attributed to it."""
    before, after = config(OLD, slower=-0.1), config(OLD, first=7)
    old = ConfigRuns(after.newest, (*before.runs, *after.runs))
    upgrade = report([old], [config(NEW, first=50)])
    assert upgrade.pairs[0].word == "no change"
    assert set(upgrade.pairs[0].measured.baseline_used) == {run.run for run in after.runs}


def test_one_outlier_on_the_new_side_is_not_part_of_it() -> None:
    new = config(NEW, slower=0.05, first=50)
    odd = make_record("99", {"container": NEW}, slower=0.25)
    upgrade = report([config(OLD)], [ConfigRuns(odd, (*new.runs, odd))])
    assert upgrade.pairs[0].measured.step_time is not None
    assert upgrade.pairs[0].measured.step_time.delta_pct == pytest.approx(5.1, abs=0.3)


def test_stacks_that_share_all_but_the_field_are_counted() -> None:
    old = [config(OLD).newest, config(OLD, {"seq_len": 8192}).newest]
    new = [config(NEW).newest, config(NEW, {"dispatcher": "deepep"}).newest]
    assert shared_stacks("container", old, new) == 1


def test_nothing_on_either_side_says_so() -> None:
    assert all(side in sentence(report([], [])) for side in ("train:2026.09", "train:2026.10"))
