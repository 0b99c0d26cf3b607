"""How suggestions are put into words."""

import re
from collections.abc import Callable, Mapping

from markupsafe import Markup, escape

from app.domain.numbers import counted
from app.domain.rules.filling import filled, marked
from app.recommendations.measured_here import MeasuredHere
from app.web.numbers import coded

_MARKED = re.compile("\ue000([\\w.]+)\ue001([^\ue000-\ue002]*)\ue002")
_NUMBER = re.compile(r"(?<![\w.-])\d")
_CODE = re.compile(r"`[^`]*`|\{[^{}]*\}")


def numbered(text: str) -> bool:
    """It names a number of its own, beside those that are part of a word, stand as code or are facts filled in."""
    return bool(_NUMBER.search(_CODE.sub("", text)))


def linked(text: str, values: Mapping[str, object], href_of: Callable[[str], str]) -> Markup:
    """The text of a rule with its facts, each number of which leads to where it comes from."""

    def link(match: re.Match[str]) -> str:
        name, value = match.groups()
        href = href_of(name) if any(c.isdigit() for c in value) else ""
        return f'<a class="fact" href="{escape(href)}">{value}</a>' if href else value

    return Markup(_MARKED.sub(link, str(coded(filled(text, values, marked)))))  # noqa: S704  # coded escapes


def sentence(title: str) -> str:
    """A title with its full stop."""
    return title if title.endswith((".", "?")) else f"{title}."


def gain_text(percent: float) -> str:
    """`+18.2 %`: of throughput, so that more is faster."""
    word = "faster" if percent > 0 else "slower"
    return f"{percent:+.1f}\u202f% {word}"


def measured_text(found: MeasuredHere) -> str:
    """`measured here: +18.2 % faster (3 A/Bs on this stack)`."""
    result = found.result
    where = "on this stack" if result.same_contract else f"on {counted(len(result.stacks), 'other stack')}"
    return f"measured here: {gain_text(result.median_gain_pct)} ({counted(result.n, 'A/B')} {where})"
