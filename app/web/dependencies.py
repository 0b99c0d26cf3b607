"""What routes ask for: the settings, the database, a session for reading, the artifact store, the rules in force."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy import Engine
from sqlmodel import Session

from app.settings import Settings
from app.storage.disk import require_room
from app.storage.log_files import LogFiles
from app.storage.rules_in_force import RulesInForce, rules_in_force
from app.web.request_session import reading, turn_to_read


def get_app_settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def get_engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


def get_log_files(request: Request) -> LogFiles:
    log_files: LogFiles = request.app.state.log_files
    return log_files


def get_rules(request: Request) -> RulesInForce:
    return rules_in_force(get_app_settings(request))


AppSettings = Annotated[Settings, Depends(get_app_settings)]
AppEngine = Annotated[Engine, Depends(get_engine)]
AppLogFiles = Annotated[LogFiles, Depends(get_log_files)]
Rules = Annotated[RulesInForce, Depends(get_rules)]


def room_on_disk(request: Request, settings: AppSettings) -> None:
    """For routes that store what is sent, before they read it. Raises DiskFull."""
    declared = request.headers.get("content-length", "0")
    require_room(settings, int(declared) if declared.isdigit() else 0)


RoomOnDisk = Depends(room_on_disk)


def get_read_session(
    request: Request, _: Annotated[None, Depends(turn_to_read, scope="function")]
) -> Iterator[Session]:
    with reading(request) as session:
        yield session


ReadSession = Annotated[Session, Depends(get_read_session, scope="function")]
"""Ends with the handler, before the answer is sent: who reads slowly holds no connection."""
