"""Give each delivery a message id and a subject, and count what a project sends.

Existing deliveries keep the id with which they were sent; their subject comes from their cause.
"""

import sqlalchemy as sa
from alembic import op
from sqlmodel.sql.sqltypes import UTCDateTime

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_SUBJECTS = ("run:", "regression:")


def upgrade() -> None:
    text = sa.String(length=60)
    op.add_column("delivery", sa.Column("message_id", text, nullable=False, server_default=""))
    op.add_column("delivery", sa.Column("subject", text, nullable=False, server_default=""))
    op.add_column("delivery", sa.Column("settled", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("delivery") as table:
        table.alter_column("message_id", existing_type=text, server_default=None)
        table.alter_column("subject", existing_type=text, server_default=None)
        table.alter_column("settled", existing_type=sa.Boolean(), server_default=None)
    op.create_index("ix_delivery_receiver_subject", "delivery", ["receiver_id", "subject"], unique=False)
    delivery = sa.table(
        "delivery", sa.column("id", sa.Integer), sa.column("cause", sa.String), sa.column("message_id", sa.String),
        sa.column("subject", sa.String),
    )  # fmt: skip
    connection = op.get_bind()
    for number, cause in connection.execute(sa.select(delivery.c.id, delivery.c.cause)).all():
        subject = ":".join(cause.split(":")[:2]) if cause.startswith(_SUBJECTS) else ""
        kept = sa.update(delivery).where(delivery.c.id == number)
        connection.execute(kept.values(message_id=f"delivery-{number}", subject=subject[:60]))
    op.create_table(
        "allowance",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("what", sa.String(length=40), nullable=False),
        sa.Column("began_at", UTCDateTime(), nullable=False),
        sa.Column("used", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=op.f("fk_allowance_project_id_project"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "what", name=op.f("pk_allowance")),
    )


def downgrade() -> None:
    op.drop_table("allowance")
    op.drop_index("ix_delivery_receiver_subject", table_name="delivery")
    for name in ("settled", "subject", "message_id"):
        op.drop_column("delivery", name)
