"""The table of comparability, and properties of every pair of runs."""

from types import EllipsisType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.domain.contract.derive import switch_off_unused
from app.domain.contract.fields import CONFIG_FIELDS, FIELDS, PREFIX, STACK_FIELDS
from app.domain.run import Value
from app.domain.verdict.assess import assess
from app.domain.verdict.comparability import FOLLOWS, compare_contracts, suspect_reason
from app.domain.verdict.record import RunRecord
from tests.domain.verdict.matching_runs import CONTRACT, SAMPLES, make_record, stated

Fields = dict[str, Value | EllipsisType]
CASES = [
    ({}, "verdict", (), None),
    ({"ep_overlap": False}, "matched_ab", ("ep_overlap",), "ep_overlap"),
    ({"env.NCCL_NVLS_ENABLE": "0"}, "matched_ab", ("env.NCCL_NVLS_ENABLE",), "env.NCCL_NVLS_ENABLE"),
    ({"ep_overlap": False, "tp": 4}, "side_by_side", ("tp", "ep_overlap"), None),
    ({"container": "train:2026.10"}, "contrast", ("container",), "container"),
    ({"routing_mode": "forced-balance"}, "contrast", ("routing_mode",), "routing_mode"),
    ({"container": "train:2026.10", "tp": 4}, "contrast", ("container", "tp"), None),
    ({"container": "train:2026.10", "gpus": 16}, "incomparable", ("gpus", "container"), None),
    ({"num_layers": 24}, "contrast", ("model",), "model"),
    ({"te_version": "2.9"}, "verdict", (), None),
    ({"model": "QWEN3-30b-a3b"}, "verdict", (), None),
]


@pytest.mark.parametrize(("fields", "kind", "differ", "attributed"), CASES)
def test_what_differs_decides_what_two_runs_are_good_for(
    fields: Fields, kind: str, differ: tuple[str, ...], attributed: str | None
) -> None:
    comparison = compare_contracts(make_record("a", commit="c"), make_record("b", fields, commit="c"))
    assert comparison.kind == kind
    assert tuple(difference.field for difference in (*comparison.stack, *comparison.knobs)) == differ
    assert comparison.attributed_to == attributed
    assert not comparison.provisional


FOLLOWING_CASES = [
    # HybridEP has an SM count, alltoall has none: that is one knob.
    ({"dispatcher": "alltoall", "dispatch_sms": None}, {"dispatcher": "hybridep", "dispatch_sms": 32}, "dispatcher"),
    ({"tp": 1, "sp": None, "tp_overlap": None}, {"tp": 2, "sp": True, "tp_overlap": False}, "tp"),
    (
        {"opt_offload": False, "opt_offload_fraction": None},
        {"opt_offload": True, "opt_offload_fraction": 1},
        "opt_offload",
    ),
    # Two dispatchers with an SM count each: somebody chose both.
    ({"dispatcher": "deepep", "dispatch_sms": 20}, {"dispatcher": "hybridep", "dispatch_sms": 32}, None),
    ({"dispatch_sms": None}, {"dispatch_sms": 32}, "dispatch_sms"),
]


@pytest.mark.parametrize(("a", "b", "attributed"), FOLLOWING_CASES)
def test_a_knob_without_meaning_on_one_side_follows_the_one_that_differs(
    a: Fields, b: Fields, attributed: str | None
) -> None:
    comparison = compare_contracts(make_record("a", a), make_record("b", b))
    assert (comparison.kind, comparison.attributed_to) == ("matched_ab" if attributed else "side_by_side", attributed)


def test_graphs_that_are_switched_on_are_one_contrast_with_all_that_belongs_to_them() -> None:
    off: Fields = {"graph_impl": "none", "graph_modules": None, "graph_warmup": None}
    comparison = compare_contracts(make_record("a", off), make_record("b", {"graph_impl": "transformer_engine"}))
    assert (comparison.kind, comparison.attributed_to) == ("contrast", "graph_impl")
    assert [difference.field for difference in comparison.following] == ["graph_modules", "graph_warmup"]
    assert "2 dependent settings" in suspect_reason(1, comparison)


OFF: dict[str, Value] = {
    "dispatcher": "alltoall",
    "tp": 1,
    "cp": 1,
    "pp": 1,
    "recompute_granularity": "none",
    "graph_impl": "none",
    "precision": "bf16",
    "opt_offload": False,
    "act_offload": False,
    "manual_gc": False,
}


@pytest.mark.parametrize("field", sorted(set(FOLLOWS) - {"etp"}))
def test_what_follows_a_knob_is_what_that_knob_switches_off(field: str) -> None:
    contract = switch_off_unused(stated(CONTRACT | {FOLLOWS[field]: OFF[FOLLOWS[field]]}))
    assert contract[field].value is None


UNKNOWN_CASES = [
    # Unknown on both sides: the keys are equal, but the runs may differ.
    ({"container": ...}, {"container": ...}, "verdict", ("container",)),
    ({"ep_overlap": ...}, {"ep_overlap": ...}, "verdict", ("ep_overlap",)),
    # Unknown on one side: the keys differ, but the runs may be equal.
    ({}, {"container": ...}, "incomparable", ("container",)),
    ({"gpus": ...}, {"container": "other"}, "incomparable", ("gpus",)),
    ({}, {"ep_overlap": ...}, "side_by_side", ("ep_overlap",)),
    ({}, {"cluster": ..., "ep_overlap": ...}, "incomparable", ("cluster", "ep_overlap")),
    ({}, {"env.NCCL_NVLS_ENABLE": ..., "env.USE_MNNVL": ...}, "side_by_side", ("env",)),
    # What a headline names comes first, so that the first options of a hint state it.
    ({}, {"gpu": ..., "task": ..., "gbs": ...}, "incomparable", ("gpu", "task", "gbs")),
]


@pytest.mark.parametrize(("a", "b", "kind", "supply"), UNKNOWN_CASES)
def test_unstated_values_are_never_silently_equal(a: Fields, b: Fields, kind: str, supply: tuple[str, ...]) -> None:
    comparison = compare_contracts(make_record("a", a), make_record("b", b))
    assert (comparison.kind, comparison.provisional, comparison.unknown) == (kind, True, supply)
    assert comparison.attributed_to is None


def test_an_environment_that_neither_run_shows_makes_nothing_provisional() -> None:
    silent: Fields = {name: ... for name in CONTRACT if name.startswith(PREFIX)}
    comparison = compare_contracts(make_record("a", silent), make_record("b", silent))
    assert (comparison.kind, comparison.provisional, comparison.unknown) == ("verdict", False, ())


def test_other_projects_are_other_stacks() -> None:
    comparison = compare_contracts(make_record("a"), make_record("b", project="other"))
    assert (comparison.kind, [difference.field for difference in comparison.stack]) == ("contrast", ["project"])


def test_differences_are_grouped_by_axis_and_versions_are_outside_the_keys() -> None:
    a = make_record("a", {"nccl_version": "2.27", "driver": "570"}, commit="aaaa")
    b = make_record(
        "b", {"nccl_version": "2.28", "driver": "580", "container": "new", "tp": 4, "seq_len": 16}, commit="b"
    )
    groups = {
        axis: [difference.field for difference in differences]
        for axis, differences in compare_contracts(a, b).by_axis().items()
    }
    assert groups == {
        "workload": ["seq_len"],
        "container": ["container", "nccl_version"],
        "recipe": ["tp"],
        "code": ["commit"],
        "place": ["driver"],
    }


@pytest.mark.parametrize(("a", "b"), [("", "0f3c2a9d"), ("0f3c2a9d", "0f3c2a9dffff"), ("same", "same")])
def test_a_commit_that_is_unknown_or_shortened_is_not_a_difference(a: str, b: str) -> None:
    assert compare_contracts(make_record("a", commit=a), make_record("b", commit=b)).beside == ()


def test_forced_balance_against_natural_routing_is_named() -> None:
    forced = make_record("b", {"routing_mode": "forced-balance"})
    assert compare_contracts(make_record("a"), forced).one_is_benchmark_only
    assert not compare_contracts(forced, forced).one_is_benchmark_only


MEMBERS = (*STACK_FIELDS, *CONFIG_FIELDS)
OTHER: dict[str, Value] = {
    name: "another" if isinstance(SAMPLES[FIELDS[name].kind], str) else None for name in (*MEMBERS, "num_layers")
}


@st.composite
def records(draw: st.DrawFn, run: str) -> RunRecord:
    """A run in which up to four fields are changed or unknown."""
    names = draw(st.lists(st.sampled_from((*STACK_FIELDS, *STACK_FIELDS, *MEMBERS, "num_layers")), max_size=4))
    fields: Fields = {name: draw(st.sampled_from([OTHER[name], ...])) for name in names}
    return make_record(run, fields, project=draw(st.sampled_from(["moe", "moe", "MoE", "other"])))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the first draw imports much
@given(records("a"), records("b"))
def test_the_order_of_the_two_runs_changes_nothing_but_the_sides(a: RunRecord, b: RunRecord) -> None:
    there, back = compare_contracts(a, b), compare_contracts(b, a)
    assert (there.kind, there.provisional, there.unknown, there.attributed_to) == (
        back.kind,
        back.provisional,
        back.unknown,
        back.attributed_to,
    )
    assert there.differences == tuple(difference.turned() for difference in back.differences)


@given(records("a"), records("b"))
@settings(deadline=None)
def test_there_is_never_a_verdict_across_keys(a: RunRecord, b: RunRecord) -> None:
    comparison = compare_contracts(a, b)
    if a.stack_key != b.stack_key:
        assert comparison.kind in ("contrast", "incomparable")
    if a.config_key != b.config_key:
        assert comparison.kind != "verdict"


@given(records("a"), records("b"))
@settings(deadline=None)
def test_the_members_that_differ_are_those_by_which_the_keys_differ(a: RunRecord, b: RunRecord) -> None:
    comparison = compare_contracts(a, b)
    if a.stack_key == b.stack_key:
        assert [difference.field for difference in comparison.stack] in (
            [],
            ["model"],
        )  # the model's shape is in no key
    else:
        assert comparison.stack
    if a.stack_key == b.stack_key and not comparison.stack:
        assert bool(comparison.knobs) == (a.config_key != b.config_key)


@given(records("a"), records("b"))
@settings(deadline=None)
def test_nothing_is_attributed_to_a_field_that_is_unknown_on_a_side(a: RunRecord, b: RunRecord) -> None:
    comparison = compare_contracts(a, b)
    uncertain = [difference for difference in (*comparison.stack, *comparison.knobs) if not difference.is_certain]
    assert {difference.to_supply for difference in uncertain} <= set(comparison.unknown)
    if uncertain:
        assert comparison.provisional
        assert comparison.attributed_to is None


@given(records("a"))
@settings(deadline=None)
def test_a_run_is_comparable_with_itself(a: RunRecord) -> None:
    assert compare_contracts(a, a).kind == "verdict"


def test_a_matched_ab_over_other_software_is_provisional() -> None:
    usual = make_record("usual", {"te_version": "2.5"}, commit="c")
    same, other, code = (
        compare_contracts(usual, make_record("knob", {"tp": 4, "te_version": version}, commit=commit))
        for version, commit in (("2.5", "c"), ("2.6", "c"), ("2.5", "d"))
    )
    assert code.provisional
    assert (same.kind, same.provisional, same.other_software) == ("matched_ab", False, ())
    assert (other.kind, other.provisional) == ("matched_ab", True)
    assert [difference.field for difference in other.other_software] == ["te_version"]


# --- Which of several single-field contrasts is measured if there is no baseline.


CONTAINER = make_record("old container", {"container": "train:2026.08"})


@pytest.mark.parametrize("other", [{"seq_len": 8192}, {"model": "Mixtral-8x7B"}, {"data_mode": "mock"}])
def test_an_upgrade_comes_before_another_workload_however_new(other: dict[str, str]) -> None:
    assessment = assess([make_record()], [CONTAINER, make_record("newer", other)])
    assert assessment.contrast is not None
    assert assessment.contrast.comparability.attributed_to == "container"
