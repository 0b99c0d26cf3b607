import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.main import create_app
from app.settings import Settings
from tests.access.oidc.provider_server import CLIENT, SECRET
from tests.access.people import Teams, make_teams


@pytest.fixture(scope="session")
def provider() -> Iterator[str]:
    """The address of an identity provider that runs beside the tests."""
    command = [sys.executable, "-m", "tests.access.oidc.provider_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture
def teams(settings: Settings, provider: str, tmp_path: Path) -> Iterator[Teams]:
    secret = tmp_path / "oidc-secret"
    secret.write_text(f"{SECRET}\n")
    by_provider = {
        "oidc_issuer": provider, "oidc_client_id": CLIENT, "oidc_client_secret_file": str(secret), "oidc_name": "Acme",
        "public_url": "http://testserver",
    }  # fmt: skip
    app = create_app(settings.model_copy(update=by_provider))
    yield make_teams(app)
    app.state.engine.dispose()
