"""The rules in force: configured thresholds, a team's current folder, and a version that changes with them."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from app.domain.rules.facts import SETTINGS
from app.settings import Settings
from app.storage.rules import rules_in_force
from tests.domain.rules.builders import GOOD, SOURCES

OURS = GOOD.replace("scale-vpp-small", "ours-vpp-small").replace("M-arg", "wiki")


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
