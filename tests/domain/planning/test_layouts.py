"""Layouts worked out by hand: the decision examples that are about layout, and one case for every constraint."""

import pytest

from app.domain.planning.constraints import CONSTRAINTS, judge
from app.domain.planning.layout import Layout
from tests.domain.planning.asked import DEEPSEEK, EXPERTS_64, QWEN_30B, QWEN_235B, broken, plan, request

F09 = EXPERTS_64 | {"tp": 2, "cp": 1, "pp": 2, "ep": 8, "etp": 1}
F05 = DEEPSEEK | {
    "seq_len": 131_072, "tp": 1, "cp": 32, "pp": 8, "vpp": 4, "ep": 32, "etp": 1, "pp_layout": "Et*3|(tt|)*29m|L",
}  # fmt: skip
F06 = QWEN_235B | {"tp": 4, "cp": 4, "pp": 4, "vpp": 12, "ep": 32, "etp": 1}


def test_f09_the_least_gpus_are_of_the_larger_mesh_and_not_of_the_product() -> None:
    given = plan(F09).given
    assert given is not None
    assert (given.layout.min_gpus, given.dp, given.edp, given.local_experts) == (16, 4, 1, 8)
    assert not given.violations
    assert broken(F09, gpus=24) == {"scale-world-identity"}
    assert "scale-gpus-below-min" in broken(F09, gpus=8)


def test_f05_a_long_sequence_on_256_gpus_is_feasible_with_dp_1_and_warned_of() -> None:
    given = plan(F05).given
    assert given is not None
    assert not given.violations  # 32 x 32 x 8 = 8192 is no number of GPUs that anybody needs
    assert (given.dp, given.edp, given.tokens_per_cp_shard, given.layout.vpp) == (1, 1, 4096, 4)
    assert {"scale-dp-floor", "scale-long-container"} <= {note.rule for note in given.notes}
    assert (plan(F05).first_cp, given.layout.min_gpus) == (32, 256)


def test_f06_embedding_and_loss_count_as_layers_where_94_do_not_divide() -> None:
    given = plan(F06, pp_account="embedding,loss").given
    assert given is not None
    assert not given.violations
    assert (given.dp, given.edp, given.tokens_per_cp_tp_shard) == (2, 1, 8192)
    assert "scale-cp-size" not in {note.rule for note in given.notes}
    assert plan(F06).first_cp == 32
    without = Layout(4, 4, 4, 32, 1, 12)
    assert {one.constraint.id for one in judge(request(F06), without)} == {"scale-layers-pp"}


def test_f10_a_dense_model_with_vpp_5() -> None:
    llama = {"model": "Llama3-70B", "num_layers": 80, "num_attention_heads": 64, "num_query_groups": 8, "gpu": "H100"}
    given = plan(llama, gpus=32, seq_len=4096, num_experts="none", tp=4, cp=1, pp=4, vpp=5).given
    assert given is not None
    assert (given.violations, given.dp, given.layout.account, given.layout.pp_layout) == ((), 2, (), None)


def test_f11_f12_small_layouts_hold() -> None:
    assert not broken(QWEN_30B, tp=2, cp=1, pp=2, ep=4, etp=1)
    moonlight = {"model": "Moonlight-16B", "num_layers": 27, "num_attention_heads": 16, "num_experts": 64}
    assert not broken(moonlight, gpu="H100", gpus=8, seq_len=4096, gbs=4, mbs=1, tp=2, cp=1, pp=1, ep=8, etp=1)


def test_f13_both_published_layouts_of_deepseek_are_right() -> None:
    for layout in ("Et|(tt|)*30mL", "Et*3|(tt|)*29m|L"):
        assert not broken(DEEPSEEK, tp=1, cp=1, pp=8, ep=32, etp=1, pp_layout=layout)


def test_f14_a_sequence_that_2_x_cp_does_not_divide() -> None:
    given = plan(QWEN_30B, seq_len=16_380, cp=4, tp=1, pp=1, ep=4).given
    assert given is not None
    (violation,) = given.violations
    assert violation.constraint.id == "scale-cp-divisible"
    assert "16380 tokens are not divisible by 2 x CP = 8" in violation.text


def test_f04_expert_overlap_without_vpp_is_no_violation_of_the_layout() -> None:
    assert not broken(EXPERTS_64, gpus=64, num_experts=128, tp=1, cp=1, pp=4, vpp=1, ep=16, etp=1)


BREAKS = {
    "scale-world-identity": F09 | {"gpus": 24},
    "scale-gpus-below-min": F09 | {"gpus": 8},
    "scale-gbs-divisible": F09 | {"gbs": 6},
    "scale-expert-divisible": F09 | {"ep": 5, "gpus": 80},
    "scale-ep-dense": F09 | {"num_experts": "none"},
    "plan-heads-tp": F09 | {"num_attention_heads": 33},
    "plan-kv-groups-tp": F09 | {"num_query_groups": 3},
    "scale-cp-divisible": F09 | {"cp": 2, "seq_len": 4098, "gpus": 32},
    "plan-sequence-shards": F09 | {"seq_len": 4097},
    "plan-memory": {
        "model": "DeepSeek-V3",
        "gpu": "H100",
        "gpus": 1,
        "seq_len": 4096,
        "tp": 1,
        "cp": 1,
        "pp": 1,
        "ep": 1,
        "etp": 1,
    },
    "scale-layers-pp": F09 | {"num_layers": 33, "pp_account": "none", "vpp": 20},
    "scale-vpp-divisible": F09 | {"vpp": 20},
    "scale-vpp-microbatches": F09 | {"vpp": 2, "gbs": 12},
    "scale-interleave-pp": F09 | {"pp": 1, "vpp": 2},
    "scale-layout-invalid": F09 | {"pp_layout": "Et*31|L"},
    "scale-vpp-sources": F09 | {"pp_layout": "Et*16|t*16L", "vpp": 3},
}


@pytest.mark.parametrize("constraint", [one.id for one in CONSTRAINTS])
def test_each_constraint_is_named_with_its_numbers_and_what_to_do(constraint: str) -> None:
    given = plan(BREAKS[constraint]).given
    assert given is not None
    found = {one.constraint.id: one for one in given.violations}
    assert constraint in found
    assert any(letter.isdigit() for letter in found[constraint].text)
    assert found[constraint].constraint.sources
    assert found[constraint].constraint.todo


def test_numbers_stand_in_the_words() -> None:
    given = plan(F09, gbs=6).given
    assert given is not None
    assert [one.text for one in given.violations] == ["GBS 6 is not a multiple of MBS x DP = 1 x 4 = 4."]
    given = plan(F09, gpus=8).given
    assert given is not None
    assert given.violations[-1].text == (
        "The layout needs PP x max(TP x CP, EP x ETP) = 2 x max(2 x 1, 8 x 1) = 16 GPUs, but there are 8."
    )
