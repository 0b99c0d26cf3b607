"""Names of stacks: no two are called the same, and what all neighbours share is not repeated."""

import pytest

from app.domain.naming import TitledStack, stack_names, stack_title
from app.domain.run import Stated, Value
from app.domain.text import COMMIT, RANGE, commit_address, range_address, read_template

TITLE = "Qwen3-30B-A3B · 16 × H100"


def stack(key: str, title: str = TITLE, project: str = "lab", **known: Value) -> TitledStack:
    return TitledStack(key, title, project, known)


def test_a_stack_without_neighbours_has_its_title() -> None:
    assert stack_names([stack("a", seq_len=4096), stack("b", title="DeepSeek-V3", seq_len=8192)]) == {
        "a": TITLE,
        "b": "DeepSeek-V3",
    }


def test_neighbours_are_told_apart_by_the_size_of_their_work() -> None:
    named = stack_names([stack("a", seq_len=4096, gbs=1024, mbs=1), stack("b", seq_len=8192, gbs=512, mbs=1)])
    assert named == {"a": f"{TITLE} · seq 4096 · GBS 1024", "b": f"{TITLE} · seq 8192 · GBS 512"}


def test_other_fields_are_told_as_far_as_they_tell_more_apart() -> None:
    named = stack_names(
        [
            stack("a", task="pretrain", precision="bf16", cluster="x", pp=1),
            stack("b", task="sft", precision="fp8", cluster="x", pp=1),
            stack("c", task="sft", precision="fp8", cluster="y", pp=1),
        ]
    )
    told = {key: name.removeprefix(f"{TITLE} · ") for key, name in named.items()}
    assert told == {"a": "task pretrain · cluster x", "b": "task sft · cluster x", "c": "task sft · cluster y"}


def test_what_is_unknown_is_called_so() -> None:
    assert stack_names([stack("a", cluster=None), stack("b")]) == {
        "a": f"{TITLE} · cluster unset",
        "b": f"{TITLE} · cluster unknown",
    }


def test_another_project_is_named() -> None:
    named = stack_names([stack("a", project="lab"), stack("b", project="ci")])
    assert named == {"a": f"{TITLE} · project lab", "b": f"{TITLE} · project ci"}


def test_where_no_field_tells_them_apart_the_key_does() -> None:
    named = stack_names([stack("a" * 64, container="x"), stack("b" * 64, container="x")])
    assert named == {"a" * 64: f"{TITLE} · aaaaaaaa", "b" * 64: f"{TITLE} · bbbbbbbb"}


# --- A stack in one line.


def contract(**values: str | int) -> dict[str, Stated]:
    return {name: Stated(value, "metadata") for name, value in values.items()}


def test_a_stack_is_known_by_model_hardware_dispatcher_routing_and_container() -> None:
    whole = contract(
        model="Qwen3-30B-A3B", gpu="H100", gpus=16, dispatcher="hybridep", routing_mode="forced-balance",
        container="nvcr.io/nvidia/nemo:26.06@sha256:0f3c",
    )  # fmt: skip
    assert stack_title(whole) == "Qwen3-30B-A3B · 16 × H100 · hybridep · forced balance · nemo:26.06"
    assert stack_title(whole, dispatcher=False) == "Qwen3-30B-A3B · 16 × H100 · forced balance · nemo:26.06"


def test_what_nobody_states_is_unknown_or_left_out() -> None:
    assert stack_title({}) == "unknown model · unknown GPU"
    assert stack_title(contract(model="DSV3", gpus=64)) == "DSV3 · 64 × unknown GPU"


# --- Templates of links to commits: what is accepted, and that nothing but the commit is put in.


def test_a_commit_is_quoted_where_its_placeholder_stands() -> None:
    template = read_template(" https://github.com/org/repo/commit/{commit} ", COMMIT)
    assert commit_address(template, "0f3c2a9d") == "https://github.com/org/repo/commit/0f3c2a9d"
    assert commit_address(template, '"><b>/..') == "https://github.com/org/repo/commit/%22%3E%3Cb%3E%2F.."
    assert commit_address(template, "") == ""
    assert commit_address("", "0f3c2a9d") == ""


def test_a_range_needs_two_commits() -> None:
    template = read_template("https://github.com/org/repo/compare/{from}...{to}", RANGE)
    assert range_address(template, "a", "b") == "https://github.com/org/repo/compare/a...b"
    assert range_address(template, "a", "a") == ""
    assert range_address(template, "", "b") == ""


def test_a_stored_template_of_another_scheme_gives_no_link() -> None:
    assert commit_address("javascript:alert('{commit}')", "a") == ""


@pytest.mark.parametrize(
    "template",
    [
        "javascript:alert({commit})",
        "//host/{commit}",
        "https://{commit}",
        "https://{commit}.host/",
        "https://me@host/{commit}",
        "https://host/",
        "https://host/{sha}",
        "https://host/{commit}/{branch}",
        "https://host/{commit",
        "https://host/a b/{commit}",
        "https://host/'{commit}",
        "https://[host/{commit}",
        "https://host/{commit}" + "a" * 500,
    ],
)
def test_what_is_no_template_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        read_template(template, COMMIT)
