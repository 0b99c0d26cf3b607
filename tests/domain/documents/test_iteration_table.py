"""Tables of iterations as JSON, JSON lines and CSV, and Bencher's JSON."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from app.domain.documents.document import Document
from app.domain.documents.iteration_table import MAX_COLUMNS, read_bencher_metrics, read_iteration_table
from app.domain.documents.read import read_document, recognise
from tests.cases import every_case

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/iterations.schema.json").read_text())


def columns(document: Document) -> dict[str, list[float | None]]:
    return {
        name: [None if value != value else float(value) for value in values]  # noqa: PLR0124
        for name, values in document.columns.items()
        if name != "step_time_true_ms"
    }


ROWS = {"iteration": [1, 2], "step_time_ms": [500, 250], "loss": [2.5, None]}
SAME = {
    "CSV": "iteration,step_time_ms,loss\n1,500,2.5\n2,250,\n",
    "CSV in seconds, with a unit in brackets": "step;step_time [s];loss\n1;0.5;2.5\n2;0.25;NaN\n",
    "TSV with a comment": "# written by us\nglobal_step\ttime_per_step_s\tloss\n1\t0.5\t2.5\n2\t0.25\tnull\n",
    "rows": '[{"iteration": 1, "step_time_us": 500000, "loss": 2.5}, {"iteration": 2, "step_time_us": 250000}]',
    "rows under a key": '{"iterations": [{"step": 1, "iterations_per_s": 2, "loss": 2.5}, '
    '{"step": 2, "iterations_per_s": 4, "loss": null}]}',
    "stated units": '{"units": {"dt": "s"}, "rows": [{"step": 1, "dt": 0.5, "loss": 2.5}, {"step": 2, "dt": 0.25}]}',
    "JSON lines": '{"_step": 1, "step_time_s": 0.5}\n{"_step": 1, "loss": 2.5}\n{"_step": 2, "step_time_s": 0.25}\n',
    "columns": '{"columns": {"iteration": [1, 2], "step_time_ms": [500, 250], "loss": [2.5, null], '
    '"log_line": [7, 8]}, "units": {"step_time_ms": "ms"}}',
}


def test_all_shapes_say_the_same() -> None:
    with every_case() as case:
        for name, text in SAME.items():
            with case(name):
                assert recognise("table.txt", text.encode()) == "iterations"
                document = read_iteration_table(text)
                assert (columns(document), document.problems) == (ROWS, ())


def test_names_of_other_tools_and_memory_have_units() -> None:
    text = "step,step_time_s,train/loss,lr,tgs,peak_memory_gib,max_memory_allocated_mb,timer_forward_ms,own name\n"
    document = read_iteration_table(text + "1,2,3,0.1,900,2,,7,8\n2,2,3,0.1,900,,1000,7,8\n")
    assert columns(document) == {
        "iteration": [1, 2], "step_time_ms": [2000, 2000], "loss": [3, 3], "learning_rate": [0.1, 0.1],
        "tokens_per_s_per_gpu": [900, 900], "peak_memory_bytes": [2 * 2**30, 1e9], "timer_forward_ms": [7, 7],
        "own_name": [8, 8],
    }  # fmt: skip


def test_unreadable_parts_are_reported_and_the_rest_is_kept() -> None:
    text = (
        '{"step": 1, "step_time_s": 0.5}\n{broken\n{"step": "x", "step_time_s": 1}\n{"step": 2, "step_time_s": "fast"}'
    )
    document = read_iteration_table(text + '\n{"step": 3, "step_time_s": 0.25}\n')
    assert columns(document) == {"iteration": [1, 2, 3], "step_time_ms": [500, None, 250]}
    assert [len([p for p in document.problems if part in p]) for part in ("Line 2", "'x'", "'fast'", "1 rows")] == [
        1
    ] * 4
    many = read_iteration_table("step,step_time_s\n1,1\n" + "1,1,1\n" * 50)
    assert len(many.problems) == 6
    wide = ",".join(f"c{n}" for n in range(300))
    assert f"first {MAX_COLUMNS} of 302" in read_iteration_table(f"step,step_time_s,{wide}\n1,2\n").problems[-1]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("step,step_time,loss\n1,2,3\n", "No column is a step time with its unit"),
        ("step,loss\n1,2\n", "No column is a step time"),
        ("step,step_time_s\nx,1\n", "No row has both"),
        ('{"columns": {"iteration": [1, 2], "step_time_ms": [1]}}', "lengths differ"),
        ("[1, 2]", "no columns"),
        ('"text"', "No column"),
        ("", "no columns"),
    ],
)
def test_other_documents_are_refused_with_what_to_change(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_iteration_table(text)


def test_logs_and_other_json_are_not_tables() -> None:
    for text in (
        '{"log": "iteration 5\\n", "stream": "stdout", "time": "x"}\n',
        "step 5 loss 2.5 time 0.3, next\n",
        '{"loss": 7.15, "learning_rate": 4.8e-05, "epoch": 0.03, "step": 500}\n',
        '{"model": {"value": {"a": 1}}}',
        "Wall time,Step,Value\n1.5,1,2.5\n",
    ):
        assert recognise("train.log", text.encode()) is None


def test_bencher_metrics_are_one_iteration_of_one_benchmark() -> None:
    text = '{"qwen3/64": {"step_time_ms": {"value": 812.5, "lower_value": 800}, "tflops_per_gpu": {"value": 400}}}'
    assert recognise("results.json", text.encode()) == "bencher metrics"
    document = read_document("bencher metrics", [text.encode()])
    assert (columns(document), document.facts) == (
        {"iteration": [1], "step_time_ms": [812.5], "tflops_per_gpu": [400]},
        {"job": "qwen3/64"},
    )
    with pytest.raises(ValueError, match="2 benchmarks"):
        read_bencher_metrics('{"a": {"step_time_ms": {"value": 1}}, "b": {"step_time_ms": {"value": 2}}}')
    with pytest.raises(ValueError, match="no measures"):
        read_bencher_metrics('{"a": 1}')


def test_the_schema_accepts_what_is_read_and_its_examples_are() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.check_schema(SCHEMA)
    examples: list[Any] = SCHEMA["examples"]
    for example in (*examples, *(json.loads(text) for name, text in SAME.items() if name in ("rows", "columns"))):
        assert list(validator.iter_errors(example)) == []
        kind = recognise("x.json", json.dumps(example).encode())
        assert kind is not None
        assert len(read_document(kind, [json.dumps(example).encode()]).columns["iteration"]) >= 1
    assert list(validator.iter_errors({"columns": {"iteration": ["one"]}})) != []
