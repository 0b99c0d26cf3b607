"""What a trainer's own dump of arguments says of the flags that change, for a run whose command nobody uploaded."""

import shlex
from collections.abc import Mapping

from app.domain.rules.flags import bridge_text
from app.domain.run import Value


def from_dump(names: Mapping[str, str], arguments: Mapping[str, Value], *, bridge: bool) -> dict[str, str]:
    """By normal name, the flag as the run had it; `names` gives the spelling of each. Unset ones read ""."""
    found: dict[str, str] = {}
    for name, flag in names.items():
        if name not in arguments:
            continue
        value = arguments[name]
        if bridge:
            found[name] = shlex.quote(f"{name}={bridge_text(value)}")
        elif isinstance(value, list | tuple):
            found[name] = shlex.join([flag, *map(str, value)]) if value else ""
        elif value is None or value is False or value == "":
            found[name] = ""
        else:
            found[name] = flag if value is True else shlex.join([flag, str(value)])
    return found
