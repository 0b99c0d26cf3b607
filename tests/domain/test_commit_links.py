"""Templates of links to commits: what is accepted, and that nothing but the commit is put in."""

import pytest

from app.domain.text import COMMIT, RANGE, commit_address, range_address, read_template


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
