"""Values of the domain come back out of JSON as they went in, also those that an older Threewalls wrote."""

import json
import math
from dataclasses import replace

from app.domain.run import Stated
from app.domain.verdict.assess import assess
from app.domain.verdict.baseline import BaselineRules
from app.domain.verdict.document import VerdictDocument, verdict_document
from app.storage import json_text
from app.storage.json_text import from_json, to_json
from app.storage.runs import stored_contract
from tests.domain.verdict.matching_runs import make_record


def documents() -> list[VerdictDocument]:
    """A verdict with suspects, one without a baseline but with a contrast, one of a run that failed."""
    earlier = [make_record(f"run {i}", {"recompute_modules": ("attn", "moe")}, slower=i % 3 * 0.001) for i in range(5)]
    candidates = [
        make_record(slower=0.1),
        make_record(fields={"container": "new", "recompute_modules": ("attn", "moe")}),
        make_record(outcome="failed"),
    ]
    return [
        verdict_document(
            assess([one], earlier, rules=BaselineRules("main")), (one.run,), {run.run: {} for run in (*earlier, one)}, 1
        )
        for one in candidates
    ]


def test_a_document_comes_back_as_it_went_in() -> None:
    found = documents()
    assert found[1].contrast is not None
    for document in found:
        assert from_json(VerdictDocument, json.loads(json_text.dumps(to_json(document)))) == document


def test_what_an_older_document_lacks_has_its_default_and_what_a_newer_one_adds_is_passed_over() -> None:
    document = documents()[0]
    stored = to_json(document)
    del stored["rests_on"]
    stored["verdict"]["of a later version"] = 1
    assert from_json(VerdictDocument, stored) == document


def test_a_number_that_is_none_comes_back_as_one() -> None:
    document = documents()[0]
    time = document.verdict.step_time
    assert time is not None
    strange = replace(document, verdict=replace(document.verdict, step_time=replace(time, delta_pct=math.nan)))
    back = from_json(VerdictDocument, json.loads(json_text.dumps(to_json(strange))))
    assert back.verdict.step_time is not None
    assert math.isnan(back.verdict.step_time.delta_pct)


def test_a_value_of_version_0_1_has_its_parts() -> None:
    """They were parts of the detail; a value that is stored now is read back as it is."""
    old = {
        "tp": {"value": 4, "source": "arguments", "detail": "line 12: tensor_model_parallel_size = 4", "file": 1},
        "cp_comm": {"value": None, "source": "derived", "detail": "not in use: cp is 1 (stated: p2p)", "file": 0},
        "recompute_layers": {"value": None, "source": "arguments", "detail": "line 3: recompute = 0 (stated: 0)"},
        "cluster": {"value": "west", "source": "metadata", "detail": "stated by mia on 2026-11-23", "file": 0},
    }
    contract = stored_contract(old)
    assert contract == {
        "tp": Stated(4, "arguments", "line 12: tensor_model_parallel_size = 4", file=1, line=12),
        "cp_comm": Stated(None, "derived", "not in use: cp is 1", in_use=False, stated_value="p2p"),
        "recompute_layers": Stated(None, "arguments", "line 3: recompute = 0", line=3, in_use=False, stated_value=0),
        "cluster": Stated("west", "metadata", "stated by mia on 2026-11-23", stated_by="mia"),
    }
    stored = to_json(contract)
    assert stored["tp"].keys() == {"value", "source", "detail", "file", "line"}
    assert stored_contract(stored) == contract
