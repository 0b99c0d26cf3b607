"""The chart script: rendered once per version for all services of a user, and kept where something can be written."""

import gzip
import re
from pathlib import Path

import pytest
from jinja2 import nodes

from app.settings import RESOURCES, Settings
from app.web import assets
from app.web.templating import environment


@pytest.fixture
def renderings(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Counts how often the script is rendered; the real one takes two seconds and is drawn with in tests/browser."""
    made: list[bytes] = []

    def render() -> bytes:
        made.append(b"script")
        return made[-1]

    monkeypatch.setattr(assets, "_build_bundle", render)
    return made


def test_the_chart_script_is_rendered_once_for_all_data_folders(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renderings: list[bytes]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = assets.vega_bundle()
    assert assets.vega_bundle() == path
    assert len(renderings) == 1
    assert path.parent == tmp_path / "cache" / "threewalls"
    assert re.fullmatch(r"vega-vl[0-9][0-9a-z.]*-[0-9a-f]{16}\.js", path.name)
    assert gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes()) == path.read_bytes() == b"script"
    assert assets.asset_url("vega.js") == f"/assets/{path.name}"


def test_without_a_cache_folder_that_can_be_written_the_data_folder_keeps_the_script(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renderings: list[bytes]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert assets.vega_bundle().parent == settings.data_dir / "assets"
    assert assets.vega_bundle().parent == settings.data_dir / "assets"
    assert len(renderings) == 1


def test_templates_use_only_filters_that_exist() -> None:
    """Jinja checks a filter inside of an `if` only when it is reached."""
    env = environment()
    for name in env.list_templates():
        tree = env.parse(Path(RESOURCES, "templates", name).read_text())
        assert {node.name for node in tree.find_all(nodes.Filter)} <= set(env.filters), name
