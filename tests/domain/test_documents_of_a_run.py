"""Documents beside a log, and in place of one; whose statement counts; what a project's defaults fill."""

import json
from pathlib import Path

import numpy as np
import pytest

from app.domain.documents.document import Document
from app.domain.documents.read import read_document
from app.domain.logs import parse_text
from app.domain.performance.summary import summarise
from app.domain.run import Value
from tests.domain.builders import OVERLAP_CASE, make_log, make_metadata, make_stated
from tests.shared_papers import shared_folder


def document(kind: str, **fields: Value) -> Document:
    return Document(kind, stated=make_stated(fields, "metadata"))  # type: ignore[arg-type]


def test_the_stronger_document_counts_and_both_are_named() -> None:
    log = make_log([100.0] * 10, stated=OVERLAP_CASE)
    documents = [document("launch command", gbs=512), document("bridge configuration", gbs=256, mbs=2)]
    summary = summarise(log, make_metadata(), documents)
    assert summary.contract["gbs"].value == 512
    assert summary.contract["mbs"].value == 2
    assert (
        "`gbs` is 512 in the launch command but 256 in the bridge configuration (metadata: gbs = 256). The launch "
        "command is used; correct it if the bridge configuration is right."
    ) in summary.warnings
    assert any(warning.startswith("`mbs` is 2 in the bridge configuration but 1 in the log") for warning in
               summary.warnings)  # fmt: skip


def test_the_metadata_win_over_every_document() -> None:
    summary = summarise(make_log([100.0] * 10), make_metadata({"gbs": 64}), [document("launch command", gbs=512)])
    assert summary.contract["gbs"].value == 64
    assert any("64 in the metadata but 512 in the launch command" in warning for warning in summary.warnings)


def test_a_documents_series_stand_beside_those_of_the_log() -> None:
    log = make_log([100.0] * 5, columns={"lm_loss": [5.0, 4.0, 3.0, 2.0, 1.0]})
    columns = {"iteration": np.array([4.0, 2.0]), "lm_loss": np.array([9.0, 9.0]), "entropy": np.array([0.4, 0.2])}
    series = summarise(log, make_metadata(), [Document("tensorboard", columns=columns)]).series
    assert series["lm_loss"].tolist() == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert np.array_equal(series["entropy"], [np.nan, 0.2, np.nan, 0.4, np.nan], equal_nan=True)


@pytest.mark.parametrize("index", range(0, 688, 43))
def test_golden_values_alone_are_a_run_with_the_same_step_times(index: int) -> None:
    folder = shared_folder("corpus")
    lines = (folder / "golden" / "index.jsonl").read_text().splitlines()
    data = Path(folder / json.loads(lines[index])["file"]).read_bytes()
    golden = read_document("golden values", [data])
    summary = summarise(parse_text(""), make_metadata(), [golden])
    if not len(golden.columns.get("iteration", ())):
        assert summary.error is not None
        return
    assert summary.error is None
    assert summary.failures == () or {failure.kind for failure in summary.failures} <= {"loss_not_finite"}
    assert np.array_equal(summary.series["step_time_ms"], golden.columns["step_time_ms"], equal_nan=True)
    assert summary.contract["num_experts"].value is not None or "num_experts" not in golden.stated


def test_a_projects_defaults_fill_what_nobody_states() -> None:
    log = make_log([100.0] * 10, stated=OVERLAP_CASE | {"gpus": 8})
    defaults: dict[str, Value] = {"gpu": "H100", "cluster": "eos", "gbs": 1, "nonsense": 1, "cp": "many"}
    summary = summarise(log, make_metadata({"cluster": "csw"}), project_defaults=defaults)
    assert (summary.contract["gpu"].value, summary.contract["gpu"].source) == ("H100", "default")
    assert summary.contract["gpu"].detail == "project default"
    assert summary.contract["cluster"].value == "csw"
    assert summary.contract["gbs"].value == 1024
    assert summary.contract["gpus_per_node"].value == 8
