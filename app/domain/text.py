"""Clean external text: remove what a database rejects or a page cannot show."""

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, urlsplit

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Control characters, lone surrogates (no UTF-8 exists for them) and direction overrides (they disguise names)."""


class InvalidFields(ValueError):  # noqa: N818  # named for what it is said of
    """`fields`: problems by field name."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {why}" for name, why in fields.items()))
        self.fields = dict(fields)


def clean(text: str) -> str:
    """Return `text` without control characters, except line breaks and tabs."""
    return _UNPRINTABLE.sub("", text)


def one_line(text: str) -> str:
    """Return `text` on one line: no control characters, white space folded to single blanks, trimmed."""
    return " ".join(clean(text).split())


MAX_PROJECT_NAME = 100


def project_name_problem(name: str) -> str:
    """Return what is wrong with the name of a project, the same for all ways to create one; empty if it is valid.

    Addresses quote it, but servers and browsers read a slash, `.` and `..` as parts of a path even then.
    """
    if name == one_line(name) and 0 < len(name) <= MAX_PROJECT_NAME and "/" not in name and name.strip("."):
        return ""
    return (
        f"must have 1 to {MAX_PROJECT_NAME} characters, such as letters, digits, spaces and ()._-+, without a slash, "
        "control characters, or spaces at its ends or in a row, and not only dots"
    )


def capitalized(text: str) -> str:
    """Return `text` with a capital first letter; the other letters stay as they are."""
    return text[:1].upper() + text[1:]


def cut(text: str, most: int) -> str:
    """Return `text` with at most `most` characters, the last one `…` where the end is missing."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shortened(text: str, most: int) -> str:
    """Return `text` with at most `most` characters: start and end, which distinguish similar names, around `…`."""
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end].rstrip()}…{text[len(text) - end :].lstrip()}"


def name_end(name: str) -> int:
    """Return the length of the end of a long name that stays in sight: 28 to 44, from the start of a word."""
    start = 1 + max(name.rfind(separator, 0, len(name) - 28) for separator in (" ", "_", "-", "/"))
    return len(name) - start if len(name) - start <= 44 else 28


def coded_names(names: Iterable[str]) -> str:
    """Return names as inline code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def some_of(names: Sequence[str], most: int = 3, last: str = "and") -> str:
    """Return `a, b and c` or `a, b, c and 4 more`; empty without names."""
    shown = [*names[:most], *([f"{len(names) - most:,} more"] if len(names) > most else [])]
    return f"{', '.join(shown[:-1])} {last} {shown[-1]}" if len(shown) > 1 else "".join(shown)


# --- Addresses of a commit and of a range of commits, from a project's templates: `https://host/repo/commit/{commit}`.

MAX_TEMPLATE = 500
COMMIT = ("commit",)
RANGE = ("from", "to")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def commit_address(template: str, commit: str) -> str:
    """Return the address of a commit; empty without a template or a commit."""
    return _filled(template, {"commit": commit})


def range_address(template: str, first: str, last: str) -> str:
    """Return the address of a commit range; empty without a template or commit, or when both commits are equal."""
    return "" if first == last else _filled(template, {"from": first, "to": last})


def read_template(text: str, placeholders: tuple[str, ...]) -> str:
    """Validate an address template with these placeholders and return it trimmed; empty stays empty.

    Raises ValueError with the rule that it breaks.
    """
    template = text.strip()
    if not template:
        return ""
    wanted = " and ".join(f"{{{name}}}" for name in placeholders)
    if len(template) > MAX_TEMPLATE:
        raise ValueError(f"must have at most {MAX_TEMPLATE} characters")
    if not template.isascii() or any(ord(c) <= 32 or c in "\"'<>\\^`|" for c in template):
        raise ValueError("must be one address without spaces or quotes")
    beside = _PLACEHOLDER.sub("", template)
    if set(_PLACEHOLDER.findall(template)) != set(placeholders) or "{" in beside or "}" in beside:
        raise ValueError(f"must contain {wanted} and no other braces")
    try:
        parts = urlsplit(template)
    except ValueError:
        raise ValueError("must be a complete URL, for example https://github.com/...") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or "{" in parts.netloc:
        raise ValueError(f"must begin with https:// or http:// and a host, followed by {wanted}")
    return template


def _filled(template: str, values: dict[str, str]) -> str:
    if not template.startswith(("https://", "http://")) or not all(values.values()):
        return ""
    return _PLACEHOLDER.sub(lambda match: quote(values.get(match[1], ""), safe=""), template)


_PATH_OF_IMAGE = re.compile(r"(?<!\S)(?:[\w.-]+(?::\d+)?/)+(?=[\w.-]+[:@])")


def short_cause(cause: str) -> str:
    """Return a cause without the registries of its images: `Upgrade of the container: train:1 → train:2.`

    Causes that an earlier version stored have another arrow.
    """
    return _PATH_OF_IMAGE.sub("", cause).replace(" -> ", " → ")


def listed_cause(cause: str) -> str:
    """Return a cause as short as a list needs it: `train:1 → train:2`."""
    return short_cause(cause).removeprefix("Upgrade of the container: ").removesuffix(".")
