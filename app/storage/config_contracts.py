"""The contract that the runs of a config key share: that of its newest run."""

from collections.abc import Collection

from sqlalchemy import func, select
from sqlmodel import Session, col

from app.domain.run import Stated
from app.storage.findings import stated
from app.storage.tables import RunRow


def contracts_of(session: Session, config_keys: Collection[str]) -> dict[str, dict[str, Stated]]:
    """By config key."""
    if not config_keys:
        return {}
    newest = (
        select(func.max(RunRow.id))
        .where(col(RunRow.config_key).in_(sorted(config_keys)))
        .group_by(col(RunRow.config_key))
    )
    chosen = select(RunRow.config_key, RunRow.contract).where(col(RunRow.id).in_(newest))  # type: ignore[call-overload]
    return {
        key: {name: stated(entry) for name, entry in (contract or {}).items()}
        for key, contract in session.execute(chosen)
    }
