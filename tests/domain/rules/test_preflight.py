"""Facts of the preflight checks, and the checks on jobs that ran: what went past a check was not stopped by it."""

from pathlib import Path

import pytest

from app.domain.documents.metadata import read_metadata
from app.domain.logs import parse_log
from app.domain.performance.summary import summarise
from app.domain.rules.derive import derive
from app.domain.rules.engine import Evaluation, evaluate
from app.domain.rules.load import built_in_rules
from app.domain.rules.run_facts import facts_of, reading_of
from tests.shared_papers import shared_folder

UNSET = {"pp_layout": None, "first_stage_layers": None, "last_stage_layers": None, "hybrid_layer_pattern": None}
LAYOUT = "Et*3|(tt|)*29m|L"


@pytest.mark.parametrize(
    ("facts", "name", "value"),
    [
        ({"num_layers": 94, "pp_account": ["embedding", "loss"]}, "split_layers", 96),
        ({"num_layers": 94, "pp_account": None}, "split_layers", 94),
        ({"num_layers": 94}, "split_layers", None),
        (UNSET, "even_split", True),
        ({**UNSET, "last_stage_layers": 7}, "even_split", False),
        ({**UNSET, "hybrid_layer_pattern": "M*|M*"}, "even_split", False),
        ({**UNSET, "hybrid_layer_pattern": "M*M*"}, "even_split", True),
        ({"pp_layout": LAYOUT}, "even_split", False),
        ({"pp_layout": None}, "even_split", None),
        ({"pp_layout": LAYOUT, "pp": 8, "num_layers": 61, "mtp": 1}, "layout_problem", ""),
        ({"pp_layout": LAYOUT, "pp": 8, "num_layers": 61, "mtp": 1}, "vpp_or_1", 4),
        ({"pp_layout": LAYOUT, "pp": 8}, "layout_problem", None),
        ({"pp_layout": LAYOUT, "pp": 5}, "layout_problem", "has 32 stages, not divisible by pp = 5"),
        ({"pp_layout": None}, "layout_problem", ""),
        ({"pp": 4, "vpp": None}, "vpp_or_1", 1),
        ({"microbatch_group_size": None, "pp": 4}, "microbatch_group", 4),
        ({"microbatch_group_size": 8, "pp": 4}, "microbatch_group", 8),
        ({"pp": 4}, "microbatch_group", None),
        ({"hcp_sizes": [2, 4]}, "hcp_product", 8),
        ({"hcp_sizes": None}, "hcp_product", 0),
        ({"num_query_groups": 4, "num_attention_heads": 32}, "kv_heads", 4),
        ({"num_query_groups": None, "num_attention_heads": 32}, "kv_heads", 32),
        ({"num_attention_heads": 32}, "kv_heads", None),
        ({"model": "DeepSeek-V3"}, "kv_heads", 128),
        ({"capacity": -1.0}, "capacity_on", False),
        ({"capacity": None}, "capacity_on", False),
        ({"capacity": 1.25}, "capacity_on", True),
        ({"num_experts": None}, "ep", 1),
        ({"num_experts": None, "ep": 4}, "ep", 4),
        ({"nan_checks": False}, "check_for_nan_in_loss", False),
        ({"framework": "megatron_lm", "seq_len": 4096}, "dataset_seq_len", 4096),
        ({"framework": "megatron_bridge", "seq_len": 4096}, "dataset_seq_len", None),
        ({"task": "pretrain"}, "offline_packing", False),
        ({"task": "pretrain"}, "in_batch_packing", None),
        ({"task": "pretrain", "framework": "megatron_lm"}, "in_batch_packing", False),
    ],
)
def test_a_fact_follows_or_stays_unknown(facts: dict[str, object], name: str, value: object) -> None:
    assert derive(facts).get(name) == value


def _told(path: Path) -> Evaluation:
    log = parse_log([path.read_bytes()])
    return evaluate(facts_of(reading_of(summarise(log, read_metadata({})), arguments=log.arguments)), built_in_rules())


def test_no_check_stops_a_real_job_that_ran() -> None:
    logs = shared_folder("corpus") / "logs"
    found = {
        path.name: _told(path)
        for folder in ("real-full", "real-excerpts")
        for path in sorted((logs / folder).iterdir())
        if path.suffix in (".log", ".txt", ".out")
    }
    ran = {name: one for name, one in found.items() if one.facts.get("steps_done")}

    assert len(ran) > 10
    assert {name: [b.rule.id for b in one.blockers] for name, one in ran.items() if one.blockers} == {}
    assert {name: one.broken for name, one in found.items() if one.broken} == {}
