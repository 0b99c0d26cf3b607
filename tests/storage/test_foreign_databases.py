"""Database files that Threewalls cannot use: a command says why in a sentence, and changes nothing."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from app.cli import main
from tests.conftest import forget_settings


def of_a_later_version(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")


def of_another_program(file: Path) -> None:
    file.unlink()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE bookmark (id INTEGER PRIMARY KEY)")


def of_another_program_with_migrations(file: Path) -> None:
    of_another_program(file)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('ae1027a6acf')")


def cut_to(share: float) -> Callable[[Path], None]:
    def cut(file: Path) -> None:
        content = file.read_bytes()
        file.write_bytes(content[: int(share * len(content))])

    return cut


def as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "later": (of_a_later_version, "later version"),
    "foreign": (of_another_program, "bookmark"),
    "foreign with migrations": (of_another_program_with_migrations, "bookmark"),
    "half": (cut_to(0.5), "is truncated"),
    "last page gone": (cut_to(0.999), "is truncated"),
    "header only": (cut_to(0.0001), "is truncated"),
    "text": (lambda file: file.write_text("no database\n" * 1000), "damaged"),
    "a header, then zeros": (
        lambda file: file.write_bytes(file.read_bytes()[:100] + bytes(file.stat().st_size)),
        "damaged",
    ),
    "folder": (as_folder, "does not answer"),
}


def test_databases_that_cannot_be_used_are_refused_in_a_sentence(
    migrated_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = []
    for number, (name, (damage, reason)) in enumerate(WRONG.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = folder / "threewalls.db"
        shutil.copy(migrated_file, file)
        damage(file)
        before = file.read_bytes() if file.is_file() else b""
        monkeypatch.setenv("THREEWALLS_DATA_DIR", str(folder))
        for command in ("migrate", "serve", "verify"):
            forget_settings()
            code = main([command, "--data", str(folder), *(["--port", "0"] if command == "serve" else [])])
            output = capsys.readouterr()
            if name == "later" and command == "verify":
                continue  # another process may be of that version, which reads what this one needs
            if code != 3 or reason not in output.err or "Traceback" in output.err:
                wrong.append(f"{name}: {command} ended with {code}: {output.err[-300:]}")
            if file.is_file() and file.read_bytes() != before:
                wrong.append(f"{name}: {command} changed it")
    forget_settings()
    assert wrong == [], "\n".join(wrong)
