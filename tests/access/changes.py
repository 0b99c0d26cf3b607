"""For every route that writes: a request to it, and the audit record that it must leave, or why it leaves none."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyotp
from sqlalchemy import func, select
from sqlmodel import SQLModel, col
from starlette.testclient import TestClient

from app.domain.access.principal import Role
from app.storage.database import read_session, transaction
from app.storage.invitations import create_invitation
from app.storage.projects import find_project
from app.storage.tables import (
    AuditEventRow,
    DashboardChartRow,
    DeletionRow,
    ExperimentRow,
    GoldenProposalRow,
    GroupRow,
    InvitationRow,
    PinRow,
    ProfileRow,
    ReceiverRow,
    ReferencePointRow,
    RunRow,
    ShareLinkRow,
    TokenRow,
)
from app.storage.users import find_user
from tests.access.belongings import Belongings, measure_sweep
from tests.access.people import OURS, Teams

PASSWORD, ANOTHER = "a horse, a battery", "another horse, a staple"


@dataclass(frozen=True)
class There:
    """The existing objects at the time of a change, for its parameters."""

    teams: Teams
    client: TestClient
    owned: Belongings

    def newest(self, table: type[SQLModel]) -> str:
        with read_session(self.teams.engine) as session:
            return str(session.execute(select(func.max(table.id))).scalar_one())

    def user(self, name: str) -> str:
        with read_session(self.teams.engine) as session:
            row = find_user(session, name)
            assert row is not None
            return str(row.id)

    def session_key(self) -> str:
        return str(self.client.get("/api/v1/account/sessions").json()["items"][0]["key"])


Named = Callable[[There], str]
Sent = Callable[[There], Any]


@dataclass(frozen=True)
class Change:
    """`of`: the object in the URL, in addition to those of our team.

    `before` and `after`: part of the record. `project` None: the record concerns no project.
    """

    subject: str
    action: str
    sent: Any = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    who: str = "maintainer"
    project: str | None = OURS
    of: Mapping[str, Named] = field(default_factory=dict)


def _of(name: str, table: type[SQLModel]) -> Mapping[str, Named]:
    return {name: lambda there: there.newest(table)}


def _account(name: str) -> Mapping[str, Named]:
    return {"user_id": lambda there: there.user(name)}


_SESSION: Mapping[str, Named] = {"key": lambda there: there.session_key()}
_TOKEN, _EXPERIMENT = _of("token_id", TokenRow), _of("experiment_id", ExperimentRow)
_PROFILE = _of("profile_id", ProfileRow)
_GROUP = _of("group_id", GroupRow)
_SHARE_LINK = _of("link_id", ShareLinkRow)
_INVITATION = _of("invitation_id", InvitationRow)
_RECEIVER, _FIGURE = _of("receiver_id", ReceiverRow), _of("number", ReferencePointRow)
_HOOK = {"name": "pager", "kind": "webhook", "target": "https://1.1.1.1/hook", "events": ["regression.opened"]}
_POINT = {"measured_by": "a lab", "source": "a paper", "date": "2026-08", "project": OURS}
_JOB = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "precision": "bf16"}
_FIGURE_FORM = _POINT | {f"field.{name}": str(value) for name, value in _JOB.items()}
_NOTE = {"note": "a bad node"}
_LINES = "global step {iteration}: loss = {loss} ({step_time_s} sec/step)"
_QUARANTINE = {"before": {"quarantine": ""}, "after": {"quarantine": "a bad node"}}
_RELEASE = {"before": {"quarantine": "a bad node"}, "after": {"quarantine": ""}}
_NEW_TOKEN = {"name": "nightly", "scopes": ["read"], "expires_at": None}


def _run(there: There) -> int:
    return there.owned.run


def _other_proposed(there: There) -> str:
    """Add a proposal of another run of the stack, without a record."""
    with transaction(there.teams.engine) as session:
        other = select(RunRow).where(col(RunRow.stack_key) == there.owned.stack, col(RunRow.id) != there.owned.run)
        run = session.execute(other.limit(1)).scalar_one()
        proposal = GoldenProposalRow(
            project_id=run.project_id, stack_key=run.stack_key, run_id=run.id or 0, proposed_by="contributor"
        )
        session.add(proposal)
        return str(run.id)


def _invited(there: There) -> str:
    """Return the secret of an invitation that the caller created."""
    with transaction(there.teams.engine) as session:
        project = find_project(session, OURS)
        return create_invitation(session, project=project, role=Role.VIEWER, email="", days=7, by="outsider")[1]


def _plan(there: There) -> dict[str, Any]:
    return {"run": _run(there), "knobs": {"ep_overlap": True}, "runs_each": 2}


def _sweep(there: There) -> dict[str, Any]:
    return {"run": _run(there), "field": "mbs", "values": [2, 4, 8], "runs_each": 2}


def _newest_sweep(there: There) -> str:
    with read_session(there.teams.engine) as session:
        return str(session.execute(select(func.max(col(ExperimentRow.sweep_id)))).scalar_one())


_SWEEP: Mapping[str, Named] = {"experiment_id": _newest_sweep}


def _measured_sweep(there: There) -> dict[str, Any]:
    """Send nothing; every value of the newest sweep has a run, so that the sweep can continue."""
    measure_sweep(there.teams.engine, int(_newest_sweep(there)), there.owned.run, OURS)
    return {}


def _regression(there: There) -> dict[str, Any]:
    return {"regressions": [{"id": there.owned.regression}], "assignee": "Ada"}


def _selected(there: There) -> dict[str, Any]:
    body = there.client.get(f"/api/v1/regressions/{there.owned.regression}").json()
    return {"seen": f"{body['id']}@{body['changed_at'].replace('Z', '+00:00')}", "assignee": "Grace"}


_LOG = ("train.log", b"a line")
_SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
_DORA: dict[str, Any] = {"who": "dora", "project": None}
_OVER_ALL: dict[str, Any] = {"who": "administrator", "project": None}

ACCESS: Mapping[str, Change] = {
    "POST /login": Change("account", "logged in", {"name": "dora", "password": PASSWORD}, **_DORA),
    "POST /account/password": Change(
        "account", "password set", {"old": PASSWORD, "new": ANOTHER, "again": ANOTHER}, **_DORA
    ),
    "POST /account/second-factor": Change(
        "account", "second factor added",
        lambda _: {"secret": _SECRET, "code": pyotp.TOTP(_SECRET).now(), "password": ANOTHER}, **_DORA,
    ),
    "POST /account/second-factor/remove": Change(
        "account", "second factor removed",
        lambda _: {"code": pyotp.TOTP(_SECRET).at(time.time() + 30), "password": ANOTHER}, **_DORA,
    ),
    "POST /watching/feed": Change("account", "feed_key_set", **_DORA),
    "POST /settings/account/sessions/others/end": Change(
        "account", "session ended", after={"session": "all others"}, **_DORA
    ),
    "POST /settings/account/sessions/{key}/end": Change("account", "session ended", of=_SESSION, **_DORA),
    "DELETE /api/v1/account/sessions/{key}": Change("account", "session ended", of=_SESSION, **_DORA),
    "POST /logout": Change("account", "logged out", **_DORA),
    "POST /api/v1/users": Change("account", "created", {"name": "Eve"}, after={"name": "Eve"}, **_OVER_ALL),
    "POST /api/v1/users/import": Change(
        "account", "created", {"csv": "name\nFay"}, after={"name": "Fay"}, **_OVER_ALL
    ),
    "POST /settings/users/import": Change(
        "account", "created", {"csv": "name\nGil", "do": "import"}, after={"name": "Gil"}, **_OVER_ALL
    ),
    "PATCH /api/v1/users/{user_id}": Change(
        "account", "disabled", {"disabled": True}, {"disabled": False}, {"disabled": True}, of=_account("Eve"),
        **_OVER_ALL,
    ),
    "POST /api/v1/users/{user_id}/password": Change("account", "password set", of=_account("Eve"), **_OVER_ALL),
    "POST /settings/users": Change("account", "created", {"name": "Max"}, after={"name": "Max"}, **_OVER_ALL),
    "POST /settings/users/{user_id}": Change(
        "account", "administrator", {"do": "make administrator"}, {"administrator": False}, {"administrator": True},
        of=_account("Max"), **_OVER_ALL,
    ),
    "POST /api/v1/projects": Change(
        "project", "created", {"project": "second"}, after={"public": False}, who="administrator", project="second"
    ),
    "POST /settings/projects": Change(
        "project", "created", {"slug": "third"}, after={"slug": "third"}, who="administrator", project="third"
    ),
    "POST /api/v1/runs": Change(
        "project", "created", {"log": _LOG, "meta": '{"project": "begun"}'}, after={"slug": "begun"},
        who="administrator", project="begun",
    ),
    "POST /upload": Change(
        "project", "created", {"log": _LOG, "project": "typed"}, after={"slug": "typed"}, who="administrator",
        project="typed",
    ),
    "PATCH /api/v1/projects/{slug}": Change(
        "project", "public", {"public": True}, {"public": False}, {"public": True}
    ),
    "POST /settings/projects/{slug}/public": Change("project", "public", {}, {"public": True}, {"public": False}),
    "POST /api/v1/projects/{slug}/members": Change(
        "member", "role", {"name": "outsider", "role": "viewer"}, {"role": None}, {"role": "viewer"}
    ),
    "DELETE /api/v1/projects/{slug}/members/{user_id}": Change(
        "member", "role", {}, {"role": "viewer"}, {"role": None}, of=_account("outsider")
    ),
    "POST /settings/projects/{slug}/members": Change(
        "member", "role", {"name": "outsider", "role": "viewer"}, {"role": None}, {"role": "viewer"}
    ),
    "POST /settings/projects/{slug}/members/{user_id}": Change(
        "member", "role", {"role": "contributor"}, {"role": "viewer"}, {"role": "contributor"}, of=_account("outsider")
    ),
    "POST /api/v1/groups": Change("group", "created", {"name": "perf"}, after={"name": "perf"}, **_OVER_ALL),
    "POST /settings/groups": Change("group", "created", {"name": "kernel"}, after={"name": "kernel"}, **_OVER_ALL),
    "POST /api/v1/groups/{group_id}/members": Change(
        "group", "member added", {"name": "outsider"}, after={"name": "kernel", "user": "outsider"}, of=_GROUP,
        **_OVER_ALL,
    ),
    "DELETE /api/v1/groups/{group_id}/members/{user_id}": Change(
        "group", "member removed", after={"user": "outsider"}, of=_GROUP | _account("outsider"), **_OVER_ALL
    ),
    "POST /settings/groups/{group_id}": Change(
        "group", "member added", {"name": "viewer"}, after={"user": "viewer"}, of=_GROUP, **_OVER_ALL
    ),
    "POST /api/v1/projects/{slug}/groups": Change(
        "group", "role", {"name": "kernel", "role": "viewer"}, {"role": None}, {"role": "viewer"}
    ),
    "POST /settings/projects/{slug}/groups": Change(
        "group", "role", {"name": "kernel", "role": "maintainer"}, {"role": "viewer"}, {"role": "maintainer"}
    ),
    "DELETE /api/v1/projects/{slug}/groups/{group_id}": Change(
        "group", "role", {}, {"role": "maintainer"}, {"role": None}, of=_GROUP
    ),
    "DELETE /api/v1/groups/{group_id}": Change("group", "deleted", before={"name": "kernel"}, of=_GROUP, **_OVER_ALL),
    "POST /api/v1/projects/{slug}/tokens": Change(
        "token", "created", _NEW_TOKEN, after={"name": "nightly", "scopes": ["read"], "expires_at": None}
    ),
    "DELETE /api/v1/projects/{slug}/tokens/{token_id}": Change(
        "token", "revoked", before={"name": "nightly"}, of=_TOKEN
    ),
    "POST /settings/projects/{slug}/tokens": Change(
        "token", "created", {"name": "weekly", "scopes": ["upload"], "life": "never"}, after={"scopes": ["upload"]}
    ),
    "POST /settings/projects/{slug}/tokens/{token_id}/revoke": Change(
        "token", "revoked", before={"name": "weekly"}, of=_TOKEN
    ),
    "POST /api/v1/projects/{slug}/share-links": Change(
        "share link", "created", lambda there: {"page": f"/runs/{_run(there)}", "days": 2}
    ),
    "DELETE /api/v1/projects/{slug}/share-links/{link_id}": Change("share link", "revoked", of=_SHARE_LINK),
    "POST /settings/projects/{slug}/share-links": Change(
        "share link", "created", lambda there: {"page": f"/runs/{_run(there)}", "days": "7"}
    ),
    "POST /settings/projects/{slug}/share-links/{link_id}/revoke": Change("share link", "revoked", of=_SHARE_LINK),
    "POST /api/v1/projects/{slug}/invitations": Change(
        "invitation", "created", {"role": "viewer", "email": "ada@example.org"}, after={"role": "viewer"}
    ),
    "DELETE /api/v1/projects/{slug}/invitations/{invitation_id}": Change("invitation", "revoked", of=_INVITATION),
    "POST /settings/projects/{slug}/invitations": Change("invitation", "created", {"role": "viewer", "days": "7"}),
    "POST /settings/projects/{slug}/invitations/{invitation_id}/revoke": Change(
        "invitation", "revoked", of=_INVITATION
    ),
    "POST /invite/{secret}": Change("invitation", "accepted", who="outsider", of={"secret": _invited}),
    "POST /badges/{stack}/renew": Change("project", "renew_badges"),
}  # fmt: skip

RUNS: Mapping[str, Change] = {
    "PATCH /api/v1/runs/{run_id}/contract": Change(
        "run", "contract", {"fields": {"cluster": "eos"}}, {"cluster": None}, {"cluster": "eos"}
    ),
    "POST /runs/{run_id}/contract": Change(
        "run", "contract", {"field.gpu": "B200"}, {"gpu": "H100"}, {"gpu": "B200"}
    ),
    "PATCH /api/v1/runs/{run_id}": Change("run", "correct", {"notes": "slow *node*"}, after={"notes": "slow *node*"}),
    "PATCH /api/v1/runs": Change(
        "run", "correct", lambda there: {"runs": [_run(there)], "branch": "other"}, after={"branch": "other"}
    ),
    "POST /runs": Change(
        "run", "correct", lambda there: {"run": _run(there), "action": "tag", "tag": "seen"},
        {"tags": ["overlap"]}, {"tags": ["overlap", "seen"]},
    ),
    "POST /runs/{run_id}/correct": Change(
        "run", "correct", {"name": "renamed", "branch": "main", "notes": "slow *node*"}, {"branch": "other"},
        {"branch": "main", "name": "renamed"},
    ),
    "PUT /api/v1/runs/{run_id}/read-as": Change(
        "run", "contract", {"read_as": _LINES}, {"read_as": None}, {"read_as": _LINES}
    ),
    "POST /runs/{run_id}/read-as": Change("run", "contract", {"read_as": ""}, {"read_as": _LINES}, {"read_as": None}),
    "PATCH /api/v1/runs/{run_id}/facts": Change(
        "run", "facts", {"facts": {"oom_phase": "warmup"}}, {"oom_phase": None}, {"oom_phase": "warmup"}
    ),
    "POST /runs/{run_id}/facts": Change(
        "run", "facts", {"fact.oom_phase": "setup"}, {"oom_phase": "warmup"}, {"oom_phase": "setup"}
    ),
    "POST /api/v1/runs/{run_id}/logs": Change(
        "run", "appended", b"one more line\n", {"reception": "whole", "bytes": 0}, {"reception": "whole", "bytes": 14}
    ),
    "POST /api/v1/runs/{run_id}/profiles": Change(
        "run", "profile_attached", {"profile": ("rank-0.json", b"{}")}, after={"files": ["rank-0.json"]}
    ),
    "POST /runs/{run_id}/profiles": Change(
        "run", "profile_attached", {"profile": ("rank-1.json", b"[]")}, after={"files": ["rank-1.json"]}
    ),
    "POST /api/v1/runs/{run_id}/profiles/{profile_id}/confirm": Change("run", "profile_confirmed"),
    "POST /runs/{run_id}/profiles/{profile_id}/confirm": Change("run", "profile_confirmed"),
    "DELETE /api/v1/runs/{run_id}/profiles/{profile_id}": Change("run", "profile_removed"),
    "POST /runs/{run_id}/profiles/{profile_id}/remove": Change("run", "profile_removed", of=_PROFILE),
    "POST /api/v1/runs/{run_id}/quarantine": Change("run", "quarantine", _NOTE, **_QUARANTINE),
    "POST /api/v1/runs/{run_id}/release": Change("run", "release", **_RELEASE),
    "POST /runs/{run_id}/quarantine": Change("run", "quarantine", _NOTE, **_QUARANTINE),
    "POST /runs/{run_id}/release": Change("run", "release", **_RELEASE),
    "POST /api/v1/runs/{run_id}/pin": Change("stack", "pin", {}, {"pinned": []}),
    "POST /api/v1/runs/{run_id}/unpin": Change("stack", "unpin", {}, {}, {"pinned": []}),
    "POST /runs/{run_id}/pin": Change("stack", "pin", {}, {"pinned": []}),
    "POST /runs/{run_id}/unpin": Change("stack", "unpin", {}, {}, {"pinned": []}),
    "POST /history/{stack}/pin": Change("stack", "pin", lambda there: {"run": _run(there)}, {"pinned": []}),
    "POST /history/{stack}/unpin": Change(
        "stack", "unpin", lambda there: {"pin": there.newest(PinRow)}, {}, {"pinned": []}
    ),
    "POST /api/v1/runs/{run_id}/propose": Change("stack", "propose_pin", {}, {"pinned": []}, who="contributor"),
    "POST /api/v1/runs/{run_id}/decline": Change("stack", "decline_pin", _NOTE),
    "POST /runs/{run_id}/propose": Change("stack", "propose_pin", {}, {"pinned": []}, who="contributor"),
    "POST /api/v1/runs/{run_id}/approve": Change("stack", "pin", {}, {"pinned": []}),
    "POST /runs/{run_id}/decline": Change("stack", "decline_pin", _NOTE, of={"run_id": _other_proposed}),
    "POST /runs/{run_id}/approve": Change("stack", "pin", {}, of={"run_id": _other_proposed}),
    "PATCH /api/v1/regressions/{regression_id}": Change(
        "regression", "changed", {"state": "acknowledged"}, {"state": "open"}, {"state": "acknowledged"}
    ),
    "PATCH /api/v1/regressions": Change("regression", "changed", _regression, {"assignee": ""}, {"assignee": "Ada"}),
    "POST /regressions": Change("regression", "changed", _selected, {"assignee": "Ada"}, {"assignee": "Grace"}),
    "POST /regressions/{regression_id}": Change(
        "regression", "changed", {"state": "expected", "note": "wanted"}, {"state": "acknowledged"},
        {"state": "expected"},
    ),
    "POST /regressions/undo": Change(
        "regression", "undone", lambda there: {"event": there.newest(AuditEventRow)}, {"state": "expected"},
        {"state": "acknowledged"},
    ),
    "POST /api/v1/experiments": Change("experiment", "plan", _plan, after={"runs_each": 2}),
    "PATCH /api/v1/experiments/{experiment_id}": Change(
        "experiment", "withdrawn", {"state": "withdrawn"}, {"state": "planned"}, {"state": "withdrawn"}, of=_EXPERIMENT
    ),
    "POST /runs/{run_id}/experiments": Change(
        "experiment", "plan", {"field": "ep_overlap", "value": "true", "runs_each": "3"}, after={"runs_each": 3}
    ),
    "POST /experiments/{experiment_id}": Change(
        "experiment", "rejected", {"decision": "reject", "note": "no time"}, {"state": "planned"},
        {"state": "rejected"}, of=_EXPERIMENT,
    ),
    "POST /api/v1/sweeps": Change("experiment", "plan", _sweep, after={"runs_each": 1}),
    "PATCH /api/v1/experiments/{experiment_id}/sweep": Change(
        "experiment", "rejected", _measured_sweep, {"state": "done"}, {"state": "rejected"}, of=_SWEEP
    ),
    "POST /runs/{run_id}/sweeps": Change(
        "experiment", "plan", {"field": "mbs", "values": "2,4,8", "runs_each": "2"}, after={"runs_each": 1}
    ),
    "POST /experiments/{experiment_id}/sweep": Change(
        "experiment", "rejected", _measured_sweep, {"state": "done"}, {"state": "rejected"}, of=_SWEEP
    ),
}  # fmt: skip

SETTINGS: Mapping[str, Change] = {
    "PUT /api/v1/projects/{slug}/defaults": Change(
        "project", "defaults", {"fields": {"cluster": "eos"}}, {"cluster": None}, {"cluster": "eos"}
    ),
    "POST /settings/projects/{slug}": Change(
        "project", "defaults", {"field.cluster": "hoth"}, {"cluster": "eos"}, {"cluster": "hoth"}
    ),
    "PUT /api/v1/projects/{slug}/verdicts": Change(
        "project", "verdict_policy", {"reference_job": "guard"}, {"reference_job": None}, {"reference_job": "guard"}
    ),
    "POST /settings/projects/{slug}/verdicts": Change(
        "project", "verdict_policy", {"reference_job": "other"}, {"reference_job": "guard"},
        {"reference_job": "other"},
    ),
    "PATCH /api/v1/projects/{slug}/rules": Change(
        "project", "baseline_branch", {"baseline_branch": "trunk"}, {"baseline_branch": "main"},
        {"baseline_branch": "trunk"},
    ),
    "POST /settings/projects/{slug}/rules": Change(
        "project", "links", {"baseline_branch": "trunk", "commit_url": "https://git.example/{commit}"},
        {"commit_url": ""}, {"commit_url": "https://git.example/{commit}"},
    ),
    "PUT /api/v1/projects/{slug}/quota": Change(
        "project", "quota", {"quota_bytes": 1000}, {"bytes": None}, {"bytes": 1000}, who="administrator"
    ),
    "POST /settings/projects/{slug}/quota": Change(
        "project", "quota", {"quota_bytes": "", "quota_runs_a_day": "7"}, {"bytes": 1000, "runs_a_day": None},
        {"bytes": None, "runs_a_day": 7}, who="administrator",
    ),
    "POST /api/v1/projects/{slug}/receivers/{receiver_id}/test": Change("receiver", "tested"),
    "POST /settings/projects/{slug}/notifications/{receiver_id}/test": Change("receiver", "tested"),
    "POST /api/v1/projects/{slug}/receivers/{receiver_id}/replay": Change("receiver", "replayed_all"),
    "POST /settings/projects/{slug}/notifications/{receiver_id}/replay": Change("receiver", "replayed_all"),
    "POST /api/v1/projects/{slug}/receivers/{receiver_id}/dismiss": Change("receiver", "dismissed"),
    "POST /settings/projects/{slug}/notifications/{receiver_id}/dismiss": Change("receiver", "dismissed"),
    "POST /api/v1/projects/{slug}/deliveries/{delivery_id}/replay": Change("receiver", "replayed"),
    "POST /settings/projects/{slug}/notifications/deliveries/{delivery_id}/replay": Change("receiver", "replayed"),
    "POST /api/v1/projects/{slug}/receivers": Change("receiver", "added", _HOOK, after={"name": "pager"}),
    "PATCH /api/v1/projects/{slug}/receivers/{receiver_id}": Change(
        "receiver", "changed", {"name": "bell"}, {"name": "pager"}, {"name": "bell"}, of=_RECEIVER
    ),
    "POST /api/v1/projects/{slug}/receivers/{receiver_id}/secret": Change("receiver", "secret_renewed", of=_RECEIVER),
    "DELETE /api/v1/projects/{slug}/receivers/{receiver_id}": Change(
        "receiver", "deleted", before={"name": "bell"}, of=_RECEIVER
    ),
    "POST /settings/projects/{slug}/notifications": Change("receiver", "added", _HOOK, after={"name": "pager"}),
    "POST /settings/projects/{slug}/notifications/{receiver_id}": Change(
        "receiver", "changed", _HOOK | {"name": "gong"}, {"name": "pager"}, {"name": "gong"}, of=_RECEIVER
    ),
    "POST /settings/projects/{slug}/notifications/{receiver_id}/pause": Change(
        "receiver", "paused", {}, {"enabled": True}, {"enabled": False}, of=_RECEIVER
    ),
    "POST /settings/projects/{slug}/notifications/{receiver_id}/resume": Change(
        "receiver", "resumed", {}, {"enabled": False}, {"enabled": True}, of=_RECEIVER
    ),
    "POST /settings/projects/{slug}/notifications/{receiver_id}/secret": Change(
        "receiver", "secret_renewed", of=_RECEIVER
    ),
    "POST /settings/projects/{slug}/notifications/{receiver_id}/delete": Change(
        "receiver", "deleted", before={"name": "gong"}, of=_RECEIVER
    ),
    "POST /api/v1/references": Change(
        "reference", "add", _POINT | {"contract": _JOB, "step_time_ms": 1.0}, after={"step_time_ms": 1.0}
    ),
    "PATCH /api/v1/references/{number}": Change(
        "reference", "change", {"step_time_ms": 2.0}, {"step_time_ms": 1.0}, {"step_time_ms": 2.0}, of=_FIGURE
    ),
    "DELETE /api/v1/references/{number}": Change("reference", "withdraw", of=_FIGURE),
    "POST /references/new": Change(
        "reference", "add", _FIGURE_FORM | {"step_time_ms": "3"}, after={"step_time_ms": 3.0}
    ),
    "POST /references/{number}/change": Change(
        "reference", "change", _FIGURE_FORM | {"step_time_ms": "4"}, {"step_time_ms": 3.0}, {"step_time_ms": 4.0},
        of=_FIGURE,
    ),
    "POST /references/{number}/withdraw": Change("reference", "withdraw", of=_FIGURE),
}  # fmt: skip

_DELETION = _of("deletion_id", DeletionRow)


def _undo(there: There) -> dict[str, str]:
    return {"number": there.newest(DeletionRow)}


_VIEW = {"name": lambda _: "slow ones"}

_CHART = _of("chart_id", DashboardChartRow)


def _page(there: There) -> dict[str, str]:
    return {"page": f"/history/{there.owned.stack}"}


DATA: Mapping[str, Change] = {
    "POST /api/v1/projects/{slug}/dashboard": Change("project", "chart_added", _page),
    "POST /settings/projects/{slug}/dashboard": Change(
        "project", "chart_added", lambda there: {"page": f"/compare?a={_run(there)}&b={_run(there)}"}
    ),
    "PATCH /api/v1/projects/{slug}/dashboard/{chart_id}": Change(
        "project", "chart_moved", {"position": 1}, {"position": 2}, {"position": 1}, of=_CHART
    ),
    "POST /settings/projects/{slug}/dashboard/{chart_id}": Change(
        "project", "chart_removed", {"do": "remove"}, of=_CHART
    ),
    "DELETE /api/v1/projects/{slug}/dashboard/{chart_id}": Change("project", "chart_removed", of=_CHART),
    "POST /runs/views": Change(
        "project",
        "view_saved",
        {"project": OURS, "name": "by form", "query": "status=failed"},
        after={"view": "by form", "query": "status=failed"},
    ),
    "PUT /api/v1/projects/{slug}/views/{name}": Change(
        "project", "view_saved", {"query": "verdict=regression"}, after={"view": "slow ones"}, of=_VIEW
    ),
    "DELETE /api/v1/projects/{slug}/views/{name}": Change(
        "project", "view_deleted", before={"view": "slow ones"}, of=_VIEW
    ),
    "PUT /api/v1/projects/{slug}/retention": Change("project", "retention", {"logs_days": 90}, after={"logs_days": 90}),
    "POST /settings/projects/{slug}/storage": Change(
        "project", "retention", {"failed_days": "30"}, {"logs_days": 90}, {"failed_days": 30}
    ),
    "DELETE /api/v1/runs/{run_id}": Change("run", "delete", after={"runs": 1}),
    "POST /api/v1/projects/{slug}/deletions/{deletion_id}/undo": Change("project", "undo_delete", of=_DELETION),
    "POST /api/v1/projects/{slug}/deletions": Change(
        "run", "delete", lambda there: {"what": "runs", "runs": [_run(there)]}, after={"runs": 1}
    ),
    "POST /settings/projects/{slug}/undo": Change("project", "undo_delete", _undo),
    "POST /settings/projects/{slug}/delete": Change("run", "delete", lambda there: {"runs": str(_run(there))}),
    "POST /api/v1/projects/{slug}/archive": Change("project", "archived", after={"archived": True}),
    "POST /api/v1/projects/{slug}/unarchive": Change("project", "restored", after={"archived": False}),
    "POST /settings/projects/{slug}/archive": Change("project", "archived", after={"archived": True}),
    "POST /settings/projects/{slug}/unarchive": Change("project", "restored", after={"archived": False}),
}

CHANGES: Mapping[str, Change] = {**ACCESS, **RUNS, **SETTINGS, **DATA}
"""In the order in which they are made. Uploads change none of it but by the project that they begin."""

NO_RECORD: Mapping[str, str] = {
    "POST /account/confirm": "confirms the password; the change that follows has its own record",
    "POST /api/v1/check": "answers a question and stores nothing",
    "POST /upload/preview": "answers what a file shows, and stores nothing",
    "POST /api/v1/uploads/preview": "the same for the client",
    "POST /api/v1/uploads/check": "checks an upload and stores nothing",
    "POST /check": "the same as a form",
    "POST /api/v1/runs/{run_id}/bisect": "answers a question and stores nothing",
    "POST /api/v1/projects/{slug}/deletions/preview": "answers what a deletion would do, and deletes nothing",
    "PUT /api/v1/watching/stacks/{stack}": "a user's own list, which others do not see",
    "DELETE /api/v1/watching/stacks/{stack}": "the same",
    "PUT /api/v1/watching/regressions/{regression_id}": "the same",
    "DELETE /api/v1/watching/regressions/{regression_id}": "the same",
    "POST /watching/stacks/{stack}": "the same as a form",
    "POST /watching/regressions/{regression_id}": "the same as a form",
    "POST /api/v1/definitions/retry": "repeats the service's own work; nothing that a user stated changes",
    "POST /settings/definitions/retry": "the same as a form",
}
