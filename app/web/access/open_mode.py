"""A service without log-ins answers only at names of this machine, and only until it has an administrator.

The name is checked because any website may point its own name at 127.0.0.1 (DNS rebinding): its page would then be of
the same origin as ours, and no other check could tell.
"""

import ipaddress
import shlex
from collections.abc import Collection, Iterable

from app.settings import Settings

LOOPBACK_NAMES = ("localhost",)

_OF_PROXIES = ("forwarded", "via", "x-real-ip", "x-forwarded", "cf-connecting-ip", "true-client-ip")
"""Beginnings of the headers by which a proxy says that it asks for somebody else."""


NEEDS_LOG_INS = (
    "Accounts, roles, tokens, receivers of notifications and public projects need log-ins, and this service has none: "
    "everybody and every program on this machine may do everything else here."
)


def is_loopback(host: str) -> bool:
    """Whether this name or address of a listener or Host header means this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK_NAMES


def may_answer(host_header: str, names: Collection[str]) -> bool:
    """Whether a request to this Host may be answered without a log-in; `names` besides those of this machine."""
    name = host_header.rpartition(":")[0] if not host_header.endswith("]") and ":" in host_header else host_header
    return is_loopback(name) or name.lower() in names


def is_passed_on(header_names: Iterable[str], http_version: str) -> bool:
    """Whether a proxy passed the request on: then the Host is the proxy's word for us, and the caller is a stranger.

    nginx says nothing of itself unless it is told to, but asks by HTTP/1.0 (before its version 1.29.7), which browsers
    and clients of today do not.
    """
    return http_version == "1.0" or any(name.lower().startswith(_OF_PROXIES) for name in header_names)


def how_to_have_log_ins(settings: Settings) -> str:
    return f"Make the first administrator from a shell of this machine: {make_administrator(settings)}"


def make_administrator(settings: Settings) -> str:
    """The command that makes one of this very service: without its folder it would make that of another one."""
    command = f"threewalls admin create NAME --data {shlex.quote(str(settings.data_dir.resolve()))}"
    return f'THREEWALLS_DATABASE_URL="..." {command}' if settings.database_url else command
