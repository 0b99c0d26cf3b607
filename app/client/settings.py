"""Which service, which project, which token: options first, then THREEWALLS_* variables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from app.client.errors import UsageError

URL, PROJECT, TOKEN, SPOOL = "THREEWALLS_URL", "THREEWALLS_PROJECT", "THREEWALLS_TOKEN", "THREEWALLS_SPOOL"
DEFAULT_URL = "http://127.0.0.1:8000"
RETRIES = 5


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """`url` has no slash at its end. The token is in no text made of this, so that no message can show it."""

    url: str = DEFAULT_URL
    project: str = ""
    token: str = field(default="", repr=False)
    retries: int = RETRIES


def read_settings(
    env: Mapping[str, str], *, url: str | None = None, project: str | None = None, retries: int = RETRIES
) -> ClientSettings:
    """Raises UsageError for an address or a token that cannot be one."""
    token = env.get(TOKEN, "").strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(f"{TOKEN} holds characters that no token has. Paste it again; it begins with tw_.")
    stated = project if project is not None else env.get(PROJECT, "")
    return ClientSettings(read_url(url or env.get(URL, "") or DEFAULT_URL), stated.strip(), token, retries)


def read_url(text: str) -> str:
    """The address of a service, as it is written down and compared. Raises UsageError."""
    url = text.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
        parts = urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"The address of the service must hold no password: put a token into {TOKEN} instead.")
    if not valid or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is no address of a service. Write {URL}=https://threewalls.example.org")
    return url
