"""The service's log: structured lines with the request id, without bodies, headers or secrets.

Tracebacks omit the values of variables, which may hold passwords. It is not part of `app.web`, because the worker logs
as well and loads no web framework.
"""

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.types import Processor

from app.settings import Settings

_SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
_TRACEBACKS = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))


def configure_logging(settings: Settings) -> None:
    """Send our log lines and those of libraries to standard error, in the format and level of the settings."""
    level = getattr(logging, settings.log_level.upper())
    as_json = settings.log_format == "json"
    structlog.configure(
        processors=[*_SHARED, *_last(as_json)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_last(as_json)],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    # The level applies to our lines. Libraries log too much at info.
    root.setLevel(max(level, logging.WARNING))


def _last(as_json: bool) -> tuple[Processor, ...]:
    if as_json:
        return (_TRACEBACKS, structlog.processors.JSONRenderer())
    plain = structlog.dev.plain_traceback
    return (structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain),)
