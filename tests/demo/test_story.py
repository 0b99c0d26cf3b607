"""The demo's logs say what the generator recorded, and its figures are the published ones."""

import numpy as np
import pytest

from app.demo.failures import IMPORT_ERRORS
from app.demo.job import TAG, Job
from app.demo.story import CI_CENTRE_MS, CI_COMMITS, CI_CONTAINERS, CI_SLOWDOWN, OVERLAP_MEAN_MS, render, story
from app.demo.workload import tflops_per_gpu
from app.domain.logs import parse_text
from app.domain.run import ParsedLog

JOBS = {job.name: job for job in story()}


def parsed(name: str) -> ParsedLog:
    return parse_text(render(JOBS[name]))


def nightlies(container: str) -> list[Job]:
    return [job for job in JOBS.values() if job.container == container and job.name.startswith("nightly 2")]


def test_the_story_is_the_same_each_time() -> None:
    assert [render(job) for job in story()] == [render(job) for job in story()]


def test_names_are_distinct_and_tags_say_generated() -> None:
    jobs = list(story())
    assert len({job.key for job in jobs}) == len(jobs) == 38
    for job in jobs:
        metadata = job.metadata()
        assert metadata["project"] == "demo"
        assert TAG in job.metadata()["tags"]  # type: ignore[operator]


@pytest.mark.parametrize("name", JOBS)
def test_a_log_says_what_was_recorded(name: str) -> None:
    job, log = JOBS[name], parsed(name)
    recorded = job.recording
    assert log.trainer == job.trainer
    assert log.n == recorded.n
    np.testing.assert_array_equal(log.columns["iteration"], np.arange(1, recorded.n + 1))
    if recorded.n == 0:
        return
    # One decimal is printed; the second iteration of Megatron-LM is worked out of a mean of two.
    np.testing.assert_allclose(log.columns["step_time_true_ms"], recorded.step_time_ms, atol=0.16)
    np.testing.assert_allclose(log.columns["tflops_per_gpu"], tflops_per_gpu(log.columns["step_time_ms"]), atol=0.051)
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
    asked = [parsed(f"overlap smoke, EP overlap {overlap}").stated for overlap in OVERLAP_MEAN_MS]
    assert [stated["ep_overlap"].value for stated in asked] == [False, True, True]
    assert [stated["delay_wgrad"].value for stated in asked] == [False, False, True]


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
    assert f"[rank0]: {IMPORT_ERRORS[failure]}\n" in text  # type: ignore[index]
    assert "iteration " not in text


def test_the_second_container_is_slower_by_what_the_story_says() -> None:
    medians = [
        np.array([np.median(job.recording.step_time_ms[2:]) for job in nightlies(container)])
        for container in CI_CONTAINERS
    ]
    assert tuple(len(values) for values in medians) == CI_COMMITS
    before, after = (float(np.median(values)) for values in medians)
    assert before == pytest.approx(CI_CENTRE_MS, rel=0.01)
    assert after / before == pytest.approx(CI_SLOWDOWN, rel=0.015)


def test_the_out_of_memory_job_trained_for_a_while() -> None:
    log = parsed("micro-batch of 2")
    assert log.n == 14
    assert "OutOfMemoryError" in render(JOBS["micro-batch of 2"])
