"""What a dump says by leaving a field out, and what it does not say when it was cut."""

import pytest

from app.domain.contract.derive import DEFAULTS, MOE_FIELDS, WITHOUT_DEFAULT
from app.domain.contract.fields import CONFIG_FIELDS, FIELDS, PREFIX, STACK_FIELDS
from app.domain.contract.values import read_value
from app.domain.logs import parse_text
from app.domain.performance.summary import summarise
from app.domain.run import Problem
from tests.cases import every_case
from tests.domain.builders import make_log, make_metadata

CUT = Problem("unfinished dump", "This configuration dump has no end.", 7)
ARGUMENTS = {
    "expert_model_parallel_size": "8",
    "hidden_size": "2048",
    "moe_router_topk": "8",
    "num_attention_heads": "32",
    "num_experts": "128",
    "num_layers": "48",
    "pipeline_model_parallel_size": "4",
    "tensor_model_parallel_size": "2",
    "world_size": "64",
}
START, END = "------- arguments -------\n", "------- end of arguments -------\n"
SUMMARY = """\
------------------------------------------------------------
Configuration Summary (Non-Default Values vs Mcore)
======================================================================
[model] Non-default values (vs Mcore TransformerConfig):
  hidden_size: 2048  (Mcore default: 0)
  num_layers: 48  (Mcore default: 0)
  num_moe_experts: 128  (Mcore default: None)
[train]:
  global_batch_size: 512
======================================================================
"""
LINES = "".join(
    f" iteration {i:8d}/      10 | elapsed time per iteration (ms): 100.0 | global batch size: 8 | lm loss: 1.0 |\n"
    for i in range(1, 11)
)


def dump(upto: str) -> str:
    """Megatron-LM's block, printed up to the argument `upto`."""
    names = list(ARGUMENTS)
    shown = names[: names.index(upto) + 1]
    return START + "".join(f"  {name} {'.' * (47 - len(name))} {ARGUMENTS[name]}\n" for name in shown)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (dump("world_size") + END, True),
        (dump("world_size"), True),  # only the line that ends it is missing
        (dump("tensor_model_parallel_size"), False),
        (dump("hidden_size"), False),
        (dump("world_size") + END + dump("hidden_size"), True),  # the dump of a restart was cut, that of the start not
        (SUMMARY, True),
        (SUMMARY.partition("  num_moe")[0], False),
    ],
)
def test_only_a_dump_with_an_end_has_defaults(text: str, known: bool) -> None:
    summary = summarise(parse_text(text + LINES), make_metadata())
    assert ("attention" in summary.contract) is known
    assert ("routing_mode" in summary.contract) is known
    assert ("routing_mode" in summary.unknown) is not known
    experts = summary.contract.get("num_experts")
    assert experts is None or experts.value == 128
    assert not str(summary.contract["model"].value if "model" in summary.contract else "").endswith("dense")
    assert summary.provisional


def test_a_finished_section_of_a_cut_summary_keeps_its_defaults() -> None:
    stated = parse_text(SUMMARY.partition("  global_batch")[0] + LINES).stated
    assert stated["num_experts"].value == 128
    assert (stated["attention"].value, stated["attention"].source) == ("auto", "default")


@pytest.mark.parametrize(("problems", "known"), [((), True), ((CUT,), False)])
def test_the_readers_remark_decides(problems: tuple[Problem, ...], known: bool) -> None:
    log = make_log([100.0] * 5, stated={"num_layers": 2}, problems=problems)
    assert ("attention" in summarise(log, make_metadata()).contract) is known


def test_each_field_of_the_keys_has_a_default_or_is_known_to_have_none() -> None:
    with every_case() as case:
        for name in [name for name in (*STACK_FIELDS, *CONFIG_FIELDS) if not name.startswith(PREFIX)]:
            with case(name):
                assert (name in DEFAULTS) is not (name in WITHOUT_DEFAULT)


def test_a_dense_model_has_no_knob_of_experts() -> None:
    with every_case() as case:
        for name in [name for name, field in FIELDS.items() if field.group == "Experts and routing"]:
            with case(name):
                assert name in MOE_FIELDS


def test_defaults_are_canonical() -> None:
    with every_case() as case:
        for name in DEFAULTS:
            with case(name):
                assert read_value(name, DEFAULTS[name]) == DEFAULTS[name]


def test_no_field_without_default_is_a_stranger() -> None:
    assert set(FIELDS) >= WITHOUT_DEFAULT
