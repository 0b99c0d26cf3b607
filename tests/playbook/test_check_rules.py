"""`threewalls check-rules`: exit codes, and a line a mistake that an editor can follow."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.cli import main
from app.domain.rules.facts import SETTINGS
from app.settings import Settings, get_settings
from app.storage.rules import rules_in_force
from tests.domain.rules.builders import GOOD, SOURCES

OURS = GOOD.replace("scale-vpp-small", "ours-vpp-small").replace("M-arg", "wiki")


@pytest.fixture(autouse=True)
def fresh_settings() -> None:
    get_settings.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sources.yaml").write_text(SOURCES.replace("M-arg", "wiki"))
    return tmp_path


def test_files_without_a_mistake_are_fine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ours.yaml").write_text(OURS)
    (folder / "more.yaml").write_text(
        OURS.replace("ours-vpp-small", "scale-sp-needs-tp") + "  overrides: Our trainer pads.\n"
    )
    assert main(["check-rules", str(folder)]) == 0
    assert re.findall(r"\d+", capsys.readouterr().out) == ["2", "2", "1"]


def test_each_mistake_is_a_line_with_file_line_rule_and_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "ours.yaml").write_text(OURS.replace("[wiki]", "[]").replace("pp == 1", "stages == 1"))
    assert main(["check-rules", str(folder)]) == 2
    output = capsys.readouterr()
    first, *_ = output.out.splitlines()
    assert first.startswith(f"{folder}/ours.yaml:2: ours-vpp-small: ")
    assert "sources.yaml" in first
    assert "not a known fact" in output.out
    assert "in 1 file" in output.err


def test_the_folder_of_the_setting_is_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "ours.yaml").write_text(OURS)
    monkeypatch.setenv("THREEWALLS_RULES_DIR", str(folder))
    assert main(["check-rules"]) == 0


def test_no_folder_is_a_wrong_command_and_an_empty_one_cannot_be_checked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-rules"]) == 2
    assert main(["check-rules", str(folder / "none")]) == 2
    assert main(["check-rules", str(folder)]) == 3
    assert "contains no rule file" in capsys.readouterr().err


# --- The rules in force: configured thresholds, a team's current folder, and a version that changes with them.


def test_the_settings_have_the_services_own_thresholds() -> None:
    assert rules_in_force(Settings()).thresholds == SETTINGS


def test_a_change_of_a_file_is_seen_without_a_restart_and_changes_the_version(tmp_path: Path) -> None:
    (tmp_path / "sources.yaml").write_text(SOURCES.replace("M-arg", "wiki"))
    (tmp_path / "ours.yaml").write_text(OURS)
    settings = Settings(rules_dir=str(tmp_path))

    first = rules_in_force(settings)
    (tmp_path / "ours.yaml").write_text(OURS + "  order: 3\n")
    second = rules_in_force(settings)
    (tmp_path / "ours.yaml").write_text(OURS.replace("phase: scale", "phase: none"))
    third = rules_in_force(settings)

    assert "ours-vpp-small" in first.book.rules
    assert second.book.rules["ours-vpp-small"].hints.order == 3
    assert "ours-vpp-small" not in third.book.rules
    assert third.team.files_left_out == ("ours.yaml",)
    assert len({first.version, second.version, third.version, rules_in_force(Settings()).version}) == 4


def test_the_version_stays_while_nothing_changes_and_follows_a_threshold() -> None:
    assert rules_in_force(Settings()) is rules_in_force(Settings())
    assert rules_in_force(Settings(t_comm=0.2)).version != rules_in_force(Settings()).version


def test_a_missing_folder_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"THREEWALLS_RULES_DIR: .* is not a folder"):
        Settings(rules_dir=str(tmp_path / "none"))
