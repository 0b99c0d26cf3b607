"""Name the states of leased queues `claimed` and `enqueued` instead of `held` and `rung`.

Only rows that a worker has claimed or that are in the Celery queue change. A worker of the previous release that
finishes during the upgrade finds its claim lost, and the row is claimed again when its lease ends.
"""

import sqlalchemy as sa
from alembic import op

revision = "0068"
down_revision = "0067"
branch_labels = None
depends_on = None

STATES = {"held": "claimed", "rung": "enqueued"}
QUEUES = {"run": ["held"], "profile": ["held"], "stack_work": ["held"], "delivery": ["held", "rung"]}


def upgrade() -> None:
    for name, states in QUEUES.items():
        for state in states:
            _rename(name, state, STATES[state])


def downgrade() -> None:
    for name, states in QUEUES.items():
        for state in states:
            _rename(name, STATES[state], state)


def _rename(name: str, old: str, new: str) -> None:
    table = sa.table(name, sa.column("work"))
    op.execute(table.update().where(table.c.work == old).values(work=new))
