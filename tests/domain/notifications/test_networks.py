"""Where a message may go: table of addresses, in all the forms in which one can be hidden."""

from ipaddress import ip_address

import pytest

from app.domain.notifications.targets import (
    check_reach,
    is_public,
    read_mailboxes,
    read_networks,
    read_web,
    refused_because,
    shown,
)

CLOSED = {
    "private": ("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd12:3456::1", "fec0::1"),
    "loopback": ("127.0.0.1", "127.1.2.3", "::1"),
    "this network": ("0.0.0.0", "0.1.2.3", "::"),
    "link-local": ("169.254.0.1", "fe80::1", "fe80::1%eth0"),
    "metadata": ("169.254.169.254", "192.0.0.192", "100.100.100.200", "fd00:ec2::254"),
    "carrier-grade NAT": ("100.64.0.1", "100.127.255.255"),
    "multicast": ("224.0.0.1", "239.255.255.250", "ff02::1"),
    "reserved": ("240.0.0.1", "255.255.255.255", "192.0.2.1", "198.51.100.7", "203.0.113.9", "198.18.0.1"),
    "documentation": ("2001:db8::1", "3fff::1"),
    "mapped": ("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::ffff:0:0"),
    "IPv4-compatible": ("::127.0.0.1", "::10.0.0.1", "::8.8.8.8"),
    "NAT64": ("64:ff9b::7f00:1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::8.8.8.8"),
    "6to4": ("2002:7f00:1::", "2002:a00:1::1"),
    "Teredo": ("2001:0:4136:e378:8000:63bf:3fff:fdd2",),
    "discard and others": ("100::1", "5f00::1", "4000::1"),
}


@pytest.mark.parametrize("address", [one for group in CLOSED.values() for one in group])
def test_what_is_not_the_public_internet_is_not_called(address: str) -> None:
    assert not is_public(ip_address(address))
    assert refused_because(address, 443, ()) != ""


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "100.63.0.1", "172.32.0.1", "192.169.0.1", "2606:4700::1111", "::ffff:8.8.8.8",
                "64:ff9b::8.8.8.8"],
)  # fmt: skip
def test_the_public_internet_is_called_at_ports_of_the_web(address: str) -> None:
    assert refused_because(address, 443, ()) == ""
    assert "port 6379" in refused_because(address, 6379, ())


def test_a_private_network_that_is_allowed_is_called_at_any_port_in_every_form() -> None:
    allowed = read_networks("10.1.0.0/16, fd00::/8")
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00::5"):
        assert refused_because(address, 9000, allowed) == ""
    for address in ("10.2.0.1", "127.0.0.1", "fe80::1", "169.254.169.254"):
        assert refused_because(address, 443, allowed) != ""


@pytest.mark.parametrize(
    "text",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com:70/",
        "//example.com",
        "https://",
        "https://user:password@example.com/",
        "https://user@example.com/",
        "https://example.com/#part",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://exa mple.com/",
        "https://example.com/\r\nHost: other",
        "https://example.com\\@127.0.0.1/",
        "https://bücher.example/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.0.0.1/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://127.0.0.1.:80x/",
        "https://[fe80::1%25eth0]/",
        "https://[::1/",
        "https://-bad.example/",
        "https://a..b/",
        f"https://example.com/{'x' * 2000}",
    ],
)
def test_what_is_no_plain_address_of_the_web_is_not_kept(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|names"):
        read_web(text)


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1/", "http://[::1]:80/", "http://[::ffff:7f00:1]/", "http://10.0.0.1"]
)
def test_an_address_that_is_no_name_is_refused_before_it_is_kept(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be reached"):
        check_reach(read_web(text), ())


def test_a_plain_address_is_read() -> None:
    target = read_web("https://Hooks.Example.com/a/b?c=d")
    assert (target.scheme, target.host, target.port, target.path) == ("https", "hooks.example.com", 443, "/a/b?c=d")
    assert target.authority == "hooks.example.com"
    assert read_web("http://[2606:4700::1111]:8080").authority == "[2606:4700::1111]:8080"
    check_reach(target, ())
    with pytest.raises(ValueError, match="one of the ports"):
        check_reach(read_web("https://example.com:6379/"), ())


def test_what_is_shown_of_an_address_opens_nothing() -> None:
    assert shown("slack", "https://hooks.slack.com/services/T0/B0/secret") == "https://hooks.slack.com/…"
    assert shown("webhook", "https://ci.example/?token=secret") == "https://ci.example/…"
    assert shown("email", "team@example.com") == "team@example.com"


@pytest.mark.parametrize(
    "text", ["", "team", "a@b@c", "a b@example.com", "a@example.com\r\nBcc: x@example.com", "<a@example.com>",
             ",".join(["a@example.com"] * 21)],
)  # fmt: skip
def test_what_is_no_mailbox_is_not_kept(text: str) -> None:
    with pytest.raises(ValueError, match="mailbox"):
        read_mailboxes(text)


def test_mailboxes_are_read() -> None:
    assert read_mailboxes("a@example.com; b.c+d@mail.example.com,") == ("a@example.com", "b.c+d@mail.example.com")
