"""The `meta` document: accepted fields, errors by field name, and unknown fields that are kept with a warning."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.contract.fields import VARIABLES
from app.domain.contract.resolve import config_key
from app.domain.documents.metadata import read_metadata
from app.domain.run import Metadata, Stated, Window
from app.errors import InvalidMetadata
from tests.cases import sized


def test_all_that_can_be_stated() -> None:
    metadata = read_metadata(
        {
            "name": "  nightly\n qwen3 ",
            "project": "moe",
            "purpose": "experiment",
            "branch": "main",
            "commit": "067f987",
            "ci_url": "https://ci.example/1",
            "tags": ["overlap", "h100", "overlap"],
            "window": {"first": 41, "last": 50},
            "gpus": 16,
            "precision": "BF16",
            "container": "nemo:26.06",
            "env": {"NCCL_NVLS_ENABLE": 0, "MY_OWN": "x"},
        }
    )
    assert metadata.name == "nightly qwen3"
    assert metadata.tags == ("overlap", "h100")
    assert metadata.window == Window(41, 50)
    assert metadata.fields["gpus"] == Stated(16, "metadata", "meta.gpus")
    assert metadata.fields["precision"].value == "bf16"
    assert metadata.fields["env.NCCL_NVLS_ENABLE"].value == "0"
    assert "env.NVTE_FUSED_ATTN" not in metadata.fields
    assert metadata.extra == {"env": {"MY_OWN": "x"}}
    assert metadata.warnings == ()


@pytest.mark.parametrize(
    ("env", "stated"),
    [
        ({}, {}),
        ({"FOO": "1"}, {}),
        ({"FOO": "1", "NCCL_NVLS_ENABLE": "0"}, {"NCCL_NVLS_ENABLE": "0"}),
        ({"NCCL_NVLS_ENABLE": None}, {"NCCL_NVLS_ENABLE": None}),
        ({"PATH": "/bin", "PWD": "/"}, dict.fromkeys(VARIABLES)),
        ({"PATH": "/bin", "PWD": "/", "USE_MNNVL": 1}, dict.fromkeys(VARIABLES) | {"USE_MNNVL": "1"}),
    ],
)
def test_an_environment_states_its_variables_and_a_complete_one_the_rest(
    env: dict[str, object], stated: dict[str, object]
) -> None:
    fields = read_metadata({"env": env}).fields
    assert {name.removeprefix("env."): item.value for name, item in fields.items()} == stated
    assert (config_key("p", fields) == config_key("p", {})) is (not stated)


@pytest.mark.parametrize(
    ("document", "stated"),
    [
        ({"gpu": None, "cluster": "", "sp": None, "container": "none"}, []),
        ({"vpp": None, "pp_layout": "", "capacity": None, "etp": None}, ["etp", "capacity", "vpp", "pp_layout"]),
    ],
)
def test_a_null_is_a_statement_only_where_unset_means_something(document: dict[str, object], stated: list[str]) -> None:
    assert set(read_metadata(document).fields) == set(stated)


@pytest.mark.parametrize("document", [None, "", b" ", {}, "{}", b"{}"])
def test_nothing_stated_is_fine(document: object) -> None:
    assert read_metadata(document) == Metadata()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "`meta` is not JSON"),
        (b"\xff\xfe{}", "`meta` is not JSON"),
        ("[1]", "`meta` must be a JSON object"),
        ([1], "`meta` must be a JSON object"),
        (3, "`meta` must be a JSON object"),
        ("[" * 100_000, "`meta` is not JSON"),
    ],
)
def test_a_value_that_is_not_an_object_is_refused(document: object, words: str) -> None:
    with pytest.raises(InvalidMetadata) as caught:
        read_metadata(document)
    assert words in caught.value.detail
    assert caught.value.errors == ()


@pytest.mark.parametrize(
    ("document", "field", "words"),
    [
        ({"gpus": -8}, "meta.gpus", "gpus must be a whole number of at least 1."),
        ({"gpus": 8.5}, "meta.gpus", "whole number"),
        ({"gpus": True}, "meta.gpus", "whole number"),
        ({"gpus": 10**15}, "meta.gpus", "whole number"),
        ({"gpus": float("nan")}, "meta.gpus", "whole number"),
        ({"gpus": [8]}, "meta.gpus", "whole number"),
        ({"sp": "maybe"}, "meta.sp", "sp must be true or false."),
        ({"precision": "fp9"}, "meta.precision", "precision must be one of bf16, fp16,"),
        ({"precision": 8}, "meta.precision", "must be one of"),
        ({"recompute_modules": ["magic"]}, "meta.recompute_modules", "must be one of core_attn,"),
        ({"recompute_modules": 5}, "meta.recompute_modules", "must be a list."),
        ({"hcp_sizes": [2, -2]}, "meta.hcp_sizes", "whole number"),
        ({"container": {"image": "x"}}, "meta.container", "container must be text."),
        ({"cluster": "x" * 301}, "meta.cluster", "at most 300 characters"),
        ({"opt_offload_fraction": -0.5}, "meta.opt_offload_fraction", "must not be negative."),
        ({"purpose": "fun"}, "meta.purpose", "purpose must be one of ci, experiment, release."),
        ({"purpose": ["ci"]}, "meta.purpose", "one of ci"),
        ({"window": [41, 50]}, "meta.window", "an object with first and last"),
        ({"window": {"first": 50, "last": 41}}, "meta.window", "must not end (41) before it starts (50)."),
        ({"window": {"first": 1.5, "last": 41}}, "meta.window", "whole numbers"),
        ({"window": {"first": 1}}, "meta.window", "whole numbers"),
        ({"window": {"first": 1, "last": 2, "step": 1}}, "meta.window", "not step"),
        ({"tags": {"a": 1}}, "meta.tags", "a list of strings."),
        ({"tags": ["x" * 101]}, "meta.tags", "at most 50, each of at most 100 characters."),
        ({"name": "x" * 301}, "meta.name", "at most 300 characters; it has 301."),
        ({"name": ["x"]}, "meta.name", "name must be text."),
        ({"project": "a/b"}, "meta.project", "without a slash"),
        ({"ci_url": "javascript:alert(1)"}, "meta.ci_url", "https:// or http://."),
        ({"env": "A=1"}, "meta.env", "env must be an object"),
        ({"env": {"NCCL_NVLS_ENABLE": {}}}, "meta.env.NCCL_NVLS_ENABLE", "must be text"),
        ({"launch_args": 5}, "meta.launch_args", "launch_args must be an object, or a command line."),
    ],
)
def test_invalid_values_are_refused_by_name(document: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(InvalidMetadata) as caught:
        read_metadata(document)
    assert [error.field for error in caught.value.errors] == [field]
    assert words in caught.value.errors[0].message
    assert field in caught.value.detail


@pytest.mark.parametrize(
    "text", ["...", "\u2026", "unknown", "N/A", "TODO", " tbd ", "<gpu>", "${GPU}", "$GPU", "{{ gpu }}"]
)
@pytest.mark.parametrize(
    "field", ["gpu", "cluster", "container", "precision", "gpus", "sp", "recompute_modules", "vpp"]
)
def test_a_placeholder_is_not_a_value(field: str, text: str) -> None:
    for raw in (text, [text]) if field == "recompute_modules" else (text,):
        with pytest.raises(InvalidMetadata) as caught:
            read_metadata({field: raw})
        assert [error.field for error in caught.value.errors] == [f"meta.{field}"]
        assert "is the placeholder" in caught.value.errors[0].message


def test_placeholders_of_an_environment_and_of_a_command_are_not_values_either() -> None:
    with pytest.raises(InvalidMetadata, match=r"meta\.env\.USE_MNNVL"):
        read_metadata({"env": {"USE_MNNVL": "..."}})
    assert read_metadata({"note": "...", "name": "TODO"}).extra == {"note": "..."}


@pytest.mark.parametrize(
    ("field", "raw", "value"),
    [
        ("attention", "<AttnBackend.flash: 5>", "flash"),
        ("attention", "AttnBackend.flash", "flash"),
        ("cluster", "x-1", "x-1"),
        ("container", "nemo:unknown", "nemo:unknown"),
        ("vpp", "none", None),
    ],
)
def test_what_only_looks_like_a_placeholder_is_a_value(field: str, raw: str, value: object) -> None:
    assert read_metadata({field: raw}).fields[field].value == value


def test_all_errors_are_reported_together() -> None:
    with pytest.raises(InvalidMetadata) as caught:
        read_metadata({"gpus": -1, "tp": 0, "purpose": "fun", "window": 3})
    assert {error.field for error in caught.value.errors} == {"meta.gpus", "meta.tp", "meta.purpose", "meta.window"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sku", "`gpu`"),
        ("world_size", "`gpus`"),
        ("tensor_model_parallel_size", "`tp`"),
        ("Seq-Length", "`seq_len`"),
        ("dispatchr", "`dispatcher`"),
        ("brunch", "`branch`"),
        ("git_commit", "`commit`"),
    ],
)
def test_an_unknown_field_is_kept_and_the_nearest_known_one_named(name: str, hint: str) -> None:
    metadata = read_metadata({name: {"kept": [1, "as it is"]}})
    assert metadata.extra == {name: {"kept": [1, "as it is"]}}
    (warning,) = metadata.warnings
    assert (f"`{name}` is unknown" in warning, warning.endswith(f"{hint}?")) == (True, True)


def test_an_unknown_field_without_a_similar_name_gets_no_hint() -> None:
    (warning,) = read_metadata({"zzz": 1}).warnings
    assert ("`zzz` is unknown" in warning, "?" in warning) == (True, False)


def test_control_characters_are_taken_out() -> None:
    metadata = read_metadata({"name": "a\x00b\x1b[31mc", "note\x00": ["x\x00y", "\ud800"]})
    assert metadata.name == "ab[31mc"
    assert metadata.extra == {"note": ["xy", ""]}
    assert any("`name`" in warning for warning in metadata.warnings)


def test_a_complete_launch_command_includes_the_launcher_s_values() -> None:
    command = "NCCL_NVLS_ENABLE=1 torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --expert-model-parallel-size 8"
    fields = read_metadata({"launch_args": command}).fields
    values = {name: fields[name].value for name in ("gpus", "ep", "env.NCCL_NVLS_ENABLE")}
    assert values == {"gpus": 32, "ep": 8, "env.NCCL_NVLS_ENABLE": "1"}


def test_the_flags_of_a_harness_mean_what_it_makes_of_them() -> None:
    command = "python run_script.py -m deepseek --moe_a2a_overlap true -tp 2"
    fields = read_metadata({"launch_args": command}).fields
    assert {name: fields[name].value for name in ("ep_overlap", "delay_wgrad", "shared_overlap", "sp")} == {
        "ep_overlap": True,
        "delay_wgrad": True,
        "shared_overlap": False,
        "sp": True,
    }


@pytest.mark.parametrize(
    "launch_args",
    [
        "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --moe-token-dispatcher-type flex --bf16",
        {"--tensor-model-parallel-size": 2, "--moe-token-dispatcher-type": "flex", "--bf16": True},
    ],
)
def test_launch_arguments_state_contract_fields(launch_args: object) -> None:
    metadata = read_metadata({"launch_args": launch_args})
    values = {name: metadata.fields[name].value for name in ("tp", "dispatcher", "precision")}
    assert values == {"tp": 2, "dispatcher": "deepep", "precision": "bf16"}
    assert {stated.source for stated in metadata.fields.values()} == {"metadata"}
    assert metadata.extra == {"launch_args": launch_args}


def test_a_field_wins_over_the_launch_arguments_and_both_are_named() -> None:
    metadata = read_metadata({"tp": 4, "launch_args": "--tensor-model-parallel-size 2"})
    assert metadata.fields["tp"].value == 4
    (warning,) = metadata.warnings
    assert [part in warning for part in ("`tp`", "4 in `meta.tp`", "2 in `meta.launch_args`")] == [True] * 3


def test_markup_in_a_name_is_only_text() -> None:
    assert read_metadata({"name": "<script>alert(1)</script>"}).name == "<script>alert(1)</script>"


def test_numbers_that_json_does_not_know_are_kept_as_text() -> None:
    assert read_metadata('{"x": NaN, "y": [Infinity]}').extra == {"x": "nan", "y": ["inf"]}


def test_deep_nesting_is_refused() -> None:
    deep: object = 1
    for _ in range(50):
        deep = [deep]
    with pytest.raises(InvalidMetadata) as caught:
        read_metadata({"deep": deep})
    assert caught.value.errors[0].field == "meta.deep"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
known_names = st.sampled_from(
    ["name", "project", "purpose", "tags", "window", "env", "gpus", "precision", "graph_modules", "model", "capacity"]
)


@settings(max_examples=sized(100, 300), deadline=None)
@given(st.dictionaries(known_names | st.text(), json_values, max_size=5))
def test_any_json_is_read_or_refused_by_name(document: dict[str, object]) -> None:
    outcome = read_or_refusal(document)
    if isinstance(outcome, Metadata):
        assert "\x00" not in outcome.name + json.dumps(outcome.extra, ensure_ascii=False)
    else:
        assert outcome.errors
        assert all(error.field.startswith("meta.") for error in outcome.errors)


def read_or_refusal(document: dict[str, object]) -> Metadata | InvalidMetadata:
    try:
        return read_metadata(document)
    except InvalidMetadata as refusal:
        return refusal


@pytest.mark.parametrize(
    ("stated", "utc"),
    [
        ("2026-11-18T06:12:00+02:00", "2026-11-18T04:12:00+00:00"),
        ("2026-11-18T04:12:00Z", "2026-11-18T04:12:00+00:00"),
        ("2026-11-18 04:12", "2026-11-18T04:12:00+00:00"),
    ],
)
def test_the_time_of_a_commit_is_kept_in_utc(stated: str, utc: str) -> None:
    time = read_metadata({"commit_time": stated}).commit_time
    assert time is not None
    assert time.isoformat() == utc


@pytest.mark.parametrize("stated", ["yesterday", 1763438400, "0001-01-01", True, ["2026-11-18"]])
def test_an_invalid_time_is_refused(stated: object) -> None:
    outcome = read_or_refusal({"commit_time": stated})
    assert isinstance(outcome, InvalidMetadata)
    assert [error.field for error in outcome.errors] == ["meta.commit_time"]


def test_a_fact_that_the_rules_know_is_kept_without_a_warning_unless_its_value_does_not_suit_it() -> None:
    metadata = read_metadata({"exposed_comm_frac": 0.3, "gpu_idle_frac": "much"})
    assert metadata.extra["exposed_comm_frac"] == 0.3
    (warning,) = metadata.warnings
    assert [part in warning for part in ("`gpu_idle_frac`", "'much'")] == [True, True]
