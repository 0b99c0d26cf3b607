"""Rename the keys `duels`, `duel` and `glimpses` of stored boards.

A quote inside a JSON string is escaped, so only keys match.
"""

import sqlalchemy as sa
from alembic import op

revision = "0070"
down_revision = "0049"
branch_labels = None
depends_on = None

KEYS = {"duels": "comparisons", "duel": "comparison", "glimpses": "unranked_results"}


def upgrade() -> None:
    _rename(KEYS)


def downgrade() -> None:
    _rename({new: old for old, new in KEYS.items()})


def _rename(keys: dict[str, str]) -> None:
    text = sa.cast(sa.column("document"), sa.Text)
    for old, new in keys.items():
        text = sa.func.replace(text, f'"{old}":', f'"{new}":')
    value = sa.cast(text, sa.JSON) if op.get_bind().dialect.name == "postgresql" else text
    op.execute(sa.table("standing_board", sa.column("document")).update().values(document=value))
