"""Profiles through the API: attach, read, facts, confirm, remove, compare."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Engine, event, text, update
from sqlmodel import col
from starlette.testclient import TestClient

from app.pipeline.profiles import read_profile_of_run
from app.settings import Settings
from app.storage.database import alembic_config, read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.rules import read_run
from app.storage.tables import ProfileRow, select_any
from tests.cases import every_case
from tests.domain.profiles.traces import corpus, differences, expected
from tests.profiles.attaching import attach, attached, make_run, trace
from tests.runs.uploading import assert_problem
from workers.tasks import process_profile


def facts_of(engine: Engine, run_id: int) -> Mapping[str, object]:
    """Return the input of the rules."""
    with read_session(engine) as session:
        return read_run(session, run_id).facts


def test_a_profile_has_the_figures_of_its_sidecar(client: TestClient) -> None:
    profile = attached(client, make_run(client), trace("ddp-a100-ns"))
    assert profile["status"] == "ready"
    assert differences(expected("ddp-a100-ns")["expected"], profile["document"]["files"][0]) == []


def test_the_same_files_twice_are_one_profile(client: TestClient) -> None:
    run_id = make_run(client)
    first = attach(client, run_id, trace("ddp-a100-ns"))
    again = attach(client, run_id, trace("ddp-a100-ns"))
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json() | {"created": False}


def test_the_facts_of_a_profile_are_facts_of_its_run_until_it_is_removed(client: TestClient, engine: Engine) -> None:
    run_id = make_run(client, exposed_comm_frac=0.5)
    assert facts_of(engine, run_id)["exposed_comm_frac"] == 0.5
    profile = attached(client, run_id, trace("synthetic/seed-11/moe-deepep-rel_ns"))
    client.post(f"/api/v1/runs/{run_id}/profiles/{profile['id']}/confirm", json={"author": "kim"})
    facts = facts_of(engine, run_id)
    assert facts["exposed_comm_frac"] == 0.064626
    assert facts["resolved_dispatcher"] == "deepep"
    assert client.delete(f"/api/v1/runs/{run_id}/profiles/{profile['id']}?author=kim").status_code == 204
    assert facts_of(engine, run_id)["exposed_comm_frac"] == 0.5
    assert client.get(f"/api/v1/runs/{run_id}/profiles").json() == {"items": []}


SPLIT = ("exposed_collective_frac", "exposed_p2p_frac", "exposed_ep_frac")


def test_an_upgrade_splits_the_exposed_communication_of_earlier_profiles(client: TestClient, engine: Engine) -> None:
    run_id = make_run(client)
    read = {
        attached(client, run_id, trace(name))["id"] for name in ("ddp-a100-ns", "synthetic/seed-11/moe-deepep-rel_ns")
    }
    now = _facts_by_profile(engine)
    before = {number: {k: v for k, v in facts.items() if k not in SPLIT} for number, facts in now.items()}
    command.downgrade(alembic_config(engine), "0084")
    with transaction(engine) as session:
        for number, facts in before.items():
            session.execute(update(ProfileRow).where(col(ProfileRow.id) == number).values(facts=facts))
    command.upgrade(alembic_config(engine), "head")
    upgraded = _facts_by_profile(engine)
    assert read == upgraded.keys()
    for number, facts in upgraded.items():
        assert {name: facts[name] for name in SPLIT} == {
            name: share if share is None else pytest.approx(share, abs=0.01)
            for name, share in now[number].items()
            if name in SPLIT
        }
        assert {k: v for k, v in facts.items() if k not in SPLIT} == before[number]


def _facts_by_profile(engine: Engine) -> dict[int, dict[str, Any]]:
    with read_session(engine) as session:
        return {row.id: row.facts for row in session.execute(select_any(ProfileRow.id, ProfileRow.facts))}


@pytest.mark.parametrize(("gpu", "counts"), [("MI355X", False), ("A100", True)])
def test_a_profile_of_nsight_systems_is_not_of_an_amd_gpu(client: TestClient, gpu: str, counts: bool) -> None:
    data = (corpus() / "nsys-sp2-after.sqlite.gz").read_bytes()
    profile = attached(client, make_run(client, gpu=gpu), data, name="after.sqlite.gz")
    assert (profile["counts"], profile["differs"] == []) == (counts, counts)


def test_a_profile_of_another_job_counts_only_once_it_is_confirmed(client: TestClient, engine: Engine) -> None:
    run_id = make_run(client, gpu="B200")
    profile = attached(client, run_id, trace("ddp-a100-ns"))
    assert not profile["counts"]
    assert any("A100" in difference for difference in profile["differs"])
    assert "gpu_idle_frac" not in facts_of(engine, run_id)
    confirmed = client.post(f"/api/v1/runs/{run_id}/profiles/{profile['id']}/confirm", json={"author": "kim"}).json()
    assert (confirmed["counts"], confirmed["confirmed_by"]) == (True, "kim")
    assert facts_of(engine, run_id)["gpu_idle_frac"] == 0.775521


def test_several_ranks_are_one_profile(client: TestClient) -> None:
    ranks = [trace(f"synthetic/seed-11/ranks-{rank}") for rank in range(4)]
    profile = attached(client, make_run(client), *ranks)
    assert profile["document"]["ranks"]["straggler_rank"] == 2
    assert profile["facts"]["straggler_rank"] == 2


def test_stated_ranks_count_over_those_of_names(client: TestClient) -> None:
    export = (corpus() / "bad" / "array.json").read_bytes()
    profile = attached(client, make_run(client), export, rank=[3])
    file = profile["document"]["files"][0]
    assert (file["rank"], file["rank_from"]) == (3, "stated")


def test_a_broken_file_fails_with_its_cause(client: TestClient) -> None:
    profile = attached(client, make_run(client), (corpus() / "bad" / "two-ranks-interleaved.json").read_bytes())
    assert profile["status"] == "failed"
    assert "Two ranks" in profile["error"]
    assert profile["document"] is None


def test_no_bad_file_leaves_a_profile_unsettled(client: TestClient) -> None:
    run_id = make_run(client)
    with every_case() as case:
        for path in sorted((corpus() / "bad").iterdir()):
            with case(path.name):
                answer = attach(client, run_id, path.read_bytes(), name=path.name)
                if not path.stat().st_size:
                    assert_problem(answer, 422, "is empty")
                    continue
                process_profile(answer.json()["id"])
                settled = client.get(f"/api/v1/profiles/{answer.json()['id']}").json()
                assert settled["status"] in ("ready", "failed")


def test_the_files_are_dropped_once_they_are_read(client: TestClient, engine: Engine, settings: Settings) -> None:
    run_id = make_run(client)
    before = sorted(path for path in (settings.data_dir / "artifacts").rglob("*") if path.is_file())
    attached(client, run_id, trace("ddp-a100-ns"))
    assert sorted(path for path in (settings.data_dir / "artifacts").rglob("*") if path.is_file()) == before
    with read_session(engine) as session:
        assert session.execute(text("SELECT object_key FROM profile_file")).scalars().all() == [""]


def test_two_profiles_explain_their_difference(client: TestClient) -> None:
    run_id = make_run(client)
    sides = [attached(client, run_id, trace(f"synthetic/seed-11/pair-{side}"))["id"] for side in ("before", "after")]
    answer = client.get(f"/api/v1/compare/profiles?a={sides[0]}&b={sides[1]}").json()
    assert sum(row["difference_ms"] for row in answer["rows"]) == pytest.approx(answer["difference_ms"], abs=1e-4)
    assert answer["rows"][0]["label"] in answer["sentence"]
    assert (answer["rows"][0]["row"], answer["anchor"]) == ("comm.ep", "")


def test_wrong_requests_are_explained(client: TestClient) -> None:
    run_id = make_run(client)
    assert_problem(attach(client, run_id), 422, "no file")
    assert_problem(attach(client, run_id, trace("ddp-a100-ns"), rank=["x"]), 422, field="rank")
    assert_problem(attach(client, run_id, trace("ddp-a100-ns"), rank=[1, 2]), 422, field="rank")
    assert_problem(attach(client, 999_999, trace("ddp-a100-ns")), 404)
    assert_problem(client.get("/api/v1/profiles/999999"), 404)


def test_a_kept_trace_is_downloaded_as_it_was_sent(
    client: TestClient, engine: Engine, log_files: LogFiles, settings: Settings
) -> None:
    data, export = trace("ddp-a100-ns"), (corpus() / "synthetic/seed-11/nsys-ranges.sqlite.gz").read_bytes()
    run_id = make_run(client)
    dropped = attached(client, run_id, trace("ddp-v100-buckets"))
    assert dropped["files"][0]["url"] is None
    assert_problem(client.get(f"/api/v1/profiles/{dropped['id']}/files/0"), 404)
    keeping = settings.model_copy(update={"keep_profiles": True})
    files = []
    for sent in (data, export):
        number = attach(client, run_id, sent).json()["id"]
        read_profile_of_run(engine, log_files, keeping, number)
        files.append(client.get(f"/api/v1/profiles/{number}").json()["files"][0])
    answer = client.get(files[0]["url"].partition("testserver")[2])
    assert answer.content == data
    assert "attachment" in answer.headers["content-disposition"]
    assert files[1]["url"] is None, "an export holds the environment of its job"


def test_progress_is_written_while_a_profile_is_read(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.pipeline.profiles._PROGRESS_SECONDS", 0)
    run_id, shares = make_run(client), []

    def note(_: object, __: object, sql: str, parameters: Sequence[Any], *more: object) -> None:
        if sql.startswith("UPDATE profile SET progress=?"):
            shares.append(parameters[0])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        profile = attached(client, run_id, trace("ddp-a100-ns"), trace("ddp-v100-buckets"))
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert profile["progress"] == 1
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 0.9
