"""Codes of an authenticator app (TOTP, RFC 6238): six digits that change every 30 seconds."""

import re
from datetime import datetime

import pyotp

_SECRET = re.compile(r"[A-Z2-7]{32}")
_LATE_OR_EARLY = (0, -1, 1)
"""Steps besides the present one that count: clocks differ, and typing takes a while."""


def new_secret() -> str:
    """Return 160 random bits in base 32, as apps take them."""
    return pyotp.random_base32()


def is_secret(text: str) -> bool:
    return _SECRET.fullmatch(text) is not None


def step_of_code(secret: str, code: str, at: datetime, *, after: int = 0) -> int | None:
    """Return the number of the 30 seconds that the code is of; None when it is wrong or not of a step past `after`.

    A code counts once: pass the step of the last one that was accepted.
    """
    totp = pyotp.TOTP(secret)
    now = totp.timecode(at)
    digits = re.sub(r"\s", "", code)
    right = (now + step for step in _LATE_OR_EARLY if pyotp.utils.strings_equal(digits, totp.generate_otp(now + step)))
    return next((step for step in right if step > after), None)


def setup_address(secret: str, account: str) -> str:
    """Return the `otpauth:` address that an app reads, as a QR code shows it."""
    return pyotp.TOTP(secret).provisioning_uri(name=account, issuer_name="Threewalls")
