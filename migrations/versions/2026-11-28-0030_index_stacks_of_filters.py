"""Index stacks by project, model, GPU and verdict in the order of their newest runs."""

from alembic import op

revision = "0080"
down_revision = "0079"
branch_labels = None
depends_on = None

_LISTED = ("runs", "project_id", "model", "gpu", "gpus")


def upgrade() -> None:
    for name in ("project_id", "model", "gpu", "verdict"):
        others = (other for other in _LISTED if other != name)
        op.create_index(f"ix_stack_{name.removesuffix('_id')}_last", "stack", [name, "last_at", "stack_key", *others])


def downgrade() -> None:
    for name in ("project", "model", "gpu", "verdict"):
        op.drop_index(f"ix_stack_{name}_last", "stack")
