"""How much a project may do of something within a time, whoever asks and however many processes serve them.

Counted in the database, so that it holds where requests and workers are many, and after what was counted is deleted.
"""

import math
from datetime import timedelta

from sqlmodel import Session

from app.storage.notice_tables import AllowanceRow
from app.storage.run_records import aware
from app.storage.tables import ProjectRow, utc_now


def use(session: Session, project_id: int, what: str, amount: int, *, most: int, within: timedelta) -> int:
    """Uses some of it in the caller's transaction. Seconds until there is enough again, and nothing used; else 0.

    The time begins with the first use. What is more than `most` at once is allowed when nothing was used yet.
    """
    session.get_one(ProjectRow, project_id, with_for_update=True)  # nobody else counts meanwhile
    now = utc_now()
    row = session.get(AllowanceRow, (project_id, what), populate_existing=True)
    if row is None:
        row = AllowanceRow(project_id=project_id, what=what)
        session.add(row)
    if aware(row.began_at) + within <= now:
        row.began_at, row.used = now, 0
    if row.used and row.used + amount > most:
        return max(1, math.ceil((aware(row.began_at) + within - now).total_seconds()))
    row.used += amount
    return 0
