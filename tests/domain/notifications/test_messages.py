"""Messages in each channel, hostile text in them, and their signature."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy

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

NOW = datetime(2026, 11, 21, 5, tzinfo=UTC)
LINK = "https://walls.example/regressions/7"
HOSTILE = "<!channel> <https://evil.example|click> & [x](https://evil.example) **b** {{DATE(2020-01-01T00:00:00Z)}}"


def made(cause: str = "Code: 0f3c2a9d -> 77aa01bc.", project: str = "moe") -> Notification:
    return regression_notification(
        "regression.opened", project=project, number=7, metric="step_time_ms", cause=cause, delta_pct=3.4,
        hours_per_day=41.0, stacks=[("ab" * 32, "Qwen3-30B-A3B · 16 × H100")], note="", at=NOW,
    )  # fmt: skip


def test_a_message_says_what_happened_and_what_it_rests_on() -> None:
    notification = made()
    assert notification.title == "Regression: step time 3.4 % slower in moe"
    assert notification.lines == (
        "Cause: Code: 0f3c2a9d -> 77aa01bc.",
        "Where: Qwen3-30B-A3B · 16 × H100.",
        "It costs about 41 GPU-hours a day.",
    )
    assert notification.path == "/regressions/7"
    assert Notification.read(json.loads(json.dumps(notification.as_json()))) == notification


def test_slack_gets_blocks_in_which_nothing_is_markup_that_we_did_not_write() -> None:
    body = json.loads(messages.slack_body(made(HOSTILE), LINK))
    header, section, foot = body["blocks"]
    assert header["text"]["type"] == "plain_text"
    assert section["text"]["type"] == "mrkdwn"
    words = section["text"]["text"]
    assert "&lt;!channel&gt; &lt;https://evil.example|click&gt; &amp;" in words
    assert "<" not in words
    assert foot["elements"][0]["text"].startswith(f"<{LINK}|Open in Threewalls>")
    assert len(json.loads(messages.slack_body(made("x" * 5000), LINK))["blocks"][1]["text"]["text"]) <= 3000


def test_teams_gets_a_card_in_which_nothing_is_markdown_that_we_did_not_write() -> None:
    body = json.loads(messages.teams_body(made(HOSTILE, project="a_b*[c](d)"), LINK))
    attachment = body["attachments"][0]
    assert (body["type"], attachment["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
    card = attachment["content"]
    assert card["type"] == "AdaptiveCard"
    # A RichTextBlock takes no Markdown, so what is in it stands as it is; but for functions of dates.
    assert {line["type"] for line in card["body"]} == {"RichTextBlock"}
    title, *lines, _ = card["body"]
    assert title["inlines"][0]["text"] == "Regression: step time 3.4 % slower in a_b*[c](d)"
    assert r"a\_b\*\[c\]\(d\)" in card["fallbackText"]
    assert lines[0]["inlines"][0]["text"].startswith("Cause: <!channel> <https://evil.example|click> & [x]")
    assert "{{" not in json.dumps(card)
    assert card["actions"] == [{"type": "Action.OpenUrl", "title": "Open in Threewalls", "url": LINK}]


def test_a_mail_has_one_head_whatever_a_name_holds() -> None:
    notification = failed_notification(
        project="moe", run_id=3, name="night\r\nBcc: evil@example.com\n\nbody", error="Lost.\nFrom here",
        stack=("ab" * 32, "Qwen3-30B-A3B"), branch="main\r\nBcc: x@example.com", commit="0f3c2a9d", at=NOW,
    )  # fmt: skip
    sent = messages.mail(
        notification, "delivery-9", LINK, sender="Walls <walls@example.com>", to=("a@x.org",), domain="x.org"
    )
    read = message_from_bytes(bytes(sent), policy=policy.default)
    assert read["Bcc"] is None
    assert read["Subject"] == "[Threewalls] Failed: night Bcc: evil@example.com body in moe"
    assert (read["From"], read["To"]) == ("Walls <walls@example.com>", "a@x.org")
    assert read["Message-ID"] == "<delivery-9@x.org>"
    assert LINK in read.get_content()
    assert "On Qwen3-30B-A3B, branch main Bcc: x@example.com, commit 0f3c2a9d." in read.get_content()
    assert "2026-11-21 05:00 UTC" in read.get_content()


def test_the_signature_is_that_of_the_specification() -> None:
    # The example of https://www.standardwebhooks.com, in its own numbers.
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
    told = hmac.new(key, b"delivery-1.1700000000." + body, hashlib.sha256).digest()
    assert sent["webhook-signature"] == "v1," + base64.b64encode(told).decode()
    others = {
        signature(secret, "delivery-2", 1_700_000_000, body),
        signature(secret, "delivery-1", 1_700_000_001, body),
        signature(secret, "delivery-1", 1_700_000_000, body + b" "),
        signature(new_secret(), "delivery-1", 1_700_000_000, body),
    }
    assert len(others) == 4
    assert sent["webhook-signature"] not in others


def test_a_receiver_hears_what_it_wants_of_the_stacks_that_it_wants() -> None:
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
    found = event_of_verdict(decision, raises_regression=raises, purpose=purpose, quarantined=quarantined)
    assert found == event
    assert not event or event in EVENTS


def test_runs_of_last_month_are_no_news() -> None:
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


def test_a_message_that_somebody_hurries_is_not_given_up_earlier() -> None:
    assert wait_after(ATTEMPTS * 2, PATIENCE - timedelta(seconds=1)) == timedelta(hours=12)
    assert wait_after(ATTEMPTS * 2, PATIENCE) is None
