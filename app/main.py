"""create_app(): settings, routers, error pages; no logic."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute

from app.access.account_routes import api as account_api
from app.access.account_routes import pages as account_pages
from app.access.confirm import router as confirm_pages
from app.access.oidc.routes import router as oidc_pages
from app.access.routes import router as access_pages
from app.access.second_factor_routes import router as second_factor_pages
from app.access.whoami_api import router as whoami_api
from app.auditing.api import router as audit_api
from app.auditing.routes import router as audit_pages
from app.badges.routes import router as badges
from app.compare.api import router as compare_api
from app.compare.routes import router as compare_pages
from app.definitions.api import router as definitions_api
from app.definitions.routes import router as definitions_pages
from app.experiments.api import router as experiments_api
from app.experiments.journey_routes import router as journey_pages
from app.experiments.plan_page import offer_of_rule
from app.experiments.plan_routes import router as plan_forms
from app.experiments.routes import router as experiment_pages
from app.history.api import router as history_api
from app.history.routes import router as history_pages
from app.leaderboards.api import router as leaderboards_api
from app.leaderboards.routes import router as leaderboard_pages
from app.members.api import router as members_api
from app.members.people_api import router as people_api
from app.members.people_routes import router as people_pages
from app.members.routes import router as members_pages
from app.notifications.api import router as notifications_api
from app.notifications.routes import router as notification_pages
from app.overview.routes import router as overview_pages
from app.planner.api import router as plan_api
from app.planner.routes import router as plan_pages
from app.playbook.api import router as rules_api
from app.playbook.routes import router as playbook_pages
from app.projects.api import router as projects_api
from app.projects.quota_api import router as quota_api
from app.projects.quota_routes import router as quota_pages
from app.projects.routes import router as projects_pages
from app.recommendations.advise import first_suggestion
from app.recommendations.api import router as suggestions_api
from app.recommendations.routes import router as suggestion_pages
from app.references.api import router as references_api
from app.references.routes import router as references_pages
from app.regressions.api import router as regressions_api
from app.regressions.routes import router as regressions_pages
from app.regressions.verdict_api import router as verdict_api
from app.reports.api import router as reports_api
from app.runs.amend_api import router as amend_api
from app.runs.api import router as runs_api
from app.runs.append_api import router as append_api
from app.runs.decision_api import router as decision_api
from app.runs.decision_routes import router as run_decisions
from app.runs.form_routes import router as run_forms
from app.runs.routes import router as runs_pages
from app.scaling.api import router as scaling_api
from app.scaling.routes import router as scaling_pages
from app.settings import Settings, get_settings, listed
from app.storage.database import make_engine
from app.storage.log_files import LogFiles
from app.storage.rules_in_force import rules_in_force
from app.upgrade.api import router as upgrade_api
from app.upgrade.routes import router as upgrade_pages
from app.web import error_pages
from app.web.access.described import describe_access
from app.web.access.middleware import AccessMiddleware
from app.web.access.route_table import route_table
from app.web.assets import mount_assets
from app.web.body_limit import BodyLimitMiddleware
from app.web.cross_site import CrossSiteMiddleware
from app.web.glossary import router as glossary
from app.web.head import HeadMiddleware
from app.web.health import router as health
from app.web.hosts import HostMiddleware
from app.web.limits.counting import Counting
from app.web.limits.guesses import Guesses
from app.web.logging import configure_logging
from app.web.metrics import Metrics
from app.web.overload import OverloadMiddleware
from app.web.reference import router as reference
from app.web.request_frame import RequestFrameMiddleware
from app.web.slow_body import SlowBodyMiddleware


def create_app(settings: Settings | None = None, *, open_to: Collection[str] | None = None) -> FastAPI:
    """The web application. The database must have been migrated (`app.storage.database.migrate`).

    It asks everybody to log in, unless `open_to` is given: then it answers without, as long as it has no administrator,
    at names of this machine and at those. Raises UnruledRouteError when a route does not say who may use it.
    """
    settings = settings or get_settings()
    configure_logging(settings)
    # FastAPI's own documentation pages load their script from a CDN; `/docs` is ours.
    app = FastAPI(
        title="Threewalls",
        version=version("threewalls"),
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.engine = make_engine(settings)
    app.state.log_files = LogFiles.from_settings(settings)
    app.state.metrics = Metrics()
    counting = Counting(settings)
    app.state.guesses = Guesses(settings, counting)
    app.state.oidc = None
    if settings.oidc_issuer:
        from app.access.oidc.provider import Provider  # noqa: PLC0415  its packages take a tenth of a second to import

        app.state.oidc = Provider(settings)
    app.state.next_step = lambda session, run_id: first_suggestion(session, run_id, rules_in_force(settings))
    app.state.plan_offer = lambda session, run_id, rule: offer_of_rule(session, settings, run_id, rule)
    app.router.routes.extend(_routes())
    mount_assets(app)
    error_pages.register(app)
    table = route_table(app)
    describe_access(app, table)
    # The last one added is the outermost.
    app.add_middleware(BodyLimitMiddleware, table=table, most=settings.max_upload_bytes)
    app.add_middleware(SlowBodyMiddleware, seconds=settings.request_seconds)
    app.add_middleware(
        AccessMiddleware,
        engine=app.state.engine,
        settings=settings,
        table=table,
        open_to=open_to,
        counting=counting,
    )
    app.add_middleware(CrossSiteMiddleware, public_url=settings.public_url)
    app.add_middleware(HostMiddleware, allowed=listed(settings.allowed_hosts))
    app.add_middleware(HeadMiddleware)
    app.add_middleware(OverloadMiddleware)
    app.add_middleware(RequestFrameMiddleware, metrics=app.state.metrics, public_url=settings.public_url)
    return app


@cache
def _routes() -> list[BaseRoute]:
    """What all applications of a process answer: FastAPI reads the types of 200 calls for it, which takes a while."""
    # The names of calls, and anchors in the reference
    together = APIRouter(generate_unique_id_function=lambda route: route.name)
    for router in (
        health,
        access_pages,
        oidc_pages,
        account_pages,
        confirm_pages,
        second_factor_pages,
        account_api,
        whoami_api,
        runs_api,
        append_api,
        amend_api,
        decision_api,
        projects_api,
        quota_api,
        members_api,
        people_api,
        audit_api,
        notifications_api,
        history_api,
        leaderboards_api,
        regressions_api,
        verdict_api,
        reports_api,
        suggestions_api,
        experiments_api,
        rules_api,
        upgrade_api,
        definitions_api,
        compare_api,
        references_api,
        plan_api,
        scaling_api,
        overview_pages,
        runs_pages,
        run_forms,
        run_decisions,
        suggestion_pages,
        plan_forms,
        experiment_pages,
        journey_pages,
        playbook_pages,
        projects_pages,
        quota_pages,
        members_pages,
        people_pages,
        audit_pages,
        notification_pages,
        upgrade_pages,
        history_pages,
        regressions_pages,
        leaderboard_pages,
        definitions_pages,
        compare_pages,
        references_pages,
        plan_pages,
        scaling_pages,
        badges,
        glossary,
        reference,
    ):
        together.include_router(router)
    return together.routes


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.engine.dispose()
