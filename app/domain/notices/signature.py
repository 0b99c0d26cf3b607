"""The signature of a webhook's body, as the Standard Webhooks specification says (https://www.standardwebhooks.com).

HMAC-SHA256 over `ID.TIMESTAMP.BODY`, so that neither the body nor when it was sent nor which delivery it is can be
changed, and an old message cannot be sent again as a new one.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping

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
