"""The identity provider: where it is (discovery), its keys, and who somebody is by the code that it sent them with."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.common.security import is_secure_transport
from authlib.integrations.httpx_client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from app.access.oidc.account import Identity, WrongIdentity
from app.domain.text import one_line
from app.errors import Unavailable
from app.settings import Settings

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
"""Of ID tokens: signatures by a key that only the provider has. Never `none`, nor one made with the client's secret."""

_TIMEOUT_SECONDS = 10
_PATIENCE_SECONDS = 1.0
_AWAY_SECONDS = 5.0
"""For so long a provider that did not answer is not asked again."""
_REMEMBERED_SECONDS = 3_600
_KEYS_AGAIN_SECONDS = 30
"""A token by an unknown key has them read again, but not more often than this: keys are changed now and then."""
_LEEWAY_SECONDS = 30
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_MOST_SUBJECT = 300


class Provider:
    """One an application. Asks the network only when somebody logs in."""

    def __init__(self, settings: Settings) -> None:
        self.issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._secret = settings.oidc_secret
        self._scope = settings.oidc_scopes
        self._lock = threading.Lock()
        self._away_until = 0.0
        self._read_at: dict[str, float] = {}
        self._documents: dict[str, Mapping[str, Any]] = {}

    def authorization_address(
        self, *, redirect_uri: str, state: str, nonce: str, verifier: str, again: bool = False
    ) -> str:
        """Where the browser goes to log in; `again`: also who is logged in there. Raises Unavailable."""
        more = {"prompt": "login"} if again else {}
        with self._client(redirect_uri) as client:
            address, _ = client.create_authorization_url(
                self._metadata()["authorization_endpoint"],
                state=state,
                nonce=nonce,
                code_verifier=verifier,
                **more,
            )
        return str(address)

    def identity(self, *, code: str, redirect_uri: str, nonce: str, verifier: str) -> Identity:
        """Who the code was given to. Raises WrongIdentity, Unavailable."""
        address = self._metadata()["token_endpoint"]
        try:
            with self._client(redirect_uri) as client:
                answer = client.fetch_token(
                    address, grant_type="authorization_code", code=code, code_verifier=verifier,
                    redirect_uri=redirect_uri,
                )  # fmt: skip
        except AuthlibBaseError as error:
            raise WrongIdentity(f"the token endpoint refused the code: {error.error}") from error
        except (httpx2.HTTPError, ValueError) as error:
            raise _away(error) from error
        if not isinstance(raw := answer.get("id_token"), str):
            raise WrongIdentity("the token endpoint sent no ID token")
        return self._checked(raw, nonce, answer.get("access_token"))

    def _checked(self, raw: str, nonce: str, access_token: object) -> Identity:
        try:
            token = self._decoded(raw)
            claims = CodeIDToken(
                token.claims,
                token.header,
                options={
                    "iss": {"essential": True, "value": self.issuer},
                    "aud": {"essential": True, "value": self._client_id},
                    "sub": {"essential": True},
                    "exp": {"essential": True},
                },
                params={"nonce": nonce, "client_id": self._client_id, "access_token": access_token},
            )
            claims.validate(leeway=_LEEWAY_SECONDS)
        except (JoseError, ValueError) as error:
            raise WrongIdentity(f"the ID token is refused: {error}") from error
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= _MOST_SUBJECT:
            raise WrongIdentity("the ID token names nobody")
        email = _text(claims, "email") if claims.get("email_verified") is not False else ""
        name = _text(claims, "preferred_username") or _text(claims, "name") or email or subject
        return Identity(self.issuer, subject, one_line(name), email)

    def _decoded(self, raw: str) -> jwt.Token:
        """Its signature is of one of the provider's keys. Raises JoseError, ValueError, Unavailable."""
        jwks_uri = self._metadata()["jwks_uri"]
        try:
            return jwt.decode(raw, self._keys(jwks_uri), algorithms=ALGORITHMS)
        except (JoseError, ValueError):
            if time.monotonic() - self._read_at[jwks_uri] < _KEYS_AGAIN_SECONDS:
                raise
            self._forget(jwks_uri)
            return jwt.decode(raw, self._keys(jwks_uri), algorithms=ALGORITHMS)

    def _metadata(self) -> Mapping[str, Any]:
        found = self._document(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != self.issuer:
            raise Unavailable(
                f"The identity provider calls itself {str(found.get('issuer'))[:200]!r} and not "
                f"{self.issuer!r}, as THREEWALLS_OIDC_ISSUER says. An administrator must correct it."
            )
        for name in _ENDPOINTS:
            if not isinstance(found.get(name), str) or not is_secure_transport(found[name]):
                raise Unavailable(f"The identity provider states no {name} over https. Nobody was logged in.")
        return found

    def _keys(self, jwks_uri: str) -> KeySet:
        return KeySet.import_key_set(dict(self._document(jwks_uri)))  # type: ignore[arg-type]

    def _document(self, address: str) -> Mapping[str, Any]:
        """Raises Unavailable. Nobody waits long for a provider that is away, since anybody may ask to log in."""
        if not self._lock.acquire(timeout=_PATIENCE_SECONDS):
            raise _away(TimeoutError("it has not answered yet"))
        try:
            if address in self._documents and time.monotonic() - self._read_at[address] < _REMEMBERED_SECONDS:
                return self._documents[address]
            if time.monotonic() < self._away_until:
                raise _away(TimeoutError("it did not answer a moment ago"))
            found = self._read(address)
            self._documents[address], self._read_at[address] = found, time.monotonic()
            return found
        finally:
            self._lock.release()

    def _read(self, address: str) -> Mapping[str, Any]:
        try:
            answer = httpx2.get(address, timeout=_TIMEOUT_SECONDS, follow_redirects=False)
            answer.raise_for_status()
            found = answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            if isinstance(error, httpx2.TransportError):
                self._away_until = time.monotonic() + _AWAY_SECONDS
            raise _away(error) from error
        if not isinstance(found, dict):
            raise _away(ValueError("no JSON object"))
        return found

    def _forget(self, address: str) -> None:
        with self._lock:
            self._documents.pop(address, None)

    def _client(self, redirect_uri: str) -> OAuth2Client:
        return OAuth2Client(
            self._client_id, self._secret or None, scope=self._scope, redirect_uri=redirect_uri,
            token_endpoint_auth_method=self._auth_method(), code_challenge_method="S256", timeout=_TIMEOUT_SECONDS,
            follow_redirects=False,
        )  # fmt: skip

    def _auth_method(self) -> str:
        """As the provider can, the better one first; without a secret PKCE alone proves that it is us."""
        if not self._secret:
            return "none"
        can = self._metadata().get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return "client_secret_basic" if "client_secret_basic" in can else "client_secret_post"


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    return one_line(value) if isinstance(value, str) else ""


def _away(error: Exception) -> Unavailable:
    return Unavailable(
        f"The identity provider did not answer as it should ({type(error).__name__}). Nobody was logged in. Try again; "
        "who has a password here logs in by it."
    )
