"""Untrusted text in Markdown: a table of inputs and outputs."""

import pytest

from app.domain.report.text import escaped, link
from app.domain.verdict.document import OtherBranch
from app.domain.verdict.words import other_branch_text


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("nightly 12", "nightly 12"),
        ("a|b", "a\\|b"),
        ("`rm`", "\\`rm\\`"),
        ("<b>&amp;", "&lt;b>&amp;amp;"),
        ("[x](y)", "\\[x\\](y)"),
        ("a\nb\r\n\tc", "a b c"),
        ("permute_fusion __init__ a__b", "permute_fusion \\_\\_init\\_\\_ a\\_\\_b"),
        ("64bee49c -> e79110c6", "64bee49c -> e79110c6"),
        ("> quote", "&#8203;> quote"),
        ("*x* _y_ ~z~ \\", "\\*x\\* \\_y\\_ \\~z\\~ \\\\"),
        ("@ada: hello", "@&#8203;ada: hello"),
        ("mail@example", "mail@&#8203;example"),
        ("fix #12, !7", "fix #&#8203;12, !&#8203;7"),
        ("http://a.example www.b", "http:&#8203;//a.example www&#8203;.b"),
        ("# head", "&#8203;# head"),
        ("- item", "&#8203;- item"),
        ("1. item", "&#8203;1. item"),
        ("---", "&#8203;---"),
        ("399.9 ms", "399.9 ms"),
        ("+9.4 %", "+9.4 %"),
        ("\u202egnp.exe\x1b[31m", "gnp.exe\\[31m"),
    ],
)
def test_text_renders_as_what_it_says(text: str, out: str) -> None:
    assert escaped(text) == out


def test_long_text_is_cut() -> None:
    assert escaped("x" * 600) == "x" * 499 + "…"


@pytest.mark.parametrize(
    ("address", "out"),
    [
        ("https://git.example/a", "[a\\]b](https://git.example/a)"),
        ("https://git.example/a)b <c>", "[a\\]b](https://git.example/a%29b%20%3Cc%3E)"),
        ("javascript:alert(1)", "a\\]b"),
        ("", "a\\]b"),
    ],
)
def test_only_addresses_of_the_web_are_links(address: str, out: str) -> None:
    assert link("a]b", address) == out


# --- other_branch


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
