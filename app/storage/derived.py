"""Data that database triggers derive from `run`: the choices of filters, the stacks, and the search index.

Pages over a million runs read these small tables instead of all runs. Triggers write them, so that no code that
changes a run can forget them. `install` runs after every upgrade, because a migration that copies the table `run` on
SQLite drops its triggers; what was derived is then derived again.

On PostgreSQL the triggers run at the end of a transaction. A migration that changes rows of `run` and then its columns
executes `SET CONSTRAINTS ALL IMMEDIATE` in between.
"""

from collections.abc import Iterator

import structlog
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError

from app.storage.tables import FILTERS

log = structlog.get_logger(__name__)

FIELDS = ("model", "gpu", "dispatcher", "branch")
"""Columns of `run` whose values are choices of filters."""

NOT_IN_METADATA = ("run_search", "ix_run_lower_name")
"""Names, or prefixes of names, that Alembic must ignore: the search index (a table of trigrams on SQLite, an index of
them on PostgreSQL) and the index of lower-case names."""

_AT_ONCE = 10_000
_MARK = "run_derived_label"
"""The trigger whose existence shows that all others exist, because it was added last."""

_TEXTS = ("name", "branch", '"commit"', "model", "gpu", "dispatcher")


def search_text(of: str) -> str:
    """Return the SQL of the searched text, as the index contains it. `of`: a table, NEW or OLD."""
    # No word of a search contains a space.
    return "lower(" + " || ' ' || ".join(f"coalesce({of}.{name}, '')" for name in _TEXTS) + ")"


def install(connection: Connection) -> None:
    """Create the triggers and derive everything from the runs, unless the triggers exist. All in the

    transaction of the caller, so that readers never see a part of it.
    """
    if is_installed(connection):
        _renew_stack_trigger(connection)
        return
    remove(connection)
    is_sqlite = connection.dialect.name == "sqlite"
    for statement in _SQLITE if is_sqlite else _POSTGRESQL:
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql("DELETE FROM run_value")
    connection.exec_driver_sql("DELETE FROM stack")
    connection.exec_driver_sql("DELETE FROM run_label")
    for first, last in _batches(connection):
        between = f"run.id BETWEEN {first} AND {last}"
        for statement in _labels(
            "run", f"FROM run, {{tags}} WHERE {between} AND", f"FROM run WHERE {between} AND", is_sqlite
        ):
            connection.exec_driver_sql(statement)
        for field in FIELDS:
            connection.exec_driver_sql(_value_of("run", field, f"FROM run WHERE {between} AND"))
        if is_sqlite:
            connection.exec_driver_sql(
                f"INSERT INTO run_search (rowid, text) SELECT id, {search_text('run')} FROM run WHERE {between}"
            )
    # Not in a migration alone: one that copies the table on SQLite loses an index of an expression.
    existing = {column["name"] for column in inspect(connection).get_columns("run")}  # fewer in an earlier revision
    columns = ", ".join(("lower(name)", "id", *(name for name in FILTERS if name in existing)))
    connection.exec_driver_sql(f"CREATE INDEX IF NOT EXISTS ix_run_lower_name ON run ({columns})")
    joined = "group_concat" if is_sqlite else "string_agg"
    connection.exec_driver_sql(_EVERY_STACK.replace("string_agg", joined))
    if not is_sqlite:
        _index_search_text(connection)


def _renew_stack_trigger(connection: Connection) -> None:
    """Replace the trigger of an earlier version that does not look at all columns of a history."""
    is_sqlite = connection.dialect.name == "sqlite"
    name = "run_derived_stack" if is_sqlite else "run_derived_update"
    query = (
        f"SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = '{name}'"
        if is_sqlite
        else f"SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = '{name}' AND tgrelid = 'run'::regclass"
    )
    definition = connection.exec_driver_sql(query).scalar_one()
    if all(column.strip('"') in definition for column in _STACK_CHANGES):
        return
    connection.exec_driver_sql(f"DROP TRIGGER {name}" + ("" if is_sqlite else " ON run"))
    for statement in _SQLITE if is_sqlite else _POSTGRESQL:
        if f"TRIGGER {name} " in statement:
            connection.exec_driver_sql(statement)


def remove(connection: Connection) -> None:
    """Drop the triggers and the index of the search; the tables stay."""
    if connection.dialect.name == "sqlite":
        for name in ("insert", "search", "value", "stack", "delete", "label", "relabel"):
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS run_derived_{name}")
        connection.exec_driver_sql("DROP TABLE IF EXISTS run_search")
    else:
        connection.exec_driver_sql("DROP TRIGGER IF EXISTS run_derived_insert ON run")
        connection.exec_driver_sql("DROP TRIGGER IF EXISTS run_derived_update ON run")
        connection.exec_driver_sql("DROP TRIGGER IF EXISTS run_derived_delete ON run")
        connection.exec_driver_sql("DROP TRIGGER IF EXISTS run_derived_label ON run")
        connection.exec_driver_sql("DROP FUNCTION IF EXISTS run_labels()")
        connection.exec_driver_sql("DROP FUNCTION IF EXISTS run_derived()")
        connection.exec_driver_sql("DROP FUNCTION IF EXISTS run_derived_deleted()")
        connection.exec_driver_sql("DROP INDEX IF EXISTS run_search")


def has_search_index(connection: Connection) -> bool:
    """Return whether the trigrams of the search are indexed. PostgreSQL needs its extension pg_trgm for that."""
    query = (
        "SELECT count(*) FROM sqlite_master WHERE name = 'run_search'"
        if connection.dialect.name == "sqlite"
        else "SELECT count(*) FROM pg_class WHERE relname = 'run_search' AND relkind = 'i'"
    )
    return bool(connection.exec_driver_sql(query).scalar_one())


def is_installed(connection: Connection) -> bool:
    """Return whether all triggers exist."""
    if connection.dialect.name == "sqlite":
        query = f"SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name = '{_MARK}'"
    else:
        query = f"SELECT count(*) FROM pg_trigger WHERE tgname = '{_MARK}' AND tgrelid = 'run'::regclass"
    return bool(connection.exec_driver_sql(query).scalar_one())


def _batches(connection: Connection) -> Iterator[tuple[int, int]]:
    last = connection.exec_driver_sql("SELECT max(id) FROM run").scalar() or 0
    for first in range(1, last + 1, _AT_ONCE):
        yield first, first + _AT_ONCE - 1


def _index_search_text(connection: Connection) -> None:
    """Create the index of the search, or log a warning if the role may not: a search then reads every run."""
    try:
        with connection.begin_nested():
            connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS pg_trgm")
            connection.exec_driver_sql(
                f"CREATE INDEX run_search ON run USING gin (({search_text('run').replace('run.', '')}) gin_trgm_ops)"
            )
    except DBAPIError as error:
        log.warning("search_not_indexed", error=str(error.orig).strip(), help="create the extension pg_trgm")


# --- The statements. A run counts for its stack once it was read.


def _value_of(of: str, field: str, source: str) -> str:
    """Return the statement that adds the value of a field. `source`: how the rows are chosen, before a condition."""
    return (
        f"INSERT INTO run_value (field, project_id, value) SELECT DISTINCT '{field}', {of}.project_id, {of}.{field} "
        f"{source} coalesce({of}.{field}, '') <> '' ON CONFLICT DO NOTHING"
    )


LABELS = {"job": "job", "user": "uploaded_by", "commit": '"commit"'}
"""Labels of a run other than tags, with their columns."""


def _labels(of: str, of_tags: str, source: str, is_sqlite: bool) -> list[str]:
    """Return the statements that add the labels of runs. `of_tags`, `source`: how rows are chosen, before a condition;
    the former joins the tags."""
    tags = f"json_each({of}.tags) AS tag" if is_sqlite else f"json_array_elements_text({of}.tags) AS tag(value)"
    one_tag = "substr(tag.value, 1, 300)"
    statements = [
        f"INSERT INTO run_label (field, value, run_id) SELECT DISTINCT 'tag', {one_tag}, {of}.id "
        f"{of_tags.format(tags=tags)} {one_tag} <> '' ON CONFLICT DO NOTHING"
    ]
    return statements + [
        f"INSERT INTO run_label (field, value, run_id) SELECT '{label}', {of}.{column}, {of}.id "
        f"{source} {of}.{column} <> '' ON CONFLICT DO NOTHING"
        for label, column in LABELS.items()
    ]


def _is_read(of: str) -> str:
    return f"({of}.status IN ('ready', 'failed') AND {of}.stack_key <> '')"


def _is_of(of: str) -> str:
    return f"project_id = {of}.project_id AND stack_key = {of}.stack_key"


_NEWEST = "ORDER BY r.ordered_at DESC, r.id DESC LIMIT 1"
_DISPATCHER = "',' || coalesce({of}.dispatcher, '?') || ','"
"""Names of dispatchers between commas, `?` for unknown."""


def _column(column: str, condition: str, of: str = "stack") -> str:
    """Return the subquery for the value of the newest run of a stack that meets the condition."""
    return (
        f"(SELECT r.{column} FROM run r WHERE r.project_id + 0 = {of}.project_id AND r.stack_key = {of}.stack_key "
        f"AND {condition} {_NEWEST})"
    )


_READ = "r.status IN ('ready', 'failed')"
_JUDGED = f"{_READ} AND r.verdict <> '' AND r.purpose <> 'experiment'"
_COLUMNS = (
    f"last_at = coalesce({_column('ordered_at', _READ)}, last_at), model = {_column('model', _READ)}, "
    f"gpu = {_column('gpu', _READ)}, "
    f"gpus = {_column('gpus', _READ)}, verdict = coalesce({_column('verdict', _JUDGED)}, '')"
)
_LEAVE = f"UPDATE stack SET runs = runs - 1, revision = revision + 1 WHERE {_is_of('OLD')} AND {_is_read('OLD')}"
_JOIN = (
    "INSERT INTO stack (project_id, stack_key, runs, revision, last_at, verdict, dispatchers) SELECT NEW.project_id, "
    f"NEW.stack_key, 1, 0, NEW.ordered_at, '', {_DISPATCHER.format(of='NEW')} WHERE {_is_read('NEW')} "
    "ON CONFLICT (project_id, stack_key) DO UPDATE SET runs = stack.runs + 1, revision = stack.revision + 1"
)
_NAME_DISPATCHER = (
    f"UPDATE stack SET dispatchers = dispatchers || substr({_DISPATCHER.format(of='NEW')}, 2) WHERE {_is_of('NEW')} "
    f"AND {_is_read('NEW')} AND replace(dispatchers, {_DISPATCHER.format(of='NEW')}, '') = dispatchers"
)
_REFRESH = f"UPDATE stack SET {_COLUMNS} WHERE {_is_of('NEW')}"
_REFRESH_OLD = f"UPDATE stack SET {_COLUMNS} WHERE {_is_of('OLD')} AND OLD.stack_key <> NEW.stack_key"
_REFRESH_AFTER_DELETE = f"UPDATE stack SET {_COLUMNS} WHERE {_is_of('OLD')}"
_STACK_CHANGES = (
    *("project_id", "stack_key", "config_key", "status", "reception", "ordered_at", "name", "purpose", "branch"),
    *('"commit"', "job", "model", "gpu", "gpus", "dispatcher", "semantic_class", "outcome", "shape", "fair_for_timing"),
    *("log_step_time", "step_time_se", "window_length", "is_steady", "short", "not_finite", "skipped_share"),
    *("definition_version", "quarantine", "evidence_level", "verdict", "verdict_delta_pct"),
    *("step_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_memory_gib", "processed_at"),
)
"""Columns that a history shows: `stack.revision` grows with each change of them. `processed_at` stands for the contract
and everything else that processing a run again may change."""
_EVERY_STACK = f"""
INSERT INTO stack (project_id, stack_key, runs, revision, last_at, verdict, dispatchers, model, gpu, gpus)
SELECT of_run.project_id, of_run.stack_key, of_run.runs, 0, of_run.last_at,
    coalesce({_column("verdict", _JUDGED, "of_run")}, ''), ',' || of_run.names || ',',
    {_column("model", _READ, "of_run")}, {_column("gpu", _READ, "of_run")},
    {_column("gpus", _READ, "of_run")}
FROM (
    SELECT project_id, stack_key, sum(runs) AS runs, max(last_at) AS last_at, string_agg(name, ',') AS names
    FROM (
        SELECT project_id, stack_key, coalesce(dispatcher, '?') AS name, count(*) AS runs, max(ordered_at) AS last_at
        FROM run WHERE {_is_read("run")} GROUP BY project_id, stack_key, coalesce(dispatcher, '?')
    ) AS of_dispatcher
    GROUP BY project_id, stack_key
) AS of_run
"""


def _differ(names: tuple[str, ...], distinct: str) -> str:
    return " OR ".join(f"OLD.{name} {distinct} NEW.{name}" for name in names)


def _sqlite_trigger(name: str, event: str, statements: list[str]) -> str:
    body = "".join(f"{statement};\n" for statement in statements)
    return f"CREATE TRIGGER run_derived_{name} AFTER {event} BEGIN\n{body}END"


_LABELLED = ("tags", *LABELS.values())
_FORGET_TEXT = f"INSERT INTO run_search (run_search, rowid, text) VALUES ('delete', OLD.id, {search_text('OLD')})"
_NOTE_TEXT = f"INSERT INTO run_search (rowid, text) VALUES (NEW.id, {search_text('NEW')})"
_VALUES = [_value_of("NEW", field, "WHERE") for field in FIELDS]
_SQLITE = (
    "CREATE VIRTUAL TABLE run_search USING fts5(text, content='', columnsize=0, tokenize='trigram')",
    _sqlite_trigger("insert", "INSERT ON run", [_NOTE_TEXT, *_VALUES, _JOIN, _REFRESH]),
    _sqlite_trigger(
        "search",
        f"UPDATE OF {', '.join(_TEXTS)} ON run WHEN {_differ(_TEXTS, 'IS NOT')}",
        [_FORGET_TEXT, _NOTE_TEXT],
    ),
    _sqlite_trigger("value", f"UPDATE OF {', '.join(FIELDS)} ON run WHEN {_differ(FIELDS, 'IS NOT')}", _VALUES),
    _sqlite_trigger(
        "stack",
        f"UPDATE OF {', '.join(_STACK_CHANGES)} ON run "
        f"WHEN ({_is_read('OLD')} OR {_is_read('NEW')}) AND ({_differ(_STACK_CHANGES, 'IS NOT')})",
        [_LEAVE, _JOIN, _NAME_DISPATCHER, _REFRESH, _REFRESH_OLD],
    ),
    _sqlite_trigger("label", "INSERT ON run", _labels("NEW", "FROM {tags} WHERE", "WHERE", True)),
    _sqlite_trigger(
        "relabel",
        f"UPDATE OF {', '.join(_LABELLED)} ON run WHEN {_differ(_LABELLED, 'IS NOT')}",
        ["DELETE FROM run_label WHERE run_id = NEW.id", *_labels("NEW", "FROM {tags} WHERE", "WHERE", True)],
    ),
    _sqlite_trigger("delete", "DELETE ON run", [_FORGET_TEXT, _LEAVE, _REFRESH_AFTER_DELETE]),
)
_POSTGRESQL = (
    f"""
CREATE FUNCTION run_derived() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' OR {_differ(FIELDS, "IS DISTINCT FROM")} THEN
        {";".join(_VALUES)};
    END IF;
    IF TG_OP = 'INSERT' THEN
        {_JOIN};
        IF {_is_read("NEW")} THEN {_NAME_DISPATCHER}; {_REFRESH}; END IF;
    ELSIF {_is_read("OLD")} OR {_is_read("NEW")} THEN
        {_LEAVE};
        {_JOIN};
        {_NAME_DISPATCHER};
        {_REFRESH};
        {_REFRESH_OLD};
    END IF;
    RETURN NULL;
END $$
""",
    f"""
CREATE FUNCTION run_derived_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    {_LEAVE};
    {_REFRESH_AFTER_DELETE};
    RETURN NULL;
END $$
""",
    f"""
CREATE FUNCTION run_labels() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        DELETE FROM run_label WHERE run_id = NEW.id;
    END IF;
    {";".join(_labels("NEW", "FROM {tags} WHERE", "WHERE", False))};
    RETURN NULL;
END $$
""",
    "CREATE TRIGGER run_derived_label AFTER INSERT OR UPDATE OF "
    f"{', '.join(_LABELLED)} ON run FOR EACH ROW EXECUTE FUNCTION run_labels()",
    # Deferred: a transaction locks its stacks at its end, after all its runs. One that locked a stack in between would
    # wait for a run of another transaction that waits for the stack.
    "CREATE CONSTRAINT TRIGGER run_derived_insert AFTER INSERT ON run DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
    "EXECUTE FUNCTION run_derived()",
    "CREATE CONSTRAINT TRIGGER run_derived_update AFTER UPDATE OF "
    f"{', '.join(dict.fromkeys((*_STACK_CHANGES, *FIELDS)))} ON run DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
    f"WHEN ({_differ(tuple(dict.fromkeys((*_STACK_CHANGES, *FIELDS))), 'IS DISTINCT FROM')}) "
    "EXECUTE FUNCTION run_derived()",
    "CREATE CONSTRAINT TRIGGER run_derived_delete AFTER DELETE ON run DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
    "EXECUTE FUNCTION run_derived_deleted()",
)
