from pathlib import Path

import pytest

from app.client.ci import CiJob
from app.client.errors import UsageError
from app.client.upload import upload_metadata

JOB = CiJob("X", name="nightly #1", branch="main", commit="aaaa111", commit_time="2026-11-20T09:00:00Z", change="42")


def metadata(*settings: str, job: CiJob | None = JOB, meta: str = "", **stated: str) -> dict[str, object]:
    return upload_metadata(job=job, documents=[meta], settings=settings, stated=stated)


def test_what_is_stated_wins_over_the_file_and_the_file_over_the_job() -> None:
    found = metadata("gpu=H200", meta='{"gpu": "H100", "branch": "release"}', name="mine")
    assert (found["gpu"], found["branch"], found["name"]) == ("H200", "release", "mine")


def test_the_time_of_the_job_s_commit_is_not_that_of_another_one() -> None:
    assert "commit_time" not in metadata("commit=bbbb222")
    assert metadata("commit=bbbb222", "commit_time=2026-11-01T00:00:00Z")["commit_time"] == "2026-11-01T00:00:00Z"
    assert metadata("commit=aaaa111")["commit_time"] == "2026-11-20T09:00:00Z"


def test_tags_of_all_are_kept_once() -> None:
    found = upload_metadata(
        job=JOB, documents=['{"tags": ["a"]}'], settings=["tags=b,a"], stated={}, tags=["c", "change-42"]
    )
    assert found["tags"] == ["change-42", "a", "b", "c"]


def test_a_value_may_be_json_and_a_window_two_numbers() -> None:
    found = metadata("window=41-50", 'recompute_modules=["moe_act"]', "env.NCCL_DEBUG=INFO=x", job=None)
    assert found == {
        "window": {"first": 41, "last": 50},
        "recompute_modules": ["moe_act"],
        "env.NCCL_DEBUG": "INFO=x",
    }


@pytest.mark.parametrize("text", ["gpu", "=H100", "window=[1"])
def test_what_cannot_be_read_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        metadata(text)


@pytest.mark.parametrize("text", ["{", "[1]", "missing.json"])
def test_a_document_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    if text == "[1]":
        (tmp_path / "list.json").write_text(text)
        text = str(tmp_path / "list.json")
    with pytest.raises(UsageError):
        metadata(meta=text)
