"""Targets of notifications as users type them, a web address or mailboxes, and their checks."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from app.domain.text import one_line

# --- Which addresses the service may call for users: only those of the public internet.
#
# The others are in IANA's registries of special-purpose addresses (RFC 6890 and its successors). IPv6 addresses that
# contain an IPv4 address are unwrapped first, so that none can hide one.

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_CLOSED: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; some clouds keep metadata there
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local, and the metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments, among them metadata of a cloud
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "::/96",  # unspecified, loopback, IPv4-compatible
        "64:ff9b:1::/48",  # NAT64 into local networks
        "100::/64",
        "2001::/23",  # protocol assignments, among them Teredo
        "2001:db8::/32",
        "2002::/16",  # 6to4, which carries any IPv4 address
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
PUBLIC_PORTS = (80, 443, 8080, 8443)
"""Other ports may belong to services that misread an HTTP request."""


def read_networks(text: str) -> tuple[Network, ...]:
    """Parse networks like `10.1.0.0/16, fd00::/8`, or single addresses. Raises ValueError."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def unwrapped(address: Address) -> Address:
    """Return the IPv4 address in a mapped or NAT64 address, otherwise the address itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    inner = unwrapped(address)
    if any(inner.version == closed.version and inner in closed for closed in _CLOSED):
        return False
    return isinstance(inner, IPv4Address) or inner in _PUBLIC_6


def refused_because(address: str, port: int, allowed: Sequence[Network]) -> str:
    """Return why the service must not connect there; empty if it may. `allowed`: private networks that it may reach."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return f"{address[:60]} is not an address"
    inner = unwrapped(parsed)
    if any(inner.version == network.version and inner in network for network in allowed):
        return ""
    if not is_public(parsed):
        return f"{address} is not an address of the public internet"
    if port not in PUBLIC_PORTS:
        return f"port {port} is not one of {', '.join(map(str, PUBLIC_PORTS))}"
    return ""


WEBHOOK, SLACK, TEAMS, EMAIL = "webhook", "slack", "teams", "email"
KINDS = (WEBHOOK, SLACK, TEAMS, EMAIL)
MAX_TARGET = 2000
MOST_MAILBOXES = 20
_PORTS = {"http": 80, "https": 443}
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_MAILBOX = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*")


@dataclass(frozen=True, slots=True)
class WebTarget:
    """A web address. `host`: a name, or an address without brackets. `path`: with the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Return host and port as in the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def read_web(text: str) -> WebTarget:
    """Parse an address. Raises ValueError with the expected form."""
    if len(text) > MAX_TARGET:
        raise ValueError(f"must have at most {MAX_TARGET:,} characters")
    if not text.isascii() or any(c <= " " or c in "\\\x7f" for c in text):
        raise ValueError("must be one ASCII address without spaces")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError("must be a complete URL, for example https://host/path") from error
    if parts.scheme not in _PORTS or not host:
        raise ValueError("must begin with https:// or http:// and a host")
    if "@" in parts.netloc:
        raise ValueError("must not contain a user name or password")
    if parts.fragment:
        raise ValueError("must not contain a fragment (#)")
    port = _PORTS[parts.scheme] if port is None else port
    if not 0 < port < 65_536:
        raise ValueError("must have a port from 1 to 65535")
    _check_host(host)
    return WebTarget(parts.scheme, host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def check_reach(target: WebTarget, allowed: Sequence[Network]) -> None:
    """Check what is possible without resolving the name. Raises ValueError."""
    try:
        ipaddress.ip_address(target.host)
    except ValueError:
        if target.port not in PUBLIC_PORTS and not allowed:
            raise ValueError(f"must have one of the ports {', '.join(map(str, PUBLIC_PORTS))}") from None
        return
    if why := refused_because(target.host, target.port, allowed):
        raise ValueError(f"cannot be reached from here: {why}")


def read_mailboxes(text: str) -> tuple[str, ...]:
    """Parse mailboxes. They contain nothing that could end a header line of a mail. Raises ValueError."""
    mailboxes = tuple(part.strip() for part in text.replace(";", ",").split(",") if part.strip())
    if not 0 < len(mailboxes) <= MOST_MAILBOXES:
        raise ValueError(f"must be 1 to {MOST_MAILBOXES} mailboxes, separated by commas")
    for mailbox in mailboxes:
        if not _MAILBOX.fullmatch(mailbox):
            raise ValueError(f"{one_line(mailbox)[:60]!r} is not a mailbox like team@example.com")
    return mailboxes


def shown(kind: str, target: str) -> str:
    """Return what pages show of a target: only the host of an address, whose path may be a secret."""
    if kind == EMAIL:
        return target
    try:
        web = read_web(target)
    except ValueError:
        return "an invalid address"
    return f"{web.scheme}://{web.authority}/…" if web.path != "/" else f"{web.scheme}://{web.authority}/"


def _check_host(host: str) -> None:
    """Raise ValueError unless the host is a name, an IPv4 address of four decimal numbers, or an IPv6 address."""
    if ":" in host:
        if "%" in host:
            raise ValueError("must not name a network interface (%)")
        ipaddress.IPv6Address(host)
        return
    labels = host.rstrip(".").split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            ipaddress.IPv4Address(host)
        except ValueError as error:
            raise ValueError("must write an IPv4 address as four numbers, for example 192.0.2.1") from error
    elif len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("must have a host of letters, digits and hyphens (an international name as xn--...)")
