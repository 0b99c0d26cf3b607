"""`GET /api/v1/upgrade`: the upgrade report as JSON."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from app.domain.access.principal import Action
from app.domain.report.values import comparability_json, difference_json, storable
from app.domain.verdict.upgrade import Pair
from app.storage.upgrade_changes import upgrade_changes
from app.upgrade.pages import COLUMNS, UpgradePage, UpgradeQuery, upgrade_page, upgrade_rows
from app.upgrade.queries import MeasuredUpgrade
from app.upgrade.views import titles_of
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, ReadSession, api_router
from app.web.errors import as_content, documented
from app.web.lists import only_parameters, table_answer, table_format

router = api_router("regressions")

SCHEMA = "threewalls.upgrade/1"
MOST_LISTED = 100


@router.get(
    "/upgrade",
    response_class=JSONResponse,
    responses=documented(404, 406, 422, ok=as_content("text/csv")),
    dependencies=[only_parameters("project", "field", "from", "to", "format")],
)
@requires(Action.READ)
def read_upgrade(
    *,
    request: Request,
    session: ReadSession,
    project: Annotated[str, Query(max_length=100, description="Optional when there is only one project.")] = "",
    field: Annotated[str, Query(max_length=50, description="container, cluster, driver or a version.")] = "container",
    from_: Annotated[str, Query(alias="from", max_length=500, description="The old value.")] = "",
    to: Annotated[str, Query(max_length=500, description="The new value.")] = "",
) -> Response:
    """Compare one value of a field with another over all stacks.

    Without both, `values` and `offers` list the choices. CSV and Parquet (`format`) have one row per stack.
    """
    chosen = table_format(request)
    params = {"project": project, "field": field, "from": from_, "to": to}
    page = upgrade_page(session, UpgradeQuery.from_params(params))
    if chosen != "json":
        return table_answer(chosen, COLUMNS, [upgrade_rows(page)], "upgrade")
    return JSONResponse(storable(_document(page)))


class StackChangeOut(ApiValue):
    """The change of step time of one job, as `GET /api/v1/upgrade` has it."""

    stack_key: str
    job: str
    run_id: int = Field(description="Its first run after the upgrade.")
    others: int = Field(description="Number of fields that changed with it.")
    decision: Literal["regression", "improvement", "no_change", "inconclusive"]
    is_unconfirmed: bool = Field(description="Slower in one run only: not counted as slower.")
    is_in_regression: bool = Field(description="The regression of the upgrade lists it.")
    already_slow: int | None = Field(description="Regression in which the job was slow before: not counted as slower.")
    delta_pct: float
    ci_low_pct: float
    ci_high_pct: float
    interval_level_pct: float | None = Field(
        description="Level of the interval, at which the test decided; null until a change of an earlier version is "
        "judged again."
    )
    runs: int
    from_runs: int


class UpgradeChangeOut(ApiValue):
    project: str
    field: str
    from_value: str
    to_value: str
    at: datetime = Field(description="Position of the first run after it.")
    sentence: str
    stacks: list[StackChangeOut]


class UpgradeChangesOut(BaseModel):
    items: list[UpgradeChangeOut]


@router.get("/upgrades", responses=documented(422), dependencies=[only_parameters("project", "since")])
@requires(Action.READ)
def list_upgrades(
    session: ReadSession,
    project: Annotated[str, Query(max_length=100, description="Its slug; empty for all.")] = "",
    since: Annotated[datetime | None, Query(description="Only upgrades with a first run from then on.")] = None,
) -> UpgradeChangesOut:
    """List upgrades, newest first, with what each changed in the stacks of their jobs, faster or slower."""
    if since is not None and since.tzinfo is None:
        since = since.replace(tzinfo=UTC)
    changes = upgrade_changes(session, project=project, since=since, most=MOST_LISTED)
    return UpgradeChangesOut(items=[UpgradeChangeOut.model_validate(change) for change in changes])


def _document(page: UpgradePage) -> dict[str, Any]:
    query = page.query
    return {
        "schema": SCHEMA,
        "project": query.project,
        "field": query.field,
        "from": query.old or None,
        "to": query.new or None,
        "summary": page.answer,
        **(_measured(page.measured) if page.measured else {"stacks": []}),
        "values": [
            {
                "value": value.value,
                "runs": value.runs,
                "since": value.since and value.since.isoformat(),
                "newest_run": value.newest_run,
            }
            for value in page.values
        ],
        "offers": [{"from": offer.old, "to": offer.new, "stacks": offer.stacks} for offer in page.offers],
    }


def _measured(measured: MeasuredUpgrade) -> dict[str, Any]:
    report = measured.report
    titles = titles_of([pair.new for pair in report.pairs], report.field)
    return {
        "gpu_hours_per_day": measured.gpu_hours_per_day,
        "stacks": [_pair(pair, title, measured) for pair, title in zip(report.pairs, titles, strict=True)],
        "differ_in_more": [
            {
                "from_run": run.old.run,
                "to_run": run.new.run,
                "differences": [difference_json(difference) for difference in run.differences],
            }
            for run in report.near
        ],
        "only_from": [{"run": run.run, "stack_key": run.stack_key} for run in report.only_old],
        "only_to": [{"run": run.run, "stack_key": run.stack_key} for run in report.only_new],
        "regressions": measured.regressions,
    }


def _pair(pair: Pair, title: str, measured: MeasuredUpgrade) -> dict[str, Any]:
    verdict, time, comparability = pair.measured, pair.measured.step_time, comparability_json(pair.comparability)
    if time is not None and pair.word == "unconfirmed":
        time = replace(time, needs_confirmation=True)
    changes = {"step_time": storable(time), "memory": storable(verdict.memory)}
    if not pair.is_counted:
        changes = {name: change and {**change, "decision": None} for name, change in changes.items()}
    if not pair.shares_commits:  # the code may be the cause as well
        comparability["attributed_to"] = None
    return {
        "title": title,
        "stack_key": pair.new.stack_key,
        "from_stack_key": pair.old.stack_key,
        "job": pair.new.job,
        "decision": pair.word,
        "already_slow": pair.already_slow if pair.word == "already slow" else None,
        "interval_level_pct": time and time.interval_level_pct,
        **changes,
        "from_runs": verdict.baseline_used,
        "to_runs": verdict.candidates_used,
        "p_value": pair.discovery and pair.discovery.p_value,
        "q_value": pair.discovery and pair.discovery.q_value,
        "gpu_hours_per_day": measured.costs.get(pair.new.run),
        "shares_commits": pair.shares_commits,
        "judged": pair.is_judged,
        "comparability": comparability,
    }
