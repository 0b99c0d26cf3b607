"""Build the web application from settings, routers and middlewares."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version

from anyio import CapacityLimiter
from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute

from app.access.audit import api as audit_api
from app.access.audit import router as audit_pages
from app.access.check import AccessMiddleware
from app.access.groups import api as groups_api
from app.access.groups import router as group_pages
from app.access.guards import (
    BodyLimitMiddleware,
    CrossSiteMiddleware,
    HeadMiddleware,
    HostMiddleware,
    OverloadMiddleware,
    SlowBodyMiddleware,
)
from app.access.invitations import api as invitations_api
from app.access.invitations import router as invitation_pages
from app.access.limits import Counting, Guesses
from app.access.members_api import router as members_api
from app.access.members_api import users_router as users_api
from app.access.members_pages import router as members_pages
from app.access.members_pages import users_router as users_pages
from app.access.oidc import router as oidc_pages
from app.access.pages import api as account_api
from app.access.pages import confirm_router as confirm_pages
from app.access.pages import pages as account_pages
from app.access.pages import router as access_pages
from app.access.pages import second_factor_router as second_factor_pages
from app.access.pages import whoami_router as whoami_api
from app.access.routes import describe_access, route_table
from app.access.share_links import api as share_links_api
from app.access.share_links import router as share_link_pages
from app.access.users_import import api as users_import_api
from app.access.users_import import router as users_import_pages
from app.compare.api import router as compare_api
from app.compare.pages import router as compare_pages
from app.experiments.api import router as experiments_api
from app.experiments.loop_page import api as loop_api
from app.experiments.loop_page import router as journey_pages
from app.experiments.pages import router as experiment_pages
from app.experiments.sweep_pages import api as sweep_api
from app.experiments.sweep_pages import router as sweep_pages
from app.history.api import router as history_api
from app.history.badges import router as badges
from app.history.pages import router as history_pages
from app.leaderboards.api import router as leaderboards_api
from app.leaderboards.matrix_pages import api as matrix_api
from app.leaderboards.matrix_pages import router as matrix_pages
from app.leaderboards.pages import router as leaderboard_pages
from app.leaderboards.scaling_pages import api as scaling_api
from app.leaderboards.scaling_pages import router as scaling_pages
from app.notifications.api import router as notifications_api
from app.notifications.pages import router as notification_pages
from app.overview.dashboard import api as dashboard_api
from app.overview.dashboard import router as dashboard_forms
from app.overview.pages import router as overview_pages
from app.planner.api import router as plan_api
from app.planner.pages import router as plan_pages
from app.playbook.api import router as rules_api
from app.playbook.pages import router as playbook_pages
from app.profiles.api import router as profiles_api
from app.profiles.pages import router as profile_pages
from app.projects.api import router as projects_api
from app.projects.data_api import router as data_api
from app.projects.data_pages import router as data_pages
from app.projects.definitions import api as definitions_api
from app.projects.definitions import router as definitions_pages
from app.projects.pages import router as projects_pages
from app.references.api import router as references_api
from app.references.pages import router as references_pages
from app.regressions.api import router as regressions_api
from app.regressions.bisect import router as bisect_api
from app.regressions.feed import router as regression_feed
from app.regressions.pages import router as regressions_pages
from app.reports.api import pages as report_pages
from app.reports.api import router as reports_api
from app.reports.commit import router as commit_reports_api
from app.runs.api import router as runs_api
from app.runs.list_pages import router as run_list
from app.runs.nodes import router as nodes_api
from app.runs.pages import router as runs_pages
from app.runs.palette import router as palette
from app.runs.saved_views import router as views_api
from app.runs.verdict_api import router as verdict_api
from app.service_log import configure_logging
from app.settings import Settings, get_settings, listed
from app.storage.database import make_engine
from app.storage.log_files import LogFiles
from app.suggestions.api import router as suggestions_api
from app.suggestions.check import api as check_api
from app.suggestions.check import pages as check_pages
from app.suggestions.pages import router as suggestion_pages
from app.upgrade.api import router as upgrade_api
from app.upgrade.pages import router as upgrade_pages
from app.watching.api import router as watching_api
from app.watching.pages import router as watching_pages
from app.web import errors
from app.web.assets import mount_assets
from app.web.assets import router as client_file
from app.web.docs_pages import router as glossary
from app.web.health import ServiceMetrics
from app.web.health import router as health
from app.web.help_pages import router as help_pages
from app.web.request import Metrics, RequestFrameMiddleware
from app.web.shared_answers import SharedAnswersMiddleware

COMPUTED_AT_ONCE = {"sqlite": 2, "postgresql": 4}
"""GET requests that one process answers at a time. SQLite runs in the process itself, so with 4 threads 64 readers got
313 answers per second, with 2 threads 445 and with one 395 (`bench/readers.py`). A thread that waits for PostgreSQL
leaves the interpreter to others."""
COMPRESSED_BYTES = 1000
"""Smaller answers fit into one packet."""
COMPRESSION = 4
"""Level of gzip: a list of 107 kB takes 0.5 ms and becomes 10.6 kB; level 9 takes 1.7 ms and saves 1.3 kB of that."""


def create_app(settings: Settings | None = None, *, open_to: Collection[str] | None = None) -> FastAPI:
    """Return the web application. The database must have been migrated (`app.storage.database.migrate`).

    `open_to`: further host names at which it answers without log-ins until it has an administrator; None always
    requires log-ins. Raises UnruledRouteError for a route without an access rule.
    """
    settings = settings or get_settings()
    configure_logging(settings)
    # FastAPI's documentation pages load scripts from a CDN. `/docs` is our own page.
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
    app.state.service_metrics = ServiceMetrics(app.state.metrics.registry)
    counting = Counting(settings)
    app.state.guesses = Guesses(settings, counting)
    app.state.oidc = None
    if settings.oidc_issuer:
        from app.access.identity_provider import Provider  # noqa: PLC0415  authlib takes a tenth of a second to import

        app.state.oidc = Provider(settings)
    app.router.routes.extend(_routes())
    mount_assets(app)
    errors.register(app)
    table = route_table(app)
    describe_access(app, table)
    turns = CapacityLimiter(COMPUTED_AT_ONCE[app.state.engine.dialect.name])
    # The last one added is the outermost.
    app.add_middleware(GZipMiddleware, minimum_size=COMPRESSED_BYTES, compresslevel=COMPRESSION)
    app.add_middleware(BodyLimitMiddleware, table=table, most=settings.max_upload_bytes)
    app.add_middleware(SlowBodyMiddleware, seconds=settings.request_seconds)
    app.add_middleware(SharedAnswersMiddleware, turns=turns)
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
    app.add_middleware(OverloadMiddleware, turns=turns)
    app.add_middleware(RequestFrameMiddleware, metrics=app.state.metrics, public_url=settings.public_url)
    return app


@cache
def _routes() -> list[BaseRoute]:
    """Return the routes of all applications of this process."""
    routers = (
        health,
        access_pages,
        oidc_pages,
        account_pages,
        confirm_pages,
        second_factor_pages,
        account_api,
        whoami_api,
        runs_api,
        nodes_api,
        views_api,
        profiles_api,
        projects_api,
        data_api,
        members_api,
        groups_api,
        invitations_api,
        share_links_api,
        users_import_api,
        users_api,
        audit_api,
        notifications_api,
        history_api,
        leaderboards_api,
        matrix_api,
        regressions_api,
        verdict_api,
        bisect_api,
        reports_api,
        commit_reports_api,
        suggestions_api,
        check_api,
        experiments_api,
        sweep_api,
        loop_api,
        rules_api,
        upgrade_api,
        definitions_api,
        compare_api,
        references_api,
        plan_api,
        scaling_api,
        dashboard_api,
        dashboard_forms,
        overview_pages,
        palette,
        run_list,
        runs_pages,
        report_pages,
        profile_pages,
        suggestion_pages,
        check_pages,
        experiment_pages,
        sweep_pages,
        journey_pages,
        playbook_pages,
        projects_pages,
        data_pages,
        members_pages,
        group_pages,
        invitation_pages,
        share_link_pages,
        users_import_pages,
        users_pages,
        audit_pages,
        notification_pages,
        upgrade_pages,
        history_pages,
        regressions_pages,
        regression_feed,
        leaderboard_pages,
        matrix_pages,
        definitions_pages,
        compare_pages,
        references_pages,
        plan_pages,
        scaling_pages,
        watching_api,
        watching_pages,
        badges,
        glossary,
        client_file,
        help_pages,
    )
    # Not `include_router`, which would read the types of all calls a second time.
    return [route for router in routers for route in router.routes]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.engine.dispose()
