"""A notice in the form of each channel. What came from outside is data there, never markup.

Slack: https://docs.slack.dev/messaging/formatting-message-text (only `&`, `<` and `>` are escaped).
Teams: https://learn.microsoft.com/adaptive-cards/authoring-cards/text-features (a RichTextBlock takes no Markdown;
`fallbackText` may, so it is escaped).
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any

from app.domain.notices.events import EVENTS, TEST, Notice
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
