import subprocess
from pathlib import Path

import pytest

from app.client.ci import surrounding_job

SLURM = {"SLURM_JOB_ID": "88", "SLURM_JOB_NAME": "moe"}
WHEN = "2026-11-20T09:00:00+00:00"


def git(folder: Path, *words: str) -> str:
    own = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *own, *words],
        check=True, capture_output=True, text=True, timeout=300,
        env={"GIT_COMMITTER_DATE": WHEN, "GIT_AUTHOR_DATE": WHEN, "PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "work")
    (folder / "train.py").write_text("pass\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_clean_checkout_tells_a_slurm_job_its_commit(checkout: Path) -> None:
    job = surrounding_job(SLURM, checkout)
    assert job is not None
    assert (job.branch, job.commit) == ("work", git(checkout, "rev-parse", "HEAD"))
    assert job.commit_time.startswith("2026-11-20T09:00:00")


def test_one_that_was_changed_does_not(checkout: Path) -> None:
    (checkout / "train.py").write_text("other\n")
    job = surrounding_job(SLURM, checkout)
    assert job is not None
    assert (job.branch, job.commit) == ("", "")


def test_git_knows_when_the_commit_of_a_ci_job_was_made(checkout: Path) -> None:
    env = {"JENKINS_URL": "https://ci.example.org", "GIT_COMMIT": git(checkout, "rev-parse", "HEAD")}
    job = surrounding_job(env, checkout)
    assert job is not None
    assert job.commit_time.startswith("2026-11-20T09:00:00")
    other = surrounding_job(env | {"GIT_COMMIT": "0" * 40}, checkout)
    assert other is not None
    assert other.commit_time == ""


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_an_event_that_cannot_be_read_says_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text(content)
    env = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_EVENT_NAME": "push",
        "GITHUB_SHA": "aaaa111",
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
    }
    job = surrounding_job(env, tmp_path)
    assert job is not None
    assert job.commit == "aaaa111"
