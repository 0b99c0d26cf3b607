"""Untrusted text inside Markdown: names, values and log lines must not become markup, links or mentions.

The forges link `@name`, `#12`, `!12` and bare addresses after rendering, so a backslash does not stop them: a space of
no width does.
"""

import re

from app.domain.text import one_line

_NO_WIDTH = "&#8203;"
_MARKUP = re.compile(r"[\\`*_\[\]|~]")
_REFERENCE = re.compile(r"@(?=\w)|[#!](?=\d)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
_BLOCK_AT_START = re.compile(r"^(?=(#+|[+=-]+|\d{1,9}[.)])(\s|$))")
"""A heading, list, rule or underline, which need a blank or nothing behind their mark; `>` is an entity by then."""
LONGEST = 500


def escaped(text: str, most: int = LONGEST) -> str:
    """One line that renders as what it says."""
    line = one_line(text)
    line = line if len(line) <= most else line[: most - 1] + "…"
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _MARKUP.sub(lambda found: "\\" + found[0], line)
    line = _REFERENCE.sub(lambda found: found[0] + _NO_WIDTH, line)
    return _BLOCK_AT_START.sub(_NO_WIDTH, line)


def link(text: str, address: str) -> str:
    """`[text](address)`; the text alone without an address of the web."""
    if not address.startswith(("https://", "http://")):
        return escaped(text)
    safe = re.sub(r"[\s()<>\\\"`|]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), address)
    return f"[{escaped(text)}]({safe})"
