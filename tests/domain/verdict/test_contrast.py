"""Which of several single-field contrasts is measured where there is no baseline."""

import pytest

from app.domain.verdict.assess import assess
from tests.domain.verdict.matching_runs import make_record

CONTAINER = make_record("old container", {"container": "train:2026.08"})


@pytest.mark.parametrize("other", [{"seq_len": 8192}, {"model": "Mixtral-8x7B"}, {"data_mode": "mock"}])
def test_an_upgrade_comes_before_another_workload_however_new(other: dict[str, str]) -> None:
    found = assess([make_record()], [CONTAINER, make_record("newer", other)])
    assert found.contrast is not None
    assert found.contrast.comparability.attributed_to == "container"
