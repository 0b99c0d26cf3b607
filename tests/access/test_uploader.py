"""Who uploaded a run stands with it: the person or the token that did, whatever the metadata state."""

from starlette.testclient import TestClient

from tests.access.people import OURS, Teams
from tests.runs.uploading import upload
from tests.training_logs import training_log
from workers.tasks import process_run

LOG = training_log()


def said(client: TestClient, run: int) -> tuple[str, bool]:
    """By the API, and whether the run's page says so, too."""
    process_run(run)
    name = client.get(f"/api/v1/runs/{run}").json()["uploaded_by"]
    page = client.get(f"/runs/{run}", headers={"Accept": "text/html"}).text
    return name, f"<dt>uploaded by</dt><dd>{name}</dd>" in page


def test_a_person_and_a_token_are_named(teams: Teams) -> None:
    reader = teams.client("viewer")
    stated = {"project": OURS, "uploaded_by": "somebody else", "author": "somebody else"}
    for who, name in (("contributor", "contributor"), ("token:upload", "token token:upload")):
        run = upload(teams.client(who), LOG, meta=stated | {"commit": who[:5] * 8}).json()["id"]
        assert said(reader, run) == (name, True)


def test_a_run_sent_by_the_form_names_the_person(teams: Teams) -> None:
    person = teams.client("contributor")
    answer = person.post("/upload", files={"log": ("a.log", LOG)}, data={"project": OURS}, follow_redirects=False)
    run = int(answer.headers["Location"].rpartition("/")[2])
    assert said(teams.client("viewer"), run) == ("contributor", True)


def test_where_nobody_logs_in_nobody_is_named(client: TestClient) -> None:
    run = upload(client, LOG).json()["id"]
    assert said(client, run)[0] == ""
    assert "<dt>uploaded</dt>" in client.get(f"/runs/{run}").text
