"""`threewalls sync`: sends what waits in the spool, each upload once in effect."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from app.client import spool
from app.client.deliver import Delivered, deliver
from app.client.errors import Refused
from app.client.plain import plain
from app.client.service import Service
from app.errors import ThreewallsError


@dataclass(slots=True)
class Synced:
    """`busy`: those that another sync has just now. `elsewhere`: those of other services. `failed`: what to tell."""

    sent: list[Delivered] = field(default_factory=list)
    busy: int = 0
    elsewhere: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def sync(service: Service, folder: Path, *, everything: bool, told: Callable[[str], None]) -> Synced:
    """Send what is for this service, or all with `everything`. Raises Unreachable; what was not sent stays."""
    spool.sweep(folder)
    uploads, strange = spool.waiting(folder)
    done = Synced(failed=strange)
    for one in uploads:
        if one.url != service.settings.url and not everything:
            done.elsewhere[one.url] = done.elsewhere.get(one.url, 0) + 1
            continue
        with spool.taken(one) as mine:
            if not mine:
                done.busy += 1
                continue
            try:
                run = deliver(service, one.upload)
            except Refused as error:
                again = "Send it again then." if error.may_pass else "Delete the folder when it is of no use."
                done.failed.append(f"{one.folder} was refused: {plain(error.detail)} It stays there. {again}")
                continue
            except (OSError, spool.SpoolError, ThreewallsError) as error:
                if not one.folder.exists():
                    done.busy += 1
                    continue
                if not isinstance(error, OSError):
                    raise
                done.failed.append(f"{one.folder} cannot be read: {error}.")
                continue
            spool.remove(one)
            done.sent.append(run)
            told(f"run {run.id}: {run.url}" + ("" if run.created else " (was there already)"))
    return done
