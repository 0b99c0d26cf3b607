"""Which runs make a scaling series, and how efficient each size is."""

from typing import Any

import pytest

from app.domain.ranking.scaling import (
    ScalingRuns,
    ScalingSeries,
    Sizes,
    most_sizes,
    scaling_runs,
    scaling_series,
    sizes_of,
)
from app.domain.run import Stated
from tests.domain.ranking.runs import make_run

BASE: dict[str, Any] = {
    "model": "Qwen3-30B-A3B",
    "gpu": "GB300",
    "gpus": 8,
    "gbs": 512,
    "mbs": 8,
    "seq_len": 4096,
    "cp": 1,
    "dispatcher": "hybridep",
}


def make_pools(name: str, step_time_ms: float, **fields: Any) -> tuple[ScalingRuns, ...]:
    contract = {field: Stated(value, "metadata") for field, value in (BASE | fields).items()}
    run_fields = {key: fields.pop(key) for key in ("tflops", "outcome", "semantic_class") if key in fields}
    contract = {field: item for field, item in contract.items() if field not in run_fields}
    tflops = run_fields.pop("tflops", None)
    run = make_run(name, "hybridep", step_time_ms, config=name, stack=name, tflops_per_gpu=tflops, **run_fields)
    return scaling_runs([run], {name: contract})


def make_point(name: str, step_time_ms: float, **fields: Any) -> ScalingRuns:
    (pool,) = make_pools(name, step_time_ms, **fields)
    return pool


def only(series: tuple[ScalingSeries, ...], kind: str) -> ScalingSeries:
    result = [item for item in series if item.kind == kind]
    assert len(result) == 1
    return result[0]


def test_weak_scaling_as_published_for_qwen3_30b_on_gb300() -> None:
    """Step times of the verification card of 2026-08-15: 8, 32, 128 and 256 GPUs with 64 sequences a GPU."""
    steps = {8: 5889.42, 32: 5814.29, 128: 5831.72, 256: 5818.62}
    points = [make_point(str(gpus), ms, gpus=gpus, gbs=64 * gpus) for gpus, ms in reversed(steps.items())]
    series = only(scaling_series(points), "weak")
    assert (series.along, series.dispatcher) == ("gpus", "hybridep")
    assert [point.size for point in series.points] == [8, 32, 128, 256]
    efficiencies = [point.efficiency_pct for point in series.points]
    assert [efficiency.value for efficiency in efficiencies if efficiency] == pytest.approx(
        [100, 101.29, 100.99, 101.22], abs=0.01
    )
    low, high = efficiencies[1].low, efficiencies[1].high
    assert low is not None
    assert high is not None
    assert low < 100 < high  # one run each: it cannot be concluded that 32 GPUs are better


def test_strong_scaling_shares_the_same_work() -> None:
    points = [make_point("a", 8000, gpus=8), make_point("b", 4000, gpus=16), make_point("c", 2500, gpus=32)]
    series = only(scaling_series(points), "strong")
    assert [point.efficiency_pct.value for point in series.points if point.efficiency_pct] == pytest.approx(
        [100, 100, 80]
    )


def test_longer_sequences_are_measured_in_flops() -> None:
    """Tokens/s fall because attention costs more a token; the efficiency counts the work."""
    points = [
        make_point("a", 1000, seq_len=4096, gbs=256, cp=1, tflops=300.0),
        make_point("b", 1250, seq_len=16384, gbs=64, cp=4, tflops=285.0, cp_comm="p2p"),
    ]
    series = only(scaling_series(points), "sequence_tokens")
    assert [(point.size, point.cp) for point in series.points] == [(4096, 1), (16384, 4)]
    second = series.points[1]
    assert second.tokens_pct is not None
    assert second.tokens_pct.value == pytest.approx(80)
    assert second.efficiency_pct is not None
    assert second.efficiency_pct.value == pytest.approx(95)


def test_without_flops_the_efficiency_of_a_sequence_is_unknown() -> None:
    points = [make_point("a", 1000, seq_len=4096), make_point("b", 4400, seq_len=16384, cp=4)]
    series = only(scaling_series(points), "sequence_batch")
    assert series.points[1].efficiency_pct is None
    assert series.points[1].tokens_pct is not None
    assert series.points[1].tokens_pct.value == pytest.approx(100 * 4 / 4.4)


@pytest.mark.parametrize(
    "other",
    [
        {"container": "other"},
        {"routing_mode": "forced-balance"},
        {"ep_overlap": True},
        {"mbs": 4},
        {"dispatcher": "alltoall"},
        {"gbs": 1000},  # neither the same batch nor the same batch per GPU
        {"semantic_class": "benchmark_only"},
    ],
)
def test_what_must_be_equal(other: dict[str, Any]) -> None:
    points = [make_point("a", 8000, gpus=8), make_point("b", 4000, **{"gpus": 16, "gbs": 512, **other})]
    assert scaling_series(points) == ()


def test_unknown_members_make_a_series_provisional() -> None:
    series = only(scaling_series([make_point("a", 8000, gpus=8), make_point("b", 4000, gpus=16)]), "strong")
    assert series.provisional
    assert "container" in series.unknown
    assert "gpus" not in series.unknown
    assert not any(name.startswith("env.") for name in series.unknown)


def test_the_faster_context_parallelism_represents_its_length() -> None:
    points = [
        make_point("a", 1000, seq_len=4096, cp=1),
        make_point("b", 5000, seq_len=16384, cp=8),
        make_point("c", 4000, seq_len=16384, cp=4),
    ]
    series = only(scaling_series(points), "sequence_batch")
    assert [(point.size, point.cp) for point in series.points] == [(4096, 1), (16384, 4)]


def test_an_unknown_size_is_in_no_series() -> None:
    unknown = make_point("b", 4000)
    del unknown.known["gpus"]
    assert scaling_series([make_point("a", 8000), unknown]) == ()


def test_what_failed_has_no_size() -> None:
    assert make_pools("b", 4000, outcome="failed") == ()


def days_of(gpus: int, times: dict[int, float], **fields: Any) -> tuple[ScalingRuns, ...]:
    """A configuration of so many GPUs, with a run on each of the days; the batch grows with the GPUs."""
    contract = {name: Stated(value, "metadata") for name, value in (BASE | {"gpus": gpus, "gbs": 64 * gpus}).items()}
    runs = [
        make_run(
            f"{gpus}{day:03}", "hybridep", ms + day % 3, config=str(gpus), stack=str(gpus), hour=24 * day, **fields
        )
        for day, ms in times.items()
    ]
    return scaling_runs(runs, {str(gpus): contract})


REGRESSED = {day: 20_000.0 if day < 7 else 24_000.0 for day in range(1, 13)}


def test_a_change_of_the_code_is_not_scaling() -> None:
    """16 GPUs became slower on day 7; 32 were measured before: 98 % on the same days, and never 118 %."""
    few, many = days_of(16, REGRESSED), days_of(32, {1: 20_400.0, 2: 20_400.0, 3: 20_400.0})
    (series,) = scaling_series([*few, *many])
    first, second = series.points
    assert first.runs == tuple(f"16{day:03}" for day in range(1, 7))
    assert second.efficiency_pct is not None
    assert second.efficiency_pct.value == pytest.approx(98, abs=0.1)
    assert (first.compared, second.compared, second.changed_at, second.days_apart) == (True, True, (), 0)


def test_sizes_that_never_ran_the_same_code_have_no_efficiency() -> None:
    after = dict.fromkeys(range(7, 13), 24000.0)
    few = days_of(16, {day: REGRESSED[day] for day in (1, 2, 3, 10, 11, 12)})
    between = days_of(32, {5: 20_400.0, 6: 20_400.0})  # the speed changed somewhere in between, on an unknown side
    (series,) = scaling_series([*few, *between])
    assert series.compared == ()
    assert [point.efficiency_pct for point in series.points] == [None, None]
    assert [point.tokens_pct for point in series.points] == [None, None]
    changed = {at.day for point in series.points for at in point.changed_at}
    assert len(changed) == 1
    assert len(scaling_series([*few, *days_of(32, after)])[0].compared) == 2


def test_within_a_change_one_commit_is_the_same_code() -> None:
    few = days_of(16, {day: REGRESSED[day] for day in (1, 2, 3, 10, 11, 12)})
    alike = [*days_of(32, {5: 20_400.0}), *days_of(64, {5: 20_800.0})]
    (series,) = scaling_series([*few, *alike])
    assert [point.size for point in series.compared] == [32, 64]
    assert [point.compared for point in series.points] == [False, True, True]
    assert series.points[0].changed_at


def test_a_change_that_another_size_shows_is_one_for_all() -> None:
    """32 GPUs became slower on day 7, so 16 GPUs of later days are of other code than 64 GPUs of earlier ones."""
    steady = days_of(16, dict.fromkeys(range(8, 13), 20000.0))
    middle = days_of(32, {day: ms * 1.02 for day, ms in REGRESSED.items()})
    large = days_of(64, {1: 20_800.0, 2: 20_800.0, 3: 20_800.0})
    (series,) = scaling_series([*steady, *middle, *large])
    assert [point.size for point in series.compared] == [16, 32]
    assert [len(point.changed_at) for point in series.points] == [0, 0, 1]


def test_runs_far_apart_say_so() -> None:
    few, many = days_of(16, dict.fromkeys(range(1, 7), 20000.0)), days_of(32, {26: 20_400.0, 27: 20_400.0})
    (series,) = scaling_series([*few, *many])
    assert series.points[1].days_apart == pytest.approx(20)


def test_the_largest_number_of_sizes_in_one_kind_of_series_is_counted() -> None:
    def sizes(gpus: int, seq_len: int) -> Sizes:
        return sizes_of(BASE | {"gpus": gpus, "seq_len": seq_len})

    assert most_sizes([sizes(8, 4096)]) == 1
    assert most_sizes([sizes(8, 4096), sizes(16, 4096), sizes(8, 8192), sizes(8, 16384)]) == 3
    assert most_sizes([]) == 0
