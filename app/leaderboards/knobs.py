"""What sets the configurations of one dispatcher apart: the knobs in which they differ, by their values."""

from collections.abc import Mapping, Sequence

from sqlmodel import Session

from app.domain.contract.fields import CONFIG_FIELDS
from app.domain.contract.values import comparable
from app.domain.numbers import contract_value
from app.domain.run import Stated
from app.storage.config_contracts import contracts_of
from app.storage.standings import KeptStandings

_KNOBS = tuple(name for name in CONFIG_FIELDS if name != "dispatcher")
_MOST = 4
"""Knobs that are told; a comparison of two runs lists all."""


def knobs_apart(session: Session, stacks: Sequence[KeptStandings]) -> dict[str, str]:
    """Config key -> `permute_fusion on, tp 2`, for dispatchers of these stacks that have several configurations."""
    several = [
        [one.config_key for one in entry.configurations]
        for kept in stacks
        for board in kept.standings.boards
        for entry in board.entries
        if len(entry.configurations) > 1
    ]
    contracts = contracts_of(session, {key for keys in several for key in keys})
    return {key: told for keys in several for key, told in _told({key: contracts.get(key, {}) for key in keys}).items()}


def _told(contracts: Mapping[str, Mapping[str, Stated]]) -> dict[str, str]:
    names = [name for name in _KNOBS if len({_value(one, name) for one in contracts.values()}) > 1]
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return {
        key: ", ".join(f"{name} {_text(contract, name)}" for name in names[:_MOST]) + more
        for key, contract in contracts.items()
    }


def _value(contract: Mapping[str, Stated], name: str) -> object:
    return comparable(name, contract[name].value) if name in contract else ("unknown",)


def _text(contract: Mapping[str, Stated], name: str) -> str:
    return contract_value(contract[name].value) if name in contract else "unknown"
