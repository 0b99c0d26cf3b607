"""Common steps of notification tests: add a receiver, process due deliveries, read the log."""

from datetime import timedelta
from typing import Any

from sqlalchemy import Engine
from sqlmodel import Session, col, select, update
from starlette.testclient import TestClient

from app.domain.notifications.events import regression_notification, trial_notification
from app.domain.notifications.messages import PATIENCE
from app.domain.verdict.regression_text import RegressionSummary
from app.pipeline.deliver import deliver
from app.pipeline.notify import put_delivery
from app.pipeline.work import delivery_queue
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.tables import DeliveryRow, ReceiverRow, utc_now
from tests.builders import make_project

PROJECT = "moe-lab"
SUMMARY = RegressionSummary(
    "open", "up to 3.4 % slower", 3.4, 41.0, 2, 12, None, None, "2 jobs slow since #12, about 41 GPU-h/day."
)
API = f"/api/v1/projects/{PROJECT}"


def project(engine: Engine) -> None:
    with transaction(engine) as session:
        make_project(session, PROJECT)


def add(client: TestClient, target: str, kind: str = "webhook", **more: Any) -> dict[str, Any]:
    body = {"name": "ci", "kind": kind, "target": target, "author": "Ada", **more}
    answer = client.post(f"{API}/receivers", json=body)
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    return document


def listen(engine: Engine, target: str, *events: str, stacks: tuple[str, ...] = (), kind: str = "webhook") -> int:
    """A receiver without the door."""
    with transaction(engine) as session:
        row = ReceiverRow(
            project_id=make_project(session, PROJECT).id or 0, kind=kind, name="ci", target=target,
            secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", rules={"events": list(events), "stacks": list(stacks)},
            created_by="Ada",
        )  # fmt: skip
        session.add(row)
        session.flush()
        return row.id or 0


def work_off(engine: Engine, settings: Settings) -> list[bool | None]:
    """Act like a worker that gets every message, including deliveries whose worker was given up."""
    with transaction(engine) as session:
        due = delivery_queue.mark_due(session)
    with read_session(engine) as session:
        enqueued = session.exec(select(DeliveryRow.id).where(DeliveryRow.work == "enqueued")).all()
    return [deliver(engine, settings, delivery_id or 0) for delivery_id in sorted({*due, *enqueued})]


def later(engine: Engine) -> None:
    """The pause before the next attempt is over, and so is every lease."""
    with transaction(engine) as session:
        past = utc_now() - timedelta(seconds=1)
        session.execute(update(DeliveryRow).where(col(DeliveryRow.work) != "").values(lease_until=past))


def a_day_later(engine: Engine) -> None:
    """Make every waiting delivery due."""
    with transaction(engine) as session:
        session.execute(update(DeliveryRow).values(created_at=utc_now() - PATIENCE))


def deliveries(engine: Engine) -> list[DeliveryRow]:
    with read_session(engine) as session:
        return list(session.exec(select(DeliveryRow).order_by(col(DeliveryRow.id))).all())


def states(engine: Engine) -> list[tuple[str, str, int]]:
    """Event, state and attempts of each delivery, oldest first."""
    return [(delivery.event, delivery.state, delivery.attempts) for delivery in deliveries(engine)]


def put_trial(session: Session, receiver_id: int, cause: str = "test:1") -> int:
    notification = trial_notification(project=PROJECT, receiver="ci", path="/", by="Ada", at=utc_now())
    return put_delivery(session, receiver_id, notification, cause) or 0


def put_news(session: Session, receiver_id: int, event: str, number: int) -> int:
    notification = regression_notification(
        f"regression.{event}", project=PROJECT, number=number, metric="step_time_ms", cause="Code.",
        summary=SUMMARY, stacks=[], note="", at=utc_now(),
    )  # fmt: skip
    subject = f"regression:{number}"
    return put_delivery(session, receiver_id, notification, f"{subject}:{event}", subject=subject) or 0


def trial(engine: Engine, target: str, kind: str = "webhook", n: int = 1) -> int:
    receiver_id = listen(engine, target, kind=kind)
    with transaction(engine) as session:
        for number in range(n):
            put_trial(session, receiver_id, f"test:{number}")
    return receiver_id
