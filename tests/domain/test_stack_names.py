"""Names of stacks: no two are called the same, and what all neighbours share is not repeated."""

from app.domain.naming import TitledStack, stack_names
from app.domain.run import Value

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
