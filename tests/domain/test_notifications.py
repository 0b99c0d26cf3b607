"""Notifications: messages, and the networks that receivers may be in."""

import base64
import hashlib
import hmac
import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from ipaddress import ip_address

import pytest

from app.domain.notifications import messages
from app.domain.notifications.events import (
    EVENTS,
    USUAL,
    Notification,
    Subscription,
    event_of_verdict,
    failed_notification,
    is_fresh,
    regression_notification,
)
from app.domain.notifications.messages import (
    ATTEMPTS,
    LONGEST_ASKED,
    PATIENCE,
    headers,
    new_secret,
    signature,
    wait_after,
)
from app.domain.notifications.targets import (
    check_reach,
    is_public,
    read_mailboxes,
    read_networks,
    read_web,
    refused_because,
    shown,
)
from tests.notifications.sent import SUMMARY

NOW = datetime(2026, 11, 21, 5, tzinfo=UTC)
LINK = "https://walls.example/regressions/7"
HOSTILE = "<!channel> <https://evil.example|click> & [x](https://evil.example) **b** {{DATE(2020-01-01T00:00:00Z)}}"


def make_notification(cause: str = "Code: 0f3c2a9d → 77aa01bc.", project: str = "moe") -> Notification:
    return regression_notification(
        "regression.opened", project=project, number=7, metric="step_time_ms", cause=cause,
        summary=SUMMARY, stacks=[("ab" * 32, "Qwen3-30B-A3B · 16 × H100")], note="", at=NOW,
    )  # fmt: skip


def test_a_message_states_the_event_and_its_basis() -> None:
    notification = make_notification()
    assert [part in notification.title for part in (SUMMARY.change, "moe")] == [True] * 2
    cause, where, text = notification.lines
    assert "0f3c2a9d → 77aa01bc" in cause
    assert "Qwen3-30B-A3B · 16 × H100" in where
    assert text == SUMMARY.text
    assert notification.data["regression"]["summary"] == asdict(SUMMARY)
    assert notification.path == "/regressions/7"
    assert Notification.read(json.loads(json.dumps(notification.as_json()))) == notification


def test_slack_blocks_escape_all_markup_from_outside() -> None:
    body = json.loads(messages.slack_body(make_notification(HOSTILE), LINK))
    header, section, foot = body["blocks"]
    assert header["text"]["type"] == "plain_text"
    assert section["text"]["type"] == "mrkdwn"
    words = section["text"]["text"]
    assert "&lt;!channel&gt; &lt;https://evil.example|click&gt; &amp;" in words
    assert "<" not in words
    assert foot["elements"][0]["text"].startswith(f"<{LINK}|Open in Threewalls>")
    assert (
        len(json.loads(messages.slack_body(make_notification("x" * 5000), LINK))["blocks"][1]["text"]["text"]) <= 3000
    )


def test_teams_gets_a_card_without_markdown_from_user_input() -> None:
    body = json.loads(messages.teams_body(make_notification(HOSTILE, project="a_b*[c](d)"), LINK))
    attachment = body["attachments"][0]
    assert (body["type"], attachment["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
    card = attachment["content"]
    assert card["type"] == "AdaptiveCard"
    # A RichTextBlock does not interpret Markdown, so its text is shown unchanged, except for date functions.
    assert {line["type"] for line in card["body"]} == {"RichTextBlock"}
    title, *lines, _ = card["body"]
    assert title["inlines"][0]["text"].endswith("a_b*[c](d)")
    assert r"a\_b\*\[c\]\(d\)" in card["fallbackText"]
    assert HOSTILE[:42] in lines[0]["inlines"][0]["text"]
    assert "{{" not in json.dumps(card)
    assert card["actions"] == [{"type": "Action.OpenUrl", "title": "Open in Threewalls", "url": LINK}]


def test_names_cannot_add_headers_to_a_mail() -> None:
    notification = failed_notification(
        project="moe", run_id=3, name="night\r\nBcc: evil@example.com\n\nbody", error="Lost.\nFrom here",
        stack=("ab" * 32, "Qwen3-30B-A3B"), branch="main\r\nBcc: x@example.com", commit="0f3c2a9d", at=NOW,
    )  # fmt: skip
    sent = messages.mail(
        notification, "delivery-9", LINK, sender="Walls <walls@example.com>", to=("a@x.org",), domain="x.org"
    )
    read = message_from_bytes(bytes(sent), policy=policy.default)
    assert read["Bcc"] is None
    assert "night Bcc: evil@example.com body" in read["Subject"]
    assert (read["From"], read["To"]) == ("Walls <walls@example.com>", "a@x.org")
    assert read["Message-ID"] == "<delivery-9@x.org>"
    assert LINK in read.get_content()
    assert "branch main Bcc: x@example.com, commit 0f3c2a9d" in read.get_content()
    assert "2026-11-21 05:00 UTC" in read.get_content()


def test_the_signature_is_that_of_the_specification() -> None:
    # The example of https://www.standardwebhooks.com, with its own numbers.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    assert signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body) == (
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_a_signature_covers_the_body_the_time_and_the_delivery() -> None:
    secret, body = new_secret(), b'{"a": 1}'
    sent = headers(secret, "delivery-1", 1_700_000_000, body)
    key = base64.b64decode(secret.split("_", 1)[1])
    assert len(key) == 32
    digest = hmac.new(key, b"delivery-1.1700000000." + body, hashlib.sha256).digest()
    assert sent["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    others = {
        signature(secret, "delivery-2", 1_700_000_000, body),
        signature(secret, "delivery-1", 1_700_000_001, body),
        signature(secret, "delivery-1", 1_700_000_000, body + b" "),
        signature(new_secret(), "delivery-1", 1_700_000_000, body),
    }
    assert len(others) == 4
    assert sent["webhook-signature"] not in others


def test_a_receiver_gets_its_chosen_events_of_its_chosen_stacks() -> None:
    assert Subscription().events == USUAL
    assert Subscription().takes("regression.opened", ["a"])
    assert not Subscription().takes("verdict.no_change", ["a"])
    assert Subscription(("run.failed",), ("b",)).takes("run.failed", ["a", "b"])
    assert not Subscription(("run.failed",), ("b",)).takes("run.failed", ["a"])
    assert Subscription((), ("b",)).takes("test", [])
    assert Subscription.read(Subscription(("run.failed",), ("b",)).as_json()) == Subscription(("run.failed",), ("b",))


@pytest.mark.parametrize(
    ("decision", "raises", "purpose", "quarantined", "event"),
    [
        ("regression", True, "ci", False, "verdict.regression"),
        ("regression", False, "ci", False, ""),
        ("improvement", True, "experiment", False, ""),
        ("improvement", True, "release", False, "verdict.improvement"),
        ("no_baseline", False, "ci", False, "verdict.no_baseline"),
        ("failed", False, "experiment", False, "run.failed"),
        ("failed", True, "ci", True, ""),
        ("not_judged", True, "ci", False, ""),
    ],
)
def test_a_verdict_is_an_event(decision: str, raises: bool, purpose: str, quarantined: bool, event: str) -> None:
    result = event_of_verdict(decision, raises_regression=raises, purpose=purpose, quarantined=quarantined)
    assert result == event
    assert not event or event in EVENTS


def test_runs_of_last_month_send_no_notification() -> None:
    assert is_fresh(NOW - timedelta(days=6), NOW)
    assert not is_fresh(NOW - timedelta(days=8), NOW)


def test_a_message_is_tried_over_a_day_and_then_given_up() -> None:
    age, waits = timedelta(), list[timedelta]()
    while wait := wait_after(len(waits) + 1, age):
        waits.append(wait)
        age += wait
    assert waits == sorted(waits)
    assert (len(waits) + 1, age) == (ATTEMPTS, PATIENCE)
    assert timedelta(hours=12) < age < timedelta(hours=36)
    assert wait_after(1, age, 120) == timedelta(seconds=120)
    assert wait_after(1, age, 10**7) == timedelta(seconds=LONGEST_ASKED)


def test_a_message_that_a_user_resends_is_not_given_up_earlier() -> None:
    assert wait_after(ATTEMPTS * 2, PATIENCE - timedelta(seconds=1)) == timedelta(hours=12)
    assert wait_after(ATTEMPTS * 2, PATIENCE) is None


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


@pytest.mark.parametrize("address", [item for group in CLOSED.values() for item in group])
def test_only_public_addresses_are_called(address: str) -> None:
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
def test_an_invalid_web_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|names"):
        read_web(text)


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1/", "http://[::1]:80/", "http://[::ffff:7f00:1]/", "http://10.0.0.1"]
)
def test_an_address_that_is_not_a_name_is_rejected_before_it_is_kept(text: str) -> None:
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


def test_the_shown_part_of_an_address_reveals_no_secret() -> None:
    assert shown("slack", "https://hooks.slack.com/services/T0/B0/secret") == "https://hooks.slack.com/…"
    assert shown("webhook", "https://ci.example/?token=secret") == "https://ci.example/…"
    assert shown("email", "team@example.com") == "team@example.com"


@pytest.mark.parametrize(
    "text", ["", "team", "a@b@c", "a b@example.com", "a@example.com\r\nBcc: x@example.com", "<a@example.com>",
             ",".join(["a@example.com"] * 21)],
)  # fmt: skip
def test_an_invalid_mailbox_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="mailbox"):
        read_mailboxes(text)


def test_mailboxes_are_read() -> None:
    assert read_mailboxes("a@example.com; b.c+d@mail.example.com,") == ("a@example.com", "b.c+d@mail.example.com")
