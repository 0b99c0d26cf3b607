import pytest

from app.domain.verdict.document import OtherBranch
from app.domain.verdict.words import other_branch_text


@pytest.mark.parametrize(
    ("branches", "why"),
    [
        (("master",), "on branch master, but"),
        (("",), "no branch, but"),
        (("master", ""), "on branch master or state no branch, but"),
    ],
)
def test_runs_of_another_branch_name_it_and_the_setting(branches: tuple[str, ...], why: str) -> None:
    text = other_branch_text(OtherBranch("main", branches, 2))
    assert why in text
    assert "`baseline_branch`" in text
