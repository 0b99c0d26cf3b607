"""The demo's logs match what the generator recorded, and its figures are the published ones."""

import gzip
import json

import numpy as np
import pytest

from app.demo.job import IMPORT_ERRORS, TAG, DemoJob, tflops_per_gpu
from app.demo.story import (
    CI_CENTRE_MS,
    DOUBTFUL_LAUNCHES,
    LONG,
    MAIN,
    MATRIX,
    NIGHTS,
    OVERLAP_MEAN_MS,
    SHORT,
    SUITES,
    UPGRADE_FROM,
    Suite,
    factor,
    render,
    story,
    trials,
)
from app.demo.studies import STUDIES, journey, studies
from app.demo.trace import render_trace
from app.domain.contract.resolve import resolve
from app.domain.documents.metadata import read_metadata
from app.domain.logs import parse_text
from app.domain.profiles.kernels import dispatcher_of
from app.domain.run import ParsedLog
from tests.cases import every_case

JOBS = {job.name: job for job in (*story(), *studies())}
JOBS |= {job.name: job for trial in (*trials(), *journey()) for _, job in trial.jobs}


def parsed(name: str) -> ParsedLog:
    return parse_text(render(JOBS[name]))


def test_profiles_show_that_the_second_container_adds_exposed_communication() -> None:
    profiled = [job for job in story() if job.profile]
    last = f"nightly 2026-09-{NIGHTS}"
    assert [job.name for job in profiled] == [
        "nightly 2026-09-21", "nightly 2026-09-22", *(f"{last}{suite.suffix}" for suite in SUITES),
        "release 2026.09", "release 2026.10",
    ]  # fmt: skip
    before, after = (job.profile for job in profiled[:2])
    assert before is not None
    assert after is not None
    step_ms = [MAIN.centre_ms * factor(MAIN, night) for night in (UPGRADE_FROM - 1, UPGRADE_FROM)]
    exposed = [share.exposed * ms for share, ms in zip((before, after), step_ms, strict=True)]
    assert exposed[1] - exposed[0] == pytest.approx(step_ms[1] - step_ms[0])
    assert after.idle * step_ms[1] == pytest.approx(before.idle * step_ms[0])
    for job in profiled:
        assert job.profile is not None
        names = {event["name"] for event in json.loads(gzip.decompress(render_trace(job, job.profile)))["traceEvents"]}
        assert {dispatcher_of(name) for name in names} == {None, job.workload.dispatcher}


def nights(suite: Suite) -> list[DemoJob]:
    """Its nightly jobs in order, without reruns."""
    month = [job for name, job in JOBS.items() if name.startswith("nightly 2026-09") and "rerun" not in name]
    return [job for job in month if job.name[len("nightly 2026-09-01") :] == suite.suffix]


def test_the_story_is_the_same_each_time() -> None:
    assert [render(job) for job in story()] == [render(job) for job in story()]


def test_names_are_distinct_and_tags_say_generated() -> None:
    jobs = [*story(), *studies(), *(job for trial in (*trials(), *journey()) for _, job in trial.jobs)]
    assert len({job.key for job in jobs}) == len(jobs) == len(JOBS) == 200
    for job in jobs:
        metadata = job.metadata()
        assert metadata["project"] == "demo"
        assert TAG in job.metadata()["tags"]
        assert str(metadata["commit_time"]) <= job.started.isoformat()


def test_a_log_contains_the_recorded_values() -> None:
    with every_case() as case:
        for name, job in JOBS.items():
            with case(name):
                log = parsed(name)
                recorded = job.recording
                assert log.trainer == job.trainer
                assert log.n == recorded.n
                np.testing.assert_array_equal(log.columns["iteration"], np.arange(1, recorded.n + 1))
                if recorded.n == 0:
                    continue
                # One decimal is printed; the second iteration of Megatron-LM is computed from a mean of two.
                np.testing.assert_allclose(log.columns["step_time_true_ms"], recorded.step_time_ms, atol=0.16)
                rate = tflops_per_gpu(1.0, job.workload) / log.columns["step_time_ms"]
                np.testing.assert_allclose(log.columns["tflops_per_gpu"], rate, atol=0.051, rtol=1e-5)
                np.testing.assert_allclose(log.columns["grad_norm"], recorded.grad_norm, atol=0.00051)
                np.testing.assert_allclose(log.columns["lm_loss"][2:], recorded.lm_loss[2:], rtol=1e-6)
                assert max(report.max_allocated_bytes for report in log.memory) == pytest.approx(
                    recorded.max_allocated_bytes, rel=1e-4
                )


@pytest.mark.parametrize(("overlap", "mean_ms"), OVERLAP_MEAN_MS.items())
def test_the_overlap_case_has_its_published_means(overlap: str, mean_ms: float) -> None:
    name = f"overlap smoke, EP overlap {overlap}"
    window = parsed(name).columns["step_time_true_ms"][2:8]
    assert window.mean() == pytest.approx(mean_ms, abs=0.1)
    assert JOBS[name].window == (3, 8)


def test_the_overlap_case_states_its_one_knob() -> None:
    statements = [parsed(f"overlap smoke, EP overlap {overlap}").stated for overlap in OVERLAP_MEAN_MS]
    assert [stated["ep_overlap"].value for stated in statements] == [False, True, True]
    assert [stated["delay_wgrad"].value for stated in statements] == [False, False, True]


def test_the_dispatcher_case_has_its_published_figures() -> None:
    log = parsed("dispatcher smoke, alltoall fallback")
    assert log.n == 5
    assert log.columns["step_time_true_ms"][1:].mean() == pytest.approx(45_650, abs=0.1)
    assert log.columns["tflops_per_gpu"][1:].mean() == pytest.approx(132.9, abs=0.05)
    assert log.columns["lm_loss"][-1] == pytest.approx(11.44050, abs=1e-6)
    assert max(report.max_allocated_bytes for report in log.memory) == pytest.approx(61.351e9, rel=1e-5)


@pytest.mark.parametrize(("backend", "failure"), [("DeepEP", "deepep missing"), ("HybridEP", "hybridep missing")])
def test_a_missing_backend_fails_before_the_first_iteration(backend: str, failure: str) -> None:
    text = render(JOBS[f"dispatcher smoke, {backend}"])
    assert f"[rank0]: {IMPORT_ERRORS[failure]}\n" in text
    assert "iteration " not in text


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.suffix or "main")
def test_each_night_is_as_slow_as_the_story_says(suite: Suite) -> None:
    jobs = nights(suite)
    assert len(jobs) == NIGHTS
    for night, job in enumerate(jobs, start=1):
        median = float(np.median(job.recording.step_time_ms[2:]))
        assert median == pytest.approx(suite.centre_ms * factor(suite, night), rel=0.035)


def test_the_month_begins_at_the_published_level() -> None:
    medians = [float(np.median(job.recording.step_time_ms[2:])) for job in nights(MAIN)[:13]]
    assert float(np.median(medians)) == pytest.approx(CI_CENTRE_MS, rel=0.005)


def test_a_commit_slows_long_sequences_a_later_one_fixes_it_and_short_ones_become_faster() -> None:
    assert [factor(MAIN, night) for night in (13, 14, 17, 18)] == [1, 1.06, 1.06, 1]
    assert [factor(LONG, night) for night in (13, 14, 17, 18)] == [1, 1.06, 1.06, 1]
    assert [factor(SHORT, night) for night in (9, 10, 14)] == [1, 0.94, 0.94]


def test_the_second_container_makes_every_job_slower_and_begins_in_all_on_one_night() -> None:
    for suite in SUITES:
        containers = [job.container for job in nights(suite)]
        assert len(set(containers[: UPGRADE_FROM - 1])) == len(set(containers[UPGRADE_FROM - 1 :])) == 1
        assert containers[0] != containers[-1]
        assert factor(suite, UPGRADE_FROM) / factor(suite, UPGRADE_FROM - 1) > 1.05


def test_jobs_of_one_night_share_a_commit_and_reruns_are_of_it_too() -> None:
    night = [job for name, job in JOBS.items() if name.startswith("nightly 2026-09-28")]
    assert len(night) == len(SUITES) + len(DOUBTFUL_LAUNCHES) - 1
    assert len({(job.commit, job.committed) for job in night}) == 1


def test_enough_other_jobs_ran_to_learn_how_much_launches_vary() -> None:
    before = [job.name for name, job in JOBS.items() if name.startswith("nightly 2026-08")]
    assert len(before) == 3 * len(MATRIX)
    assert len(MATRIX) >= 5


@pytest.mark.parametrize("name", [name for name in JOBS if name.startswith("A/B")])
def test_an_experiment_turns_one_knob(name: str) -> None:
    usual, tried = (parsed(item).stated for item in ("nightly 2026-09-11", name))
    turned = {field for field in usual if usual[field].value != tried[field].value}
    follows = {
        "dispatcher": {"dispatcher_type", "dispatch_sms", "flex_backend"},
        "graph_impl": {"graph_modules", "te_rng"},
    }
    knobs = turned - set().union(*(follows.get(field, set()) for field in turned))
    assert len(knobs) == 1, turned
    assert JOBS[name].purpose == "experiment"


def test_the_out_of_memory_job_trained_for_a_while() -> None:
    log = parsed("micro-batch of 2")
    assert log.n == 14
    assert "OutOfMemoryError" in render(JOBS["micro-batch of 2"])


def test_dispatchers_of_one_layout_need_different_memory() -> None:
    peaks: dict[str, dict[str, float]] = {}
    for job in studies():
        study = job.name.partition(",")[0]
        peaks.setdefault(study, {})[job.workload.dispatcher] = job.recording.max_allocated_bytes
    compared = [study for study in peaks.values() if len(study) > 1]
    assert len(compared) >= 4
    for study in compared:
        assert sorted(study, key=study.__getitem__) == [
            name for name in ("hybridep", "deepep", "alltoall", "allgather") if name in study
        ]


def test_the_studies_have_valid_layouts_and_their_stated_rates() -> None:
    for study in STUDIES:
        for name, (workload, tflops) in study.variants.items():
            of_a_stage = workload.gpus // workload.pipeline_parallel
            assert of_a_stage % workload.expert_parallel == 0, name
            assert workload.global_batch_size % workload.data_parallel == 0, name
            launches = [job for job in study.jobs() if job.workload == workload]
            contract = resolve(parsed(launches[0].name), read_metadata({})).fields
            assert contract["pp_layout"].value is None or not contract["pp_account"].value, name
            median = float(np.median(np.concatenate([job.recording.step_time_ms[2:] for job in launches])))
            assert tflops_per_gpu(median, workload) == pytest.approx(tflops, rel=0.03)
