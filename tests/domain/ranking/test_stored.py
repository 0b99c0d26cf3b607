"""Standings are stored as JSON by their types, and come back as they were."""

import json

from app.domain.ranking.rank import rank_stack
from app.domain.ranking.standings import StackStandings
from app.storage.json_text import from_json, to_json
from tests.domain.ranking.runs import make_run, make_runs


def test_standings_survive_storage() -> None:
    runs = [
        *make_runs("alltoall", [400, 402]),
        *make_runs("deepep", [340, 341], tflops_per_gpu=250.0),
        make_run("f", None, 0.0, requested="hybridep", missing=("hybridep",), outcome="failed", window=0),
        make_run("g", "alltoall", 390, requested="ncclep", hour=4),
    ]
    standings = rank_stack(runs)
    stored = json.dumps(to_json(standings), allow_nan=False)
    assert from_json(StackStandings, json.loads(stored)) == standings
    assert len(stored) < 40_000
