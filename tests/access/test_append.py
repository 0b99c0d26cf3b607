"""Who may change a run of which no more was to come: not whoever may only upload."""

from starlette.testclient import TestClient

from tests.access.people import Teams
from tests.runs.uploading import assert_problem, upload
from tests.training_logs import training_log

LOG = training_log()
MORE = b"hello there\n"


def append(client: TestClient, run: int, piece: bytes, **params: str | int) -> tuple[int, str]:
    answer = client.post(f"/api/v1/runs/{run}/logs", params=params, content=piece)
    return answer.status_code, answer.text


def test_a_token_that_only_uploads_changes_no_finished_run(teams: Teams) -> None:
    job, reader = teams.client("token:upload"), teams.client("viewer")
    run = upload(job, LOG).json()["id"]
    before = reader.get(f"/api/v1/runs/{run}").json()
    for params, piece in (
        ({"name": "evil.log"}, MORE),
        ({"offset": len(LOG)}, MORE),
        ({"complete": "false"}, b""),
        ({"complete": "false"}, LOG),
    ):
        answer = job.post(f"/api/v1/runs/{run}/logs", params=params, content=piece)
        assert_problem(answer, 403, "finished run", "needs triage", "Nothing was kept")
    assert reader.get(f"/api/v1/runs/{run}").json() == before
    assert append(job, run, LOG)[0] == 200  # what is there already may be sent again: its answer was lost
    assert reader.get(f"/api/v1/runs/{run}").json() == before


def test_it_brings_all_of_a_run_that_it_began(teams: Teams) -> None:
    job = teams.client("token:upload")
    begun = upload(job, LOG, meta={"complete": False}).json()["id"]
    assert append(job, begun, MORE, offset=len(LOG))[0] == 200
    assert append(job, begun, b"", complete="true")[0] == 200
    assert append(job, begun, b"", complete="true")[0] == 200
    assert append(job, begun, MORE, offset=len(LOG) + len(MORE))[0] == 403


def test_who_contributes_adds_to_finished_runs(teams: Teams) -> None:
    run = upload(teams.client("token:upload"), LOG).json()["id"]
    for number, who in enumerate(("contributor", "token:all")):
        assert append(teams.client(who), run, MORE, name=f"late-{number}.log")[0] == 200
