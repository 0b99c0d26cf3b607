"""The contract as the run page shows it: grouped, each value with its source, what is unknown among what is known."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.contract.fields import FIELDS
from app.domain.run import Stated
from app.runs.log_view import stated_at
from app.web.contract_inputs import ROLES
from app.web.numbers import contract_value

OTHER = "Other"
UNSET = contract_value(None)
_BY_HAND = "stated by "
"""How the detail of a value begins that a person stated after the upload."""


@dataclass(frozen=True, slots=True)
class ContractRow:
    """`value` is None when it is unknown. `line` of log file `file` states it, 0 when no line does.

    `said` is who said so, for the page: the source, or the person who stated it later.
    """

    name: str
    meaning: str
    value: str | None
    unit: str
    said: str
    detail: str
    file: int
    line: int

    @property
    def by_default(self) -> bool:
        """Nobody chose it."""
        return self.said == "default" or self.value == UNSET


@dataclass(frozen=True, slots=True)
class ContractGroup:
    name: str
    rows: tuple[ContractRow, ...]

    @property
    def by_default(self) -> bool:
        return all(row.by_default for row in self.rows)


def contract_groups(contract: Mapping[str, Stated], unknown: Sequence[str]) -> tuple[ContractGroup, ...]:
    """Groups in the order of the registry; fields that it does not know come last, under `Other`."""
    shown = [name for name in FIELDS if name in contract or name in unknown]
    shown += [name for name in (*contract, *unknown) if name not in FIELDS]
    groups: dict[str, list[ContractRow]] = {}
    for name in dict.fromkeys(shown):
        group = FIELDS[name].group if name in FIELDS else OTHER
        groups.setdefault(group, []).append(_row(name, contract.get(name)))
    return tuple(ContractGroup(name, tuple(rows)) for name, rows in groups.items())


def amend_command(base_url: str, run_id: int, blocking: Sequence[str]) -> str:
    """The call of the API that states `blocking`, the unknown fields that hold a comparison up.

    Each value is null, which the API refuses as stating nothing: what is pasted unread never becomes a fact.
    """
    body = json.dumps({"fields": dict.fromkeys(blocking), "author": ""})
    address = f"{base_url}/api/v1/runs/{run_id}/contract"
    return f"curl --fail-with-body -X PATCH -H 'Content-Type: application/json' -d {shlex.quote(body)} {address}"


def _row(name: str, stated: Stated | None) -> ContractRow:
    field = FIELDS.get(name)
    meaning = f"{field.meaning} {ROLES[field.role]}" if field else ""
    unit = field.unit if field else ""
    if stated is None:
        return ContractRow(name, meaning, None, unit, "", "", 0, 0)
    file, line = stated_at(stated) or (0, 0)
    said = stated.detail if stated.detail.startswith(_BY_HAND) else stated.source
    return ContractRow(name, meaning, contract_value(stated.value), unit, said, stated.detail, file, line)
