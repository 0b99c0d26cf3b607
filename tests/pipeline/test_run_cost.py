"""How much the database does for one run: an upload of a stack with a history, from its acceptance to its rules."""

from sqlalchemy import Engine, event
from starlette.testclient import TestClient

from app.settings import Settings
from tests.runs.uploading import upload
from tests.training_logs import training_log
from workers import tasks

MOST_STATEMENTS, MOST_COMMITS = 105, 8
META = {"project": "moe", "model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "branch": "main", "purpose": "ci"}


def test_a_run_costs_a_bounded_number_of_statements_and_commits(settings: Settings, client: TestClient) -> None:
    counts = {"before_cursor_execute": 0, "commit": 0}
    listeners = {name: lambda *_, name=name: counts.update({name: counts[name] + 1}) for name in counts}
    for number in range(4):
        if number == 3:  # the first ones have no baseline
            for name, listener in listeners.items():
                event.listen(Engine, name, listener)
        run_id = upload(client, training_log(60 + number), meta=META | {"commit": f"c{number}"}).json()["id"]
        assert tasks.process_run(run_id) == "ready"
    for name, listener in listeners.items():
        event.remove(Engine, name, listener)
    assert counts["before_cursor_execute"] <= MOST_STATEMENTS
    assert counts["commit"] <= MOST_COMMITS
