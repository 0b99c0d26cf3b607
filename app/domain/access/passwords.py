"""Passwords: argon2id in three passes; with 64 MiB, RFC 9106's second choice, a check takes about 0.1 s."""

import re
import threading
import tomllib
from datetime import datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path

import pyotp
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

LEAST_LENGTH = 12
MOST_LENGTH = 200
FIRST_PASSWORD_LASTS = timedelta(hours=72)
"""Lifetime of a password that an administrator set."""
AT_ONCE = 2
"""Checks at a time. Each needs much memory, and password guessing must not exhaust it."""

_KIB = 1024

PRODUCT = "threewalls"
LEAST_NAME = 4
"""Shorter parts of names occur in too many ordinary words."""
_WRITTEN_FOR = str.maketrans("013457@$!", "oieastasi")

_turn = threading.BoundedSemaphore(AT_ONCE)
_DUMMY_HASH = (
    "$argon2id$v=19$m={kib},t={passes},p={lanes}$sRcPeg/t7FJAVmfP7fVSaQ$mAHKNrxDZC8PUiJaHVms2p5bySWWJNhOEA/WLz8bcSs"
)
"""Hash that the password of an unknown name is checked against, so that the answer takes the same time."""


def problem_with(password: str, account: str) -> str:
    """Return why the password is not acceptable for the user `account`; empty when it is."""
    core, spelled = _core(password), _spelled(password)
    names = {PRODUCT, *re.split(r"[ ._@'+-]+", account)}
    wrong = {
        f"must have at least {LEAST_LENGTH} characters": len(password) < LEAST_LENGTH,
        f"must have at most {MOST_LENGTH} characters": len(password) > MOST_LENGTH,
        "must not repeat the same few characters": len(set(password)) < 4,
        "must contain letters": not core,
        "is a common password, with or without digits and signs around it": core in _common(),
        "must contain neither the user name nor the name of this service": any(
            len(name) >= LEAST_NAME and _spelled(name) in spelled for name in names
        ),
    }
    return next((why for why, is_so in wrong.items() if is_so), "")


@cache
def _common() -> frozenset[str]:
    """Return common passwords, without digits and signs around them."""
    table = Path(__file__).with_name("common_passwords.toml")
    return frozenset(tomllib.loads(table.read_text(encoding="utf-8"))["words"].split())


def _core(password: str) -> str:
    """Return the password without digits and signs at its ends; of a repetition, one repeat."""
    core = re.sub(r"^[\W\d_]+|[\W\d_]+$", "", re.sub(r"\s", "", password.lower()))
    core = _spelled(core)
    unit = (core + core).find(core, 1) if core else 0
    return core[:unit]


def _spelled(text: str) -> str:
    """Return the text in lower case, with look-alike digits and signs replaced by letters."""
    return re.sub(r"\s", "", text.lower()).translate(_WRITTEN_FOR)


def hashed(password: str, memory_mib: int) -> str:
    with _turn:
        return _hasher(memory_mib).hash(password)


def is_right(password: str, stored: str, memory_mib: int) -> bool:
    """Return whether the password matches the hash.

    An empty hash (no such user, or one without a password) takes as long as a hash made with `memory_mib`.
    """
    hasher = _hasher(memory_mib)
    against = stored or _DUMMY_HASH.format(kib=hasher.memory_cost, passes=hasher.time_cost, lanes=hasher.parallelism)
    with _turn:
        try:
            return hasher.verify(against, password[: MOST_LENGTH + 1]) and bool(stored)
        except (VerificationError, InvalidHashError):
            return False


def is_outdated(stored: str, memory_mib: int) -> bool:
    """Return whether the hash has other parameters than the current ones, so that the next log-in replaces it."""
    return _hasher(memory_mib).check_needs_rehash(stored)


@lru_cache
def _hasher(memory_mib: int) -> PasswordHasher:
    return PasswordHasher(memory_cost=memory_mib * _KIB)


# --- Codes of an authenticator app (TOTP, RFC 6238): six digits that change every 30 seconds.

_SECRET = re.compile(r"[A-Z2-7]{32}")
_LATE_OR_EARLY = (0, -1, 1)
"""Accepted steps relative to the current one: clocks differ, and typing takes time."""


def new_secret() -> str:
    """Return 160 random bits in base 32, as authenticator apps expect."""
    return pyotp.random_base32()


def is_secret(text: str) -> bool:
    return _SECRET.fullmatch(text) is not None


def step_of_code(secret: str, code: str, at: datetime, *, after: int = 0) -> int | None:
    """Return the time step of the code; None when the code is wrong or its step is not after `after`.

    A code is valid once: pass the step of the last accepted code as `after`.
    """
    totp = pyotp.TOTP(secret)
    now = totp.timecode(at)
    digits = re.sub(r"\s", "", code)
    matching = (
        now + step for step in _LATE_OR_EARLY if pyotp.utils.strings_equal(digits, totp.generate_otp(now + step))
    )
    return next((step for step in matching if step > after), None)


def setup_address(secret: str, account: str) -> str:
    """Return the `otpauth:` address that an app reads, as a QR code shows it."""
    return pyotp.TOTP(secret).provisioning_uri(name=account, issuer_name="Threewalls")
