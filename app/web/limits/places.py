"""Where a request comes from, as far as it is counted."""

import ipaddress

from starlette.requests import Request

_OWN_V6 = 64
"""Whoever has one IPv6 address has all those that share its first 64 bits."""


def address_of(request: Request) -> str:
    """Of the client; behind a proxy its own only when THREEWALLS_TRUSTED_PROXIES names that proxy."""
    return request.client.host if request.client else ""


def network_of(address: str) -> str:
    """What one client can have of addresses."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, _OWN_V6), strict=False))
    return str(getattr(found, "ipv4_mapped", None) or found)
