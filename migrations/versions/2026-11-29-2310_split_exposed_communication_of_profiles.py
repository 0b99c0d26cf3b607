"""Split the exposed communication of profiles that were read before it was split, by the classes of their typical step.

Their files are gone, so they cannot be read again.
"""

import json

import sqlalchemy as sa
import zstandard
from alembic import op

revision = "0085"
down_revision = "0084"
branch_labels = None
depends_on = None

_CLASSES = {
    "exposed_collective_frac": ("comm.collective", "comm.tp", "comm.copy"),
    "exposed_p2p_frac": ("comm.p2p", "comm.copy"),
    "exposed_ep_frac": ("comm.ep",),
}
_profile = sa.table("profile", sa.column("id"), sa.column("facts", sa.JSON), sa.column("document"))


def upgrade() -> None:
    ids = op.get_bind().execute(sa.select(_profile.c.id).where(_profile.c.document.is_not(None))).scalars().all()
    for profile_id in ids:  # one at a time, because documents are large
        own = _profile.c.id == profile_id
        row = op.get_bind().execute(sa.select(_profile.c.facts, _profile.c.document).where(own)).one()
        if row.facts.get("exposed_comm_frac") is None or "exposed_collective_frac" in row.facts:
            continue
        split = _split(json.loads(zstandard.ZstdDecompressor().decompress(row.document, max_output_size=256 << 20)))
        most = row.facts["exposed_comm_frac"]
        facts = {name: None if share is None else min(share, most) for name, share in split.items()}
        op.get_bind().execute(_profile.update().where(own).values(facts=row.facts | facts))


def _split(document: dict[str, object]) -> dict[str, float | None]:
    """Return the shares of the step; None for experts if no kernel is known to be of them."""
    match document.get("view"):
        case {"window": {"window_ms": float(step)}, "classes": list(rows)} if step:
            exposed = {row["class"]: row["exposed_ms"] for row in rows if row["exposed_ms"] is not None}
        case _:
            return {}
    shares = {name: sum(exposed.get(part, 0.0) for part in parts) / step for name, parts in _CLASSES.items()}
    return shares | ({} if "comm.ep" in exposed else {"exposed_ep_frac": None})


def downgrade() -> None:
    pass
