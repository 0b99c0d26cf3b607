"""An identity provider as a process: discovery, keys, codes with PKCE, RS256, and configurable false statements.

python -m tests.services.provider_server: prints its URL, then answers until it is stopped.
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "threewalls", "a secret of the client"
CALLBACK = "http://testserver/login/oidc/callback"


class Book:
    """The provider's state: its key, issued codes, the next user, and its false statements."""

    def __init__(self) -> None:
        self.address = ""
        self.codes: dict[str, dict[str, str]] = {}
        self.person: dict[str, Any] = {"sub": "1"}
        self.lie: dict[str, Any] = {}
        self.rotate()
        self.foreign = RSAKey.generate_key(2048, {"kid": self.key.kid or ""})

    def rotate(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": secrets.token_hex(4)})

    def id_token(self, nonce: str) -> str:
        now = int(time.time())
        claims = {"iss": self.address, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": nonce} | self.person
        claims = {name: value for name, value in (claims | self.lie.get("claims", {})).items() if value is not None}
        algorithm = self.lie.get("alg", "RS256")
        if algorithm == "RS256":
            key = self.foreign if self.lie.get("foreign_key") else self.key
            return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, key)
        signed = f"{packed({'alg': algorithm, 'kid': self.key.kid})}.{packed(claims)}"
        mac = hmac.digest(SECRET.encode(), signed.encode(), "sha256") if algorithm == "HS256" else b""
        return f"{signed}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


BOOK: Book  # created only in the process, because two keys take a quarter of a second


def packed(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match parts.path:
            case "/.well-known/openid-configuration":
                self.answer(
                    200,
                    {
                        "issuer": BOOK.lie.get("issuer", BOOK.address),
                        "authorization_endpoint": f"{BOOK.address}/authorize",
                        "token_endpoint": f"{BOOK.address}/token",
                        "jwks_uri": f"{BOOK.address}/jwks",
                        "end_session_endpoint": f"{BOOK.address}/logout?realm=1",
                        "response_types_supported": ["code"],
                        "subject_types_supported": ["public"],
                        "id_token_signing_alg_values_supported": ["RS256"],
                        "code_challenge_methods_supported": ["S256"],
                    },
                )
            case "/jwks":
                self.answer(200, {"keys": [BOOK.key.as_dict(private=False)]})
            case "/authorize":
                self.authorize(query)
            case _:
                self.answer(404, {})

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self.path == "/test":
            wanted = json.loads(sent)
            BOOK.person, BOOK.lie = wanted.get("person", {"sub": "1"}), wanted.get("lie", {})
            if wanted.get("rotate"):
                BOOK.rotate()
            self.answer(200, {})
        elif self.path == "/token":
            self.exchange({name: values[0] for name, values in parse_qs(sent).items()})

    def authorize(self, query: dict[str, str]) -> None:
        expected = {
            "response_type": "code", "client_id": CLIENT, "redirect_uri": CALLBACK, "code_challenge_method": "S256",
        }  # fmt: skip
        whole = all(query.get(name) == value for name, value in expected.items()) and query.get("state")
        if not whole or "openid" not in query.get("scope", "").split() or len(query.get("code_challenge", "")) != 43:
            self.answer(400, {"error": "invalid_request"})
            return
        code = secrets.token_urlsafe(16)
        BOOK.codes[code] = query
        outcome = {"code": code} if not BOOK.lie.get("error") else {"error": BOOK.lie["error"]}
        self.send_response(302)
        self.send_header("Location", f"{CALLBACK}?{urlencode(outcome | {'state': query['state']})}")
        self.end_headers()

    def exchange(self, sent: dict[str, str]) -> None:
        login = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {login}":
            self.answer(401, {"error": "invalid_client"})
            return
        given = BOOK.codes.pop(sent.get("code", ""), None)  # once
        verifier = hashlib.sha256(sent.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).decode().rstrip("=")
        right = given and sent.get("grant_type") == "authorization_code" and sent.get("redirect_uri") == CALLBACK
        if not right or not given or given["code_challenge"] != challenge:
            self.answer(400, {"error": "invalid_grant"})
            return
        token = BOOK.id_token(given["nonce"])
        self.answer(200, {"access_token": secrets.token_hex(8), "token_type": "Bearer", "id_token": token})

    def answer(self, status: int, body: dict[str, Any]) -> None:
        sent = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        """Silent."""


if __name__ == "__main__":
    BOOK = Book()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    BOOK.address = f"http://127.0.0.1:{server.server_address[1]}"
    print(BOOK.address, flush=True)
    server.serve_forever()
