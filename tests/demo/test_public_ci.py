"""The packaged runs of Megatron-LM's public CI are complete, read without problems and name their sources."""

import json
import re
from datetime import datetime, timedelta

from app.demo.studies import DATA, REPOSITORY, TAG, public_runs
from app.domain.documents.metadata import read_metadata
from app.domain.documents.scalars import read_golden_values
from tests.cases import every_case

SOURCE = re.compile(re.escape(REPOSITORY) + r"/blob/[0-9a-f]{40}/tests/functional_tests/\S+\.json")
RUNS = list(public_runs())


def test_about_three_hundred_runs_of_two_years_take_less_than_a_megabyte() -> None:
    times = [datetime.fromisoformat(str(run.metadata["commit_time"])) for run in RUNS]
    assert len({run.key for run in RUNS}) == len(RUNS) >= 300
    assert times == sorted(times)
    assert times[-1] - times[0] > timedelta(days=700)
    assert DATA.stat().st_size < 1_000_000
    assert "NVIDIA/Megatron-LM" in DATA.with_name("NOTICE").read_text()


def test_every_run_is_real_and_names_its_source() -> None:
    for run in RUNS:
        metadata = read_metadata(dict(run.metadata), strict=run.metadata)
        assert SOURCE.fullmatch(metadata.ci_url or "")
        assert metadata.commit in (metadata.ci_url or "")
        assert TAG in metadata.tags
        assert not metadata.warnings


def test_documents_read_without_problems() -> None:
    with every_case() as case:
        for run in RUNS[::15]:
            with case(run.key):
                document = read_golden_values(json.dumps(run.document))
                assert not document.problems
                assert len(document.columns["step_time_ms"]) >= 20
                assert document.facts["job"].startswith(str(run.document["test_case"]))
