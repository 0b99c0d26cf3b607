"""The OpenID Connect provider: its endpoints (discovery), its keys, and the identity behind an authorization code.

authlib's Starlette client is not used. It takes the issuer and the signature algorithms from the provider's own
document, caches that document forever, does not pause while the provider is down, and keeps state and nonce in a
signed session cookie, for which this service has no key. What it would replace here is shorter than overriding that.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.common.security import is_secure_transport
from authlib.common.urls import add_params_to_uri
from authlib.integrations.httpx_client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from app.access.login import Identity, WrongIdentityError
from app.domain.text import one_line
from app.errors import Unavailable
from app.settings import Settings

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
"""Signatures of ID tokens by a key that only the provider has: never `none`, nor one made with the client secret."""

_TIMEOUT_SECONDS = 10
_WAIT_SECONDS = 1.0
"""Longest wait for another request that reads from the provider."""
_PAUSE_SECONDS = 5.0
"""No request is sent for this long after the provider did not answer."""
_CACHE_SECONDS = 3_600
_RELOAD_KEYS_SECONDS = 30
"""A token signed by an unknown key reloads the keys, because providers rotate them, but not more often than this."""
_LEEWAY_SECONDS = 30
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_MAX_SUBJECT = 300
_MAX_GROUPS = 2_000
_MAX_GROUP_NAME = 300


class Provider:
    """The provider of one application. It uses the network only when a user logs in."""

    def __init__(self, settings: Settings) -> None:
        self.issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._secret = settings.oidc_secret
        self._scope = settings.oidc_scopes
        self._groups_claim = settings.oidc_groups_claim
        self._lock = threading.Lock()
        self._paused_until = 0.0
        self._read_at: dict[str, float] = {}
        self._documents: dict[str, Mapping[str, Any]] = {}

    def authorization_address(self, *, redirect_uri: str, state: str, nonce: str, verifier: str, again: bool) -> str:
        """Return the URL at which the browser logs in. Raises Unavailable.

        `again`: the provider requests the password even if the user is logged in there.
        """
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
        """Return the identity for the authorization code. Raises WrongIdentityError, Unavailable."""
        address = self._metadata()["token_endpoint"]
        try:
            with self._client(redirect_uri) as client:
                answer = client.fetch_token(
                    address, grant_type="authorization_code", code=code, code_verifier=verifier,
                    redirect_uri=redirect_uri,
                )  # fmt: skip
        except AuthlibBaseError as error:
            raise WrongIdentityError(f"the token endpoint refused the code: {error.error}") from error
        except (httpx2.HTTPError, ValueError) as error:
            raise _unavailable(error) from error
        if not isinstance(id_token := answer.get("id_token"), str):
            raise WrongIdentityError("the token endpoint sent no ID token")
        return self._checked(id_token, nonce, answer.get("access_token"))

    def _checked(self, id_token: str, nonce: str, access_token: object) -> Identity:
        try:
            token = self._decoded(id_token)
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
            raise WrongIdentityError(f"the ID token is invalid: {error}") from error
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT:
            raise WrongIdentityError("the ID token has no usable subject")
        email = _text(claims, "email") if claims.get("email_verified") is not False else ""
        name = _text(claims, "preferred_username") or _text(claims, "name") or email or subject
        return Identity(self.issuer, subject, one_line(name), email, self._groups(claims))

    def _groups(self, claims: Mapping[str, Any]) -> frozenset[str] | None:
        """Return the groups of the user; None if the service does not read them. Empty without the claim."""
        if not self._groups_claim:
            return None
        value = claims.get(self._groups_claim)
        names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        return frozenset(name for name in names[:_MAX_GROUPS] if isinstance(name, str) and len(name) <= _MAX_GROUP_NAME)

    def log_out_address(self, back: str) -> str:
        """Return where the user logs out of the provider too; empty if it has no such page. Raises Unavailable.

        `back`: where the provider may send the browser afterwards.
        """
        endpoint = self._metadata().get("end_session_endpoint")
        if not isinstance(endpoint, str) or not is_secure_transport(endpoint):
            return ""
        return str(add_params_to_uri(endpoint, {"client_id": self._client_id, "post_logout_redirect_uri": back}))

    def _decoded(self, id_token: str) -> jwt.Token:
        """Return the token if one of the provider's keys signed it. Raises JoseError, ValueError, Unavailable."""
        jwks_uri = self._metadata()["jwks_uri"]
        try:
            return jwt.decode(id_token, self._keys(jwks_uri), algorithms=ALGORITHMS)
        except (JoseError, ValueError):
            if time.monotonic() - self._read_at[jwks_uri] < _RELOAD_KEYS_SECONDS:
                raise
            with self._lock:
                self._documents.pop(jwks_uri, None)
            return jwt.decode(id_token, self._keys(jwks_uri), algorithms=ALGORITHMS)

    def _metadata(self) -> Mapping[str, Any]:
        metadata = self._document(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
        if metadata.get("issuer") != self.issuer:
            raise Unavailable(
                f"The identity provider calls itself {str(metadata.get('issuer'))[:200]!r}, but THREEWALLS_OIDC_ISSUER "
                f"is {self.issuer!r}. An administrator must correct the setting."
            )
        for name in _ENDPOINTS:
            if not isinstance(metadata.get(name), str) or not is_secure_transport(metadata[name]):
                raise Unavailable(f"The identity provider has no {name} over https. You were not logged in.")
        return metadata

    def _keys(self, jwks_uri: str) -> KeySet:
        return KeySet.import_key_set(dict(self._document(jwks_uri)))  # type: ignore[arg-type]

    def _document(self, address: str) -> Mapping[str, Any]:
        """Return a JSON document of the provider, cached. Raises Unavailable.

        Requests do not queue up while the provider is down, because callers without a log-in can send them.
        """
        if not self._lock.acquire(timeout=_WAIT_SECONDS):
            raise _unavailable(TimeoutError("another request is waiting for it"))
        try:
            if address in self._documents and time.monotonic() - self._read_at[address] < _CACHE_SECONDS:
                return self._documents[address]
            if time.monotonic() < self._paused_until:
                raise _unavailable(TimeoutError("it did not answer a moment ago"))
            document = self._read(address)
            self._documents[address], self._read_at[address] = document, time.monotonic()
            return document
        finally:
            self._lock.release()

    def _read(self, address: str) -> Mapping[str, Any]:
        try:
            answer = httpx2.get(address, timeout=_TIMEOUT_SECONDS, follow_redirects=False)
            answer.raise_for_status()
            document = answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            if isinstance(error, httpx2.TransportError):
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
            raise _unavailable(error) from error
        if not isinstance(document, dict):
            raise _unavailable(ValueError("no JSON object"))
        return document

    def _client(self, redirect_uri: str) -> OAuth2Client:
        return OAuth2Client(
            self._client_id, self._secret or None, scope=self._scope, redirect_uri=redirect_uri,
            token_endpoint_auth_method=self._auth_method(), code_challenge_method="S256", timeout=_TIMEOUT_SECONDS,
            follow_redirects=False,
        )  # fmt: skip

    def _auth_method(self) -> str:
        """Return the better method that the provider supports. Without a client secret, PKCE alone identifies us."""
        if not self._secret:
            return "none"
        supported = self._metadata().get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return "client_secret_basic" if "client_secret_basic" in supported else "client_secret_post"


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    return one_line(value) if isinstance(value, str) else ""


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(
        f"The identity provider did not answer as expected ({type(error).__name__}). You were not logged in. Try "
        "again, or log in with a password if you have one here."
    )
