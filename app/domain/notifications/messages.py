"""A notice in the form of each channel. What came from outside is data there, never markup.

Slack: https://docs.slack.dev/messaging/formatting-message-text (only `&`, `<` and `>` are escaped).
Teams: https://learn.microsoft.com/adaptive-cards/authoring-cards/text-features (a RichTextBlock takes no Markdown;
`fallbackText` may, so it is escaped).
"""

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, timedelta
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any

from app.domain.notifications.events import EVENTS, TEST, Notice
from app.domain.text import one_line

_SLACK_HEADER, _SLACK_SECTION = 150, 3000
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!<>|~&])")
_MOST_SUBJECT = 200


def webhook_body(notice: Notice, message_id: str, link: str, replay_of: str | None = None) -> bytes:
    """`message_id` stands in the signed header, too; `replay_of` is that of the one it repeats."""
    return _json(
        {
            "type": notice.event,
            "timestamp": notice.at.isoformat(),
            "delivery": message_id,
            "replay_of": replay_of,
            "project": notice.project,
            "title": notice.title,
            "lines": list(notice.lines),
            "url": link or None,
            "data": dict(notice.data),
        }
    )


def slack_body(notice: Notice, link: str) -> bytes:
    """Block Kit for an incoming webhook; `text` is what a notification of the phone shows."""
    words = "\n".join(slack_text(line) for line in notice.lines)[:_SLACK_SECTION]
    blocks: list[dict[str, Any]] = [
        # A header is plain text: Slack reads no markup in it.
        {"type": "header", "text": {"type": "plain_text", "text": notice.title[:_SLACK_HEADER], "emoji": False}},
    ]
    if words:
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": words, "verbatim": True}})
    foot = slack_text(_meaning(notice))
    if link:
        foot = f"<{slack_text(link)}|Open in Threewalls> · {foot}"
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": foot, "verbatim": True}]})
    return _json({"text": slack_text(notice.title), "blocks": blocks, "unfurl_links": False, "unfurl_media": False})


def slack_text(text: str) -> str:
    """No mention, link or entity can be made of it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def teams_body(notice: Notice, link: str) -> bytes:
    """An Adaptive Card as the Workflows app and incoming webhooks of Teams take it."""
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "fallbackText": card_text(notice.title),
        "body": [
            _plain(notice.title, size="Medium", weight="Bolder"),
            *(_plain(line) for line in notice.lines),
            _plain(_meaning(notice), isSubtle=True),
        ],
    }  # fmt: skip
    if link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open in Threewalls", "url": link}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return _json({"type": "message", "attachments": [attachment]})


def _plain(line: str, **looks: str | bool) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": _no_functions(line), **looks}]}


def card_text(text: str) -> str:
    """For what clients read as Markdown: nothing in it is."""
    return _MARKDOWN.sub(r"\\\1", _no_functions(text))


def mail(notice: Notice, message_id: str, link: str, *, sender: str, to: tuple[str, ...], domain: str) -> EmailMessage:
    """A mail in plain text. It has the same Message-ID at every attempt, so that none is kept twice."""
    message = EmailMessage(policy=SMTP)
    message["Subject"] = one_line(f"[Threewalls] {notice.title}")[:_MOST_SUBJECT]
    message["From"] = one_line(sender)
    message["To"] = ", ".join(to)
    message["Date"] = notice.at
    message["Message-ID"] = f"<{message_id}@{domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-Threewalls-Event"] = notice.event
    message.set_content(
        "\n".join([notice.title, "", *notice.lines, "", *([link, ""] if link else []), _meaning(notice)])
    )
    return message


def _meaning(notice: Notice) -> str:
    """With the time, because it may come late, or again."""
    told = "A test message" if notice.event == TEST else EVENTS.get(notice.event, notice.event)
    return f"{told}. Project {notice.project}, {notice.at.astimezone(UTC):%Y-%m-%d %H:%M} UTC."


def _no_functions(text: str) -> str:
    """Cards make dates of `{{DATE(...)}}`."""
    return text.replace("{{", "{ {")


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# --- The signature of a webhook's body, as the Standard Webhooks specification says (https://www.standardwebhooks.com).
#
# HMAC-SHA256 over `ID.TIMESTAMP.BODY`, so that neither the body nor when it was sent nor which delivery it is can be
# changed, and an old message cannot be sent again as a new one.

PREFIX = "whsec_"
TOLERANCE_SECONDS = 300
"""How far the clock of whoever checks may be off, as the specification's libraries have it."""
_BYTES = 32
_ID_BYTES = 16


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(_BYTES)).decode()


def new_message_id() -> str:
    """No other message has it, of whatever service: receivers and mail servers drop what they have seen before."""
    return f"msg_{secrets.token_hex(_ID_BYTES)}"


def signature(secret: str, message: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the HMAC in base64."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    told = f"{message}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, told, hashlib.sha256).digest()).decode()


def headers(secret: str, message: str, timestamp: int, body: bytes) -> Mapping[str, str]:
    return {
        "webhook-id": message,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(secret, message, timestamp, body),
    }


# --- When a message that did not arrive is tried again, and when it is given up.

_WAITS = (10, 60, 300, 1_800, 7_200, 21_600, 43_200)
"""Seconds after the first attempt, the second and so on: a restart is short, an outage may last a night."""
ATTEMPTS = len(_WAITS) + 1
"""A message that nobody hurries is tried so many times before it is given up."""
LONGEST_WAIT = timedelta(seconds=max(_WAITS))
PATIENCE = timedelta(seconds=sum(_WAITS))
"""What is tried earlier than it waits for, because the receiver answered or a person asked, is not given up earlier."""
LONGEST_ASKED = 3_600
"""A receiver may ask for a longer pause (Retry-After), in seconds, up to this."""


def wait_after(attempts: int, age: timedelta, asked_seconds: int | None = None) -> timedelta | None:
    """The pause after so many attempts with a message of this age; None when it is given up."""
    if attempts >= ATTEMPTS and age >= PATIENCE:
        return None
    wait = _WAITS[min(max(attempts, 1), len(_WAITS)) - 1]
    return timedelta(seconds=max(wait, min(asked_seconds or 0, LONGEST_ASKED)))
