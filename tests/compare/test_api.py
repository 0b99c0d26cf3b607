"""`GET /api/v1/compare`: the same answer as the page's, as values; problem documents for what cannot be compared."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.storage.database import transaction
from tests.builders import FIRST_PLACE, make_stack
from tests.compare.runs import make_compared

Make = Callable[..., int]
WEEK = timedelta(days=7)


@pytest.fixture
def make(engine: Engine) -> Make:
    def make(fields: dict[str, Any] | None = None, **columns: Any) -> int:
        with transaction(engine) as session:
            return make_compared(session, fields, **columns)

    return make


def test_a_matched_ab_names_its_knob_and_its_winner(client: TestClient, make: Make) -> None:
    a, b = make(), make({"ep_overlap": True}, step_time_ms=23_800.0, iterations=10)
    found = client.get(f"/api/v1/compare?a={a}&b={b}").json()
    assert (found["kind"], found["attributed_to"], found["winner"]) == ("matched_ab", "ep_overlap", "b")
    (difference,) = found["differences"]["recipe"]
    assert (difference["a"]["value"], difference["a"]["source"]) == (False, "arguments")
    assert (difference["b"]["value"], difference["role"]) == (True, "config")
    time = found["metrics"]["step_time_ms"]
    assert time["ci_low_pct"] < time["delta_pct"] < time["ci_high_pct"] < 0
    assert found["metrics"]["tokens_per_s_per_gpu"]["delta_pct"] > 0
    assert time["decision"] == found["metrics"]["mfu_pct"]["decision"] == "better"
    assert (found["directional"], found["fewest_iterations"]) == (True, [46, 6])
    assert found["loss"]["decision"] == "no_worse"
    assert [(one["side"], one["n"]) for one in found["distributions"]] == [("a", 46), ("b", 6)]
    assert found["test"]["baseline_runs"] == [a]
    assert "task" in found["unknown"]
    assert "model" in found["same"]
    assert found["url"].endswith(f"/compare?a={a}&b={b}")


def test_a_contrast_has_no_winner_and_says_why(client: TestClient, make: Make) -> None:
    a, b = make(), make({"container": "nemo:26.08"}, step_time_ms=40_000.0)
    found = client.get(f"/api/v1/compare?a={a}&b={b}").json()
    assert (found["kind"], found["attributed_to"], found["winner"]) == ("contrast", "container", None)
    assert found["no_winner_because"] == ["`container` differs, but must be equal to name a winner."]
    assert found["metrics"]["step_time_ms"]["decision"] == "differs"


def test_what_is_incomparable_is_not_measured(client: TestClient, make: Make) -> None:
    a, b = make(), make({"container": "nemo:26.08", "gpus": 32})
    found = client.get(f"/api/v1/compare?a={a}&b={b}").json()
    assert (found["kind"], found["test"], found["winner"]) == ("incomparable", None, None)
    assert found["not_measured_because"]
    assert found["metrics"]["step_time_ms"]["baseline"] is not None
    assert found["metrics"]["step_time_ms"]["delta_pct"] is None


def test_a_set_that_is_none_names_its_fields(client: TestClient, make: Make) -> None:
    a, b, other = make(), make(commit="aaaa1111"), make({"ep_overlap": True}, commit="bbbb2222")
    found = client.get(f"/api/v1/compare?a={a}&b={b},{other}").json()
    assert (found["b"]["reruns"], found["b"]["differ_in"]) == (False, ["ep_overlap", "commit"])
    assert found["kind"] == "side_by_side"
    assert found["test"] is None


def test_the_family_sharpens_a_comparison_as_it_does_a_verdict(client: TestClient, make: Make) -> None:
    for config in range(5):
        for k in range(3):
            made = {"tp": config + 2}
            make(made, purpose="ci", step_time_ms=31_300.0 * (1 + 0.001 * k), commit=f"{config}{k}cccc")
    a, b = make(), make({"ep_overlap": True}, step_time_ms=30_000.0)
    found = client.get(f"/api/v1/compare?a={a}&b={b}").json()
    assert found["test"]["learned_from"] == 5
    assert found["winner"] == "b"


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("", 422, "a"),
        ("a=1", 422, "b"),
        ("a=1&b=1", 422, "b"),
        ("a=x&b=1", 422, "a"),
        ("a=1&b=99", 404, None),
        ("a=1&b=2", 409, None),
    ],
)
def test_errors_are_problem_documents(
    client: TestClient, make: Make, query: str, status: int, field: str | None
) -> None:
    make()
    make(status="received")
    answer = client.get(f"/api/v1/compare?{query}")
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert [error["field"] for error in answer.json().get("errors", [])][:1] == ([field] if field else [])


def test_a_run_and_its_baseline_get_the_interval_of_the_verdict(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for number in range(6):  # six configurations of the family, from which the variation is learned
            times = [20_000.0, 20_120.0, 19_950.0 + 20 * number, 20_060.0]
            make_stack(session, times, fields={"dispatch_sms": 8 + number}, judged=False)
        runs = make_stack(session, [20_000.0, 20_100.0, 19_950.0, 20_050.0, 20_900.0], started=FIRST_PLACE + WEEK)
    verdict = client.get(f"/api/v1/runs/{runs[-1]}/verdict").json()
    baseline = ",".join(str(run) for run in runs[:-1])
    found = client.get(f"/api/v1/compare?a={baseline}&b={runs[-1]}").json()
    sides = (verdict["metrics"]["step_time_ms"], found["metrics"]["step_time_ms"])
    assert sides[0]["ci_low_pct"] is not None
    for name in ("delta_pct", "ci_low_pct", "ci_high_pct"):
        assert sides[0][name] == pytest.approx(sides[1][name])
