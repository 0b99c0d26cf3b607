"""A notification in the format of each channel. Text from outside is always data there, never markup.

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

from app.domain.notifications.events import EVENTS, TEST, Notification
from app.domain.text import one_line

_SLACK_HEADER, _SLACK_SECTION = 150, 3000
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!<>|~&])")
_MOST_SUBJECT = 200


def webhook_body(notification: Notification, message_id: str, link: str, replay_of: str | None) -> bytes:
    """Return the JSON body of a webhook. `message_id`: also in the signed header. `replay_of`: id of the original."""
    return _json(
        {
            "type": notification.event,
            "timestamp": notification.at.isoformat(),
            "delivery": message_id,
            "replay_of": replay_of,
            "project": notification.project,
            "title": notification.title,
            "lines": list(notification.lines),
            "url": link or None,
            "data": dict(notification.data),
        }
    )


def slack_body(notification: Notification, link: str) -> bytes:
    """Return Block Kit JSON for an incoming webhook. Phones show `text`."""
    words = "\n".join(slack_text(line) for line in notification.lines)[:_SLACK_SECTION]
    blocks: list[dict[str, Any]] = [
        # Slack reads no markup in headers.
        {"type": "header", "text": {"type": "plain_text", "text": notification.title[:_SLACK_HEADER], "emoji": False}},
    ]
    if words:
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": words, "verbatim": True}})
    foot = slack_text(_meaning(notification))
    if link:
        foot = f"<{slack_text(link)}|Open in Threewalls> · {foot}"
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": foot, "verbatim": True}]})
    return _json(
        {"text": slack_text(notification.title), "blocks": blocks, "unfurl_links": False, "unfurl_media": False}
    )


def slack_text(text: str) -> str:
    """Escape a text so that it contains no mention, link or entity."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def teams_body(notification: Notification, link: str) -> bytes:
    """Return an Adaptive Card for the Workflows app and incoming webhooks of Teams."""
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "fallbackText": card_text(notification.title),
        "body": [
            _plain(notification.title, size="Medium", weight="Bolder"),
            *(_plain(line) for line in notification.lines),
            _plain(_meaning(notification), isSubtle=True),
        ],
    }  # fmt: skip
    if link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open in Threewalls", "url": link}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return _json({"type": "message", "attachments": [attachment]})


def _plain(line: str, **looks: str | bool) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": _no_functions(line), **looks}]}


def card_text(text: str) -> str:
    """Escape a text that clients read as Markdown."""
    return _MARKDOWN.sub(r"\\\1", _no_functions(text))


def mail(
    notification: Notification, message_id: str, link: str, *, sender: str, to: tuple[str, ...], domain: str
) -> EmailMessage:
    """Return a mail in plain text. All attempts have the same Message-ID, so that mail servers drop duplicates."""
    message = EmailMessage(policy=SMTP)
    message["Subject"] = one_line(f"[Threewalls] {notification.title}")[:_MOST_SUBJECT]
    message["From"] = one_line(sender)
    message["To"] = ", ".join(to)
    message["Date"] = notification.at
    message["Message-ID"] = f"<{message_id}@{domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-Threewalls-Event"] = notification.event
    message.set_content(
        "\n".join(
            [notification.title, "", *notification.lines, "", *([link, ""] if link else []), _meaning(notification)]
        )
    )
    return message


def _meaning(notification: Notification) -> str:
    """Return the meaning of the event, the project and the time, because messages may arrive late or again."""
    meaning = "A test message" if notification.event == TEST else EVENTS.get(notification.event, notification.event)
    return f"{meaning}. Project {notification.project}, {notification.at.astimezone(UTC):%Y-%m-%d %H:%M} UTC."


def _no_functions(text: str) -> str:
    """Break up `{{`, because cards replace `{{DATE(...)}}`."""
    return text.replace("{{", "{ {")


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# --- The signature of a webhook (Standard Webhooks, https://www.standardwebhooks.com).
#
# HMAC-SHA256 over `ID.TIMESTAMP.BODY`, so that body, time and delivery cannot be changed, nor an old message replayed.

PREFIX = "whsec_"
_BYTES = 32
_ID_BYTES = 16


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(_BYTES)).decode()


def new_message_id() -> str:
    """Return a globally unique id: receivers and mail servers drop messages whose id they know."""
    return f"msg_{secrets.token_hex(_ID_BYTES)}"


def signature(secret: str, message: str, timestamp: int, body: bytes) -> str:
    """Return `v1,` and the HMAC in base64."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{message}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def headers(secret: str, message: str, timestamp: int, body: bytes) -> Mapping[str, str]:
    return {
        "webhook-id": message,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(secret, message, timestamp, body),
    }


# --- Retries.

_WAITS = (10, 60, 300, 1_800, 7_200, 21_600, 43_200)
"""Seconds after the first attempt, the second and so on: a restart is short, an outage may last a night."""
ATTEMPTS = len(_WAITS) + 1
"""Number of attempts before a message is given up, unless some were made early."""
LONGEST_WAIT = timedelta(seconds=max(_WAITS))
PATIENCE = timedelta(seconds=sum(_WAITS))
"""No message is given up earlier, even if a user or an answer caused early attempts."""
LONGEST_ASKED = 3_600
"""Longest pause, in seconds, that a receiver can request with Retry-After."""


def wait_after(attempts: int, age: timedelta, asked_seconds: int | None = None) -> timedelta | None:
    """Return the pause before the next attempt; None to give up. `asked_seconds`: requested by the receiver."""
    if attempts >= ATTEMPTS and age >= PATIENCE:
        return None
    wait = _WAITS[min(max(attempts, 1), len(_WAITS)) - 1]
    return timedelta(seconds=max(wait, min(asked_seconds or 0, LONGEST_ASKED)))
