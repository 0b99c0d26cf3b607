"""Which addresses the service may call on behalf of a person who typed one: those of the public internet only.

What is not public is listed by IANA's registries of special-purpose addresses (RFC 6890 and its successors). Forms of
IPv6 that carry an IPv4 address are taken apart first, so that none of them hides one.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

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
"""Ports of the web; others of public addresses may be services that take an HTTP request for something else."""


def read_networks(text: str) -> tuple[Network, ...]:
    """`10.1.0.0/16, fd00::/8`, or single addresses. Raises ValueError."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def unwrapped(address: Address) -> Address:
    """The IPv4 address that a mapped or NAT64 one stands for, else itself."""
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
    """Why the service does not connect there; empty when it may. `allowed`: private networks that it may reach."""
    try:
        found = ip_address(address)
    except ValueError:
        return f"{address[:60]} is no address"
    inner = unwrapped(found)
    if any(inner.version == network.version and inner in network for network in allowed):
        return ""
    if not is_public(found):
        return f"{address} is not an address of the public internet"
    if port not in PUBLIC_PORTS:
        return f"port {port} is none of {', '.join(map(str, PUBLIC_PORTS))}"
    return ""
