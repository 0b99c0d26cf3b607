"""The SQL statements that an engine executes."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, event


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    executed: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        executed.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield executed
    finally:
        event.remove(engine, "before_cursor_execute", note)
