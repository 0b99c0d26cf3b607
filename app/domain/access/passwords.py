"""Passwords: argon2id in three passes; with 64 MiB, RFC 9106's second choice, a check takes about 0.1 s."""

import re
import threading
from datetime import datetime, timedelta
from functools import lru_cache

import pyotp
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from app.domain.access.common_passwords import COMMON

LEAST_LENGTH = 12
MOST_LENGTH = 200
FIRST_PASSWORD_LASTS = timedelta(hours=72)
"""One that somebody else set opens nothing any more after this."""
AT_ONCE = 2
"""Checks at a time: each takes so much memory, and who guesses must not be able to take all of the memory."""

_KIB = 1024

PRODUCT = "threewalls"
LEAST_NAME = 4
"""Shorter parts of names stand in too many words."""
_WRITTEN_FOR = str.maketrans("013457@$!", "oieastasi")

_turn = threading.BoundedSemaphore(AT_ONCE)
_NOBODYS = (
    "$argon2id$v=19$m={kib},t={passes},p={lanes}$sRcPeg/t7FJAVmfP7fVSaQ$mAHKNrxDZC8PUiJaHVms2p5bySWWJNhOEA/WLz8bcSs"
)
"""What the password of an unknown name is checked against, so that the answer takes the same time. Opens nothing."""


def problem_with(password: str, account: str) -> str:
    """Return why it is not accepted as a new one of the account of this name; empty when it is."""
    core, spelled = _core(password), _spelled(password)
    names = {PRODUCT, *re.split(r"[ ._@'+-]+", account)}
    wrong = {
        f"must have at least {LEAST_LENGTH} characters": len(password) < LEAST_LENGTH,
        f"must have at most {MOST_LENGTH} characters": len(password) > MOST_LENGTH,
        "must not be the same few characters over and over": len(set(password)) < 4,
        "must have letters, too": not core,
        "is one of the most common ones, whatever stands before and after it": core in COMMON,
        "must hold neither the account's name nor that of this service": any(
            len(name) >= LEAST_NAME and _spelled(name) in spelled for name in names
        ),
    }
    return next((why for why, is_so in wrong.items() if is_so), "")


def _core(password: str) -> str:
    """Return what is left of it without digits and signs at its ends, and but once when it is repeated."""
    core = re.sub(r"^[\W\d_]+|[\W\d_]+$", "", re.sub(r"\s", "", password.lower()))
    core = _spelled(core)
    unit = (core + core).find(core, 1) if core else 0
    return core[:unit]


def _spelled(text: str) -> str:
    """Return it in small letters, with letters for the signs that are often written for them."""
    return re.sub(r"\s", "", text.lower()).translate(_WRITTEN_FOR)


def hashed(password: str, memory_mib: int) -> str:
    with _turn:
        return _hasher(memory_mib).hash(password)


def is_right(password: str, kept: str, memory_mib: int) -> bool:
    """Return whether it is the password of this hash. An empty hash (no account, or one without a password) takes as
    long as one made with `memory_mib`."""
    hasher = _hasher(memory_mib)
    against = kept or _NOBODYS.format(kib=hasher.memory_cost, passes=hasher.time_cost, lanes=hasher.parallelism)
    with _turn:
        try:
            return hasher.verify(against, password[: MOST_LENGTH + 1]) and bool(kept)
        except (VerificationError, InvalidHashError):
            return False


def is_outdated(kept: str, memory_mib: int) -> bool:
    """Return whether it was made with other parameters than today's: to be made anew at the next log-in."""
    return _hasher(memory_mib).check_needs_rehash(kept)


@lru_cache
def _hasher(memory_mib: int) -> PasswordHasher:
    return PasswordHasher(memory_cost=memory_mib * _KIB)


# --- Codes of an authenticator app (TOTP, RFC 6238): six digits that change every 30 seconds.

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
