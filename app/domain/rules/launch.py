"""A run's launch arguments as a page may show them: what looks like a credential is struck out."""

import re
from collections.abc import Mapping

from app.domain.documents.secrets import is_secret

STRUCK = "***"
_WORD = re.compile(r"\S+")
_OF_TEXT = re.compile(r"token[-_](?=\w)", re.IGNORECASE)
"""`--moe-token-dispatcher-type`: a token of text; a credential's name ends with the word."""


def without_secrets(launch: object) -> object:
    """The text of a command, or a mapping of flags to values, with the values of credentials struck out."""
    if isinstance(launch, Mapping):
        return {name: STRUCK if _is_credential(str(name), str(value)) else value for name, value in launch.items()}
    if not isinstance(launch, str):
        return None
    before = ""

    def word(match: re.Match[str]) -> str:
        nonlocal before
        text, flag = match[0], before
        before = text if text.startswith("-") and "=" not in text else ""
        name, equals, value = text.partition("=")
        if equals and _is_credential(name, value):
            return f"{name}={STRUCK}"
        if not text.startswith("-") and _is_credential(flag, text):
            return STRUCK
        return text

    return _WORD.sub(word, launch)


def _is_credential(name: str, value: str) -> bool:
    return is_secret(_OF_TEXT.sub("", name.lstrip("-")), value.strip("'\""))
