"""What stands between a client and its service, told by name: proxies, certificates, the network."""

import ssl
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import httpx2

_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def proxies(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Name and value of each that is set; a password is in none."""
    for name in _PROXIES:
        if value := env.get(name) or env.get(name.lower()):
            yield name, _without_password(value)
    if value := env.get("NO_PROXY") or env.get("no_proxy"):
        yield "NO_PROXY", value


def not_opened(error: Exception, env: Mapping[str, str]) -> str:
    """Why not even a connection could be tried: a variable of the environment says what nobody can do."""
    if isinstance(error, OSError):
        stated = " and ".join(f"{name}={env[name]}" for name in _CERTIFICATES if env.get(name))
        return (
            f"The certificates of {stated or 'this machine'} cannot be read ({error.strerror or error}). Name a file "
            "of certificates (PEM) in SSL_CERT_FILE, or take the variable away."
        )
    stated = ", ".join(f"{name}={value}" for name, value in proxies(env) if name != "NO_PROXY")
    if not stated:
        return f"No connection can be made: {error}."
    return f"The proxy cannot be used ({stated}): it must be an address that begins with http:// or https://."


def untrusted(error: BaseException, url: str) -> str:
    """Of an error that is one of certificates: what to do. Else empty."""
    at: BaseException | None = error
    while at is not None and not isinstance(at, ssl.SSLCertVerificationError):
        at = at.__cause__ or at.__context__
    if at is None:
        return ""
    return (
        f"{url} has a certificate that nobody vouches for here ({at.verify_message}). Where the authority is your own, "
        "name its file (PEM) in SSL_CERT_FILE."
    )


def said(error: httpx2.RequestError) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "did not answer in time."
    if isinstance(error, httpx2.DecodingError):
        return f"sent an answer that cannot be read ({error})."
    return f"could not be reached ({str(error) or type(error).__name__})."


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    except ValueError:
        return "(not an address)"
    return f"{parts.scheme}://{host}" if parts.scheme else host
