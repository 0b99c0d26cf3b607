"""Data of two teams: one object of each kind that a URL can name, recognisable by the project's name."""

from dataclasses import dataclass, replace

from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.access.principal import Role
from app.domain.notifications.events import Notification
from app.domain.references.point import published
from app.pipeline.decisions import pin, propose, quarantine
from app.storage.database import transaction
from app.storage.experiments import sweep_of
from app.storage.invitations import create_invitation
from app.storage.json_text import to_json
from app.storage.profiles import pack
from app.storage.projects import add_chart
from app.storage.share_links import make_share_link
from app.storage.tables import DeliveryRow, ExperimentRow, ProfileRow, ReceiverRow, ReferencePointRow, RunRow, utc_now
from app.storage.users import create_group, find_group
from tests.builders import add_availability, make_leaderboard, make_project, make_stack
from tests.domain.profiles.traces import document, event, read, trace_bytes
from tests.regressions.triaged import make_regression, make_slow_stack


@dataclass(frozen=True)
class Belongings:
    run: int
    regression: int
    experiment: int
    reference: int
    stack: str
    slug: str
    receiver: int = 0
    delivery: int = 0
    read: int = 0
    """A run whose log a worker read."""
    profile: int = 0

    def params(self) -> dict[str, str]:
        """For the parameters of any address."""
        return {
            "run_id": str(self.run), "regression_id": str(self.regression), "experiment_id": str(self.experiment),
            "profile_id": str(self.profile), "receiver_id": str(self.receiver), "delivery_id": str(self.delivery),
            "number": str(self.reference), "reference_id": str(self.reference), "stack": self.stack, "slug": self.slug,
            "part": "runs",
            "rule": "eo-enable", "position": "0", "kind": "svg", "hardware": "h100", "family": "qwen3-30b-a3b",
            "user_id": "1", "group_id": "1", "token_id": "1", "deletion_id": "1", "name": "slow ones", "link_id": "1",
            "invitation_id": "1", "chart_id": "1",
            "secret": "0" * 43, "key": "0" * 16, "commit": "0" * 40,
        }  # fmt: skip


def make_belongings(session: Session, slug: str, *, whole: bool = False) -> Belongings:
    """`whole`: with ranked stacks, pins, an unread run in quarantine and facts of containers, but no experiment yet."""
    named = {"branch": "main", "name": f"{slug}-nightly", "ci_url": f"https://ci.example/{slug}"}
    days = (13, 4) if whole else (1, 1)
    slow = make_slow_stack(session, project=slug, stack=slug, days=days, **named)
    regression = make_regression(session, slow, cause=f"Container: {slug}-image:2.", note=f"{slug} has it")
    project = make_project(session, slug).id or 0
    if find_group(session, f"{slug}-group") is None:
        create_group(session, f"{slug}-group", by="test")
    experiment = ExperimentRow(
        project_id=project, baseline_run_id=slow.runs[0], title=f"{slug} tries overlap", stack_key=slow.stack_key,
        baseline_key=slow.config_key, tag=f"{slug}-ab", created_by=f"{slug}-lead", knobs={}, change={}, plan={},
    )  # fmt: skip
    point = replace(published()[0], measured_by=f"{slug}-lab", source=f"a slide of {slug}-lead")
    reference = ReferencePointRow(project_id=project, point=to_json(point), added_by=f"{slug}-lead")
    session.add(reference)
    session.flush()
    if not whole:
        session.add(experiment)
        session.flush()
    else:
        make_leaderboard(session, slug)
        add_chart(session, project, page=f"/history/{slow.stack_key}", title=f"{slug} chart", by=f"{slug}-lead")
        create_invitation(
            session, project=make_project(session, slug), role=Role.VIEWER, email=f"ada@{slug}.example", days=7,
            by=f"{slug}-lead",
        )  # fmt: skip
        make_share_link(session, project_id=project, page=f"/runs/{slow.runs[0]}", days=7, by=f"{slug}-lead")
        pin(session, slow.runs[0], f"{slug}-lead", f"{slug} golden")
        quarantine(session, slow.runs[1], f"{slug}-lead", f"{slug} bad node")
        session.get_one(RunRow, slow.runs[1]).status = "unread"
        propose(session, slow.runs[2], f"{slug}-job", f"{slug} new baseline")
        add_availability(session, slow.runs[2], "deepep")
        session.get_one(RunRow, slow.runs[2]).tags = [f"{slug}-tag"]
    profile = ProfileRow(
        run_id=slow.since, content_key=slug, status="ready", uploaded_by=f"{slug}-lead",
        document=pack(document(read(trace_bytes([event(name=f"{slug}_kernel")])))), identity={"gpu": f"{slug}-gpu"},
        facts={"gpu_idle_frac": 0.5},
    )  # fmt: skip
    session.add(profile)
    session.flush()
    receiver = ReceiverRow(
        project_id=project, kind="webhook", name=f"{slug}-pager", target=f"https://{slug}.example/hook",
        secret=f"whsec_{slug}", created_by=f"{slug}-lead",
    )  # fmt: skip
    session.add(receiver)
    session.flush()
    delivery = DeliveryRow(
        receiver_id=receiver.id or 0, event="test", cause="test", state="failed", work="",
        payload=Notification("test", slug, f"{slug} was told", (), f"/settings/projects/{slug}", utc_now()).as_json(),
    )  # fmt: skip
    session.add(delivery)
    session.flush()
    return Belongings(
        slow.since, regression, experiment.id or 0, reference.id or 0, slow.stack_key, slug, receiver.id or 0,
        delivery.id or 0, profile=profile.id or 0,
    )  # fmt: skip


def measure_sweep(engine: Engine, sweep_id: int, run_id: int, slug: str) -> None:
    """Add a run for every value of a sweep of `mbs`, so that the sweep can go to its next round."""
    with transaction(engine) as session:
        commit = session.get_one(RunRow, run_id).commit
        for experiment in sweep_of(session, sweep_id):
            size = int(experiment.knobs[0].after_text)
            make_stack(
                session, [20_000.0 + 1_000 * size], project=slug, fields={"mbs": size}, commits=[commit],
                purpose="experiment", tags=[experiment.tag, "candidate"],
            )  # fmt: skip
