"""A run's summary becomes facts; what nobody stated stays absent, and what was stated of an unused knob is kept."""

import pytest

from app.domain.contract.resolve import resolve
from app.domain.documents.metadata import read_metadata
from app.domain.logs import parse_text
from app.domain.performance.summary import summarise
from app.domain.rules.derive import derive
from app.domain.rules.engine import evaluate
from app.domain.rules.load import built_in_rules
from app.domain.rules.run_facts import RunReading, facts_of, facts_of_pair, memory_kinds, reading_of
from app.domain.run import LogEvent, MemoryReport, Value
from tests.domain.builders import OVERLAP_CASE, make_log, make_metadata

PLACE: dict[str, Value] = {"gpu": "H100", "cluster": "eos", "container": "nemo:26.06"}


def stated(**meta: object) -> RunReading:
    metadata = read_metadata(meta)
    contract = resolve(parse_text(""), metadata)
    return RunReading(
        contract.fields, unknown=contract.unknown, extra=metadata.extra, launch=metadata.extra.get("launch_args")
    )


def test_what_metadata_state_is_known_and_the_rest_is_not() -> None:
    facts = derive(facts_of(stated(gpus=16, tp=2, pp=1, cp=1, gpu="H100", exposed_comm_frac=0.3)))

    assert (facts["dp"], facts["arch"], facts["exposed_comm_frac"]) == (8, "sm90", 0.3)
    assert "ep" not in facts
    assert "oom" not in facts
    assert "etp_unset" not in facts


def test_a_knob_that_is_not_in_use_is_known_as_it_was_asked_for() -> None:
    by_name = facts_of(stated(dispatcher_type="alltoall", flex_backend="deepep"))
    by_flags = facts_of(stated(launch_args="--moe-token-dispatcher-type alltoall --moe-flex-dispatcher-backend deepep"))

    assert (by_name["flex_backend"], by_name["dispatcher"]) == ("deepep", "alltoall")
    assert (by_flags["flex_backend"], by_flags["dispatcher"]) == ("deepep", "alltoall")


def test_a_log_gives_steps_memory_and_figures() -> None:
    log = make_log([31_310.0] * 20, stated=OVERLAP_CASE, memory=(MemoryReport(3, 0, 2, 62e9, 66e9),))
    facts = facts_of(reading_of(summarise(log, make_metadata(PLACE)), arguments={"nccl_ub": True, "nothing": 1}))

    assert (facts["steps_done"], facts["oom"], facts["fits"], facts["import_error"]) == (20, False, True, None)
    assert facts["step_s"] == pytest.approx(31.31)
    assert (facts["mem_alloc_peak_gb"], facts["mem_reserved_peak_gb"]) == (62.0, 66.0)
    assert facts["nccl_ub"] is True
    assert "exposed_comm_frac" not in facts
    known = derive(facts)
    assert (known["fragmentation_gb"], known["profiled"], known["dp"]) == (4.0, False, 16)
    assert evaluate(facts, built_in_rules()).broken == ()


def test_a_failed_import_and_lack_of_memory_are_facts() -> None:
    missing = make_log([], events=(LogEvent("deepep_missing", 7, "ImportError: DeepEP is not installed"),))
    oom = make_log([31_310.0] * 3, events=(LogEvent("out_of_memory", 9, "CUDA out of memory", rank=3, iteration=4),))

    first = facts_of(reading_of(summarise(missing, make_metadata(PLACE))))
    second = facts_of(reading_of(summarise(oom, make_metadata(PLACE))))

    assert (first["import_error"], first["steps_done"]) == ("deep_ep", 0)
    assert (second["oom"], second["oom_phase"], second["oom_ranks"], second["fits"]) == (True, "warmup", [3], False)


def test_a_pair_is_known_by_what_differs_its_gain_and_its_windows() -> None:
    found = facts_of_pair(["dispatcher"], step_time_pct=25.0, windows=((11, 50), (12, 50)))
    assert found == {
        "compared": True,
        "differs": ["dispatcher"],
        "differs_beside": [],
        "throughput_gain": pytest.approx(-0.2),
        "windows_differ": False,
    }
    assert facts_of_pair([], windows=((1, 10), (8, 40)))["windows_differ"] is True
    allocated, reserved = (memory_kinds({name: 61.2}) for name in ("peak_allocated_gib", "peak_reserved_gib"))
    assert facts_of_pair([], memory=(allocated, reserved))["memory_kinds_differ"] is True
    assert facts_of_pair([], memory=(allocated, allocated | reserved))["memory_kinds_differ"] is False
    assert "memory_kinds_differ" not in facts_of_pair([], memory=(allocated, memory_kinds({})))
    assert facts_of_pair([], windows=(None, (8, 40))) == facts_of_pair([])
