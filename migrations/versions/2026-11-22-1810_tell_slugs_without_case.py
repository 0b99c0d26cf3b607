"""Make slugs of projects unique regardless of case, and idempotency keys unique per sender.

Stack keys have always ignored case, so two projects whose slugs differ only in case shared stacks. The newer project
gets a number in its slug, and its runs are recomputed, which gives them separate keys.
"""

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_SLUG = sa.String(length=100)
_AT_ONCE = 1_000


def upgrade() -> None:
    op.add_column("project", sa.Column("slug_lower", _SLUG, nullable=False, server_default=""))
    _rename_projects()
    with op.batch_alter_table("project") as table:
        table.alter_column("slug_lower", existing_type=_SLUG, server_default=None)
    op.create_index("ix_project_slug_lower", "project", ["slug_lower"], unique=True)
    _give_keys_to_senders()


def downgrade() -> None:
    """Drop the column. Renamed projects keep their new names. Existing Idempotency-Keys no longer match new uploads."""
    op.drop_index("ix_project_slug_lower", "project")
    with op.batch_alter_table("project") as table:
        table.drop_column("slug_lower")


def _rename_projects() -> None:
    connection = op.get_bind()
    project = sa.table("project", sa.column("id"), sa.column("slug"), sa.column("slug_lower"))
    run = sa.table("run", sa.column("project_id"), sa.column("definition_version"), sa.column("status"))
    rows = connection.execute(sa.select(project.c.id, project.c.slug).order_by(project.c.id)).all()
    taken = {row.slug for row in rows}
    seen: set[str] = set()
    for row in rows:
        slug, number = row.slug, 1
        while slug.lower() in seen or (number > 1 and slug in taken):
            number += 1
            slug = f"{row.slug[:90]}-{number}"
        seen.add(slug.lower())
        of_it = project.c.id == row.id
        connection.execute(project.update().where(of_it).values(slug=slug, slug_lower=slug.lower()))
        if slug != row.slug:
            done = sa.and_(run.c.project_id == row.id, run.c.status.in_(("ready", "failed")))
            connection.execute(run.update().where(done).values(definition_version=0))


def _give_keys_to_senders() -> None:
    """Rewrite the keys in the form of `sent_key` (app/pipeline/receive.py) at this revision."""
    connection = op.get_bind()
    run = sa.table(
        "run", sa.column("id"), sa.column("token_id"), sa.column("uploaded_by"), sa.column("idempotency_key")
    )
    columns = (run.c.id, run.c.token_id, run.c.uploaded_by, run.c.idempotency_key)
    after = 0
    while rows := connection.execute(
        sa.select(*columns)
        .where(run.c.idempotency_key.is_not(None), run.c.id > after)
        .order_by(run.c.id)
        .limit(_AT_ONCE)
    ).all():
        for row in rows:
            sender = f"person {row.uploaded_by}" if row.token_id is None else f"token {row.token_id}"
            digest = hashlib.sha256(f"{sender}\n{row.idempotency_key}".encode()).hexdigest()
            connection.execute(run.update().where(run.c.id == row.id).values(idempotency_key=digest))
        after = rows[-1].id
