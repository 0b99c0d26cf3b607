"""Versions that libraries print of themselves become contract fields with the line they stand in."""

import pytest

from app.domain.logs import parse_text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("node7:1:9 [0] NCCL INFO NCCL version 2.27.3+cuda12.9", {"nccl_version": "2.27.3", "cuda_version": "12.9"}),
        ("[default0]:NCCL version 2.21.5+cuda12.4", {"nccl_version": "2.21.5", "cuda_version": "12.4"}),
        ("NCCL version 2.27.3", {"nccl_version": "2.27.3"}),
        ("PyTorch Version 2.9.0a0+145a3a7", {"pytorch_version": "2.9.0a0+145a3a7"}),
        ("NCCL version unknown", {}),
        ("NCCL version \x1b[31m", {}),
    ],
)
def test_a_printed_version_is_stated(line: str, expected: dict[str, str]) -> None:
    stated = parse_text(f"starting\n{line}\nstarted\n").stated
    assert {name: value.value for name, value in stated.items()} == expected
    assert all(version.source == "log line" and version.detail.startswith("line 2: ") for version in stated.values())


def test_the_first_version_told_counts() -> None:
    stated = parse_text("0: NCCL version 2.27.3+cuda12.9\n1: NCCL version 2.21.5+cuda12.4\n").stated
    assert stated["nccl_version"].value == "2.27.3"
