"""Whether a job alternates between two levels, whatever its code."""

import pytest

from app.domain.verdict.evidence import alternates


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ("...#.#.#", True),
        ("#.#..##", True),
        ("...#.#..", False),  # reverted, and back
        ("...#####", False),
        ("#.........#.........#", False),  # too far apart
        ("", False),
    ],
)
def test_a_job_alternates_if_it_returned_twice_within_ten_commits(commits: str, *, expected: bool) -> None:
    assert alternates([commit == "#" for commit in commits]) is expected
