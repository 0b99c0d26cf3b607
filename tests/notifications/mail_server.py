"""A mail server that implements the part of SMTP (RFC 5321) that sends mails, and stores the accepted ones.

With a certificate it uses TLS, after STARTTLS (RFC 3207) or from the first byte; with credentials it accepts mails only
from authenticated clients (RFC 4954), which it offers only after TLS.
"""

import base64
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import cast


@dataclass
class Mail:
    sender: str
    to: list[str]
    message: EmailMessage
    encrypted: bool


@dataclass
class MailServer:
    """`shown`: the accounts that somebody tried to log in with, each with its password."""

    port: int = 0
    mails: list[Mail] = field(default_factory=list)
    shown: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def mail_server(
    port: int = 0, *, certificate: Path | None = None, tls: bool = False, account: tuple[str, str] | None = None
) -> Iterator[MailServer]:
    """`certificate`: next to its `key.pem`. `tls`: from the first byte."""
    mail = MailServer()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate is not None:
        context.load_cert_chain(certificate, certificate.parent / "key.pem")

    class Session(socketserver.StreamRequestHandler):
        encrypted = False
        is_logged_in = account is None

        def handle(self) -> None:
            with suppress(OSError):  # a client that does not trust the certificate disconnects
                if tls:
                    self.encrypt()
                self.talk()
            self.connection.close()

        def talk(self) -> None:
            sender, to = "", list[str]()
            self.say("220 mail.example")
            while line := self.rfile.readline():
                word, _, rest = line.decode().strip().partition(" ")
                match word.upper():
                    case "EHLO" | "HELO":
                        self.say("250-mail.example", *(f"250-{offer}" for offer in self.offers()), "250 8BITMIME")
                    case "STARTTLS" if certificate is not None:
                        self.say("220 go on")
                        self.encrypt()
                    case "AUTH" if account is not None and self.encrypted:
                        self.log_in(rest)
                    case "MAIL" if not self.is_logged_in:
                        self.say("530 log in first")
                    case "MAIL":
                        sender = rest.partition(":")[2].split()[0].strip("<>")
                        self.say("250 ok")
                    case "RCPT":
                        to.append(rest.partition(":")[2].split()[0].strip("<>"))
                        self.say("250 ok")
                    case "DATA":
                        self.say("354 go on")
                        mail.mails.append(Mail(sender, to, self.message(), self.encrypted))
                        self.say("250 ok")
                    case "QUIT":
                        self.say("221 bye")
                        return
                    case _:
                        self.say("502 not known")

        def offers(self) -> list[str]:
            able = {"STARTTLS": certificate and not self.encrypted, "AUTH PLAIN": account and self.encrypted}
            return [name for name, offered in able.items() if offered]

        def encrypt(self) -> None:
            self.encrypted = True
            self.request = self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)

        def log_in(self, sent: str) -> None:
            _, user, password = base64.b64decode(sent.removeprefix("PLAIN ")).decode().split("\0")
            mail.shown.append((user, password))
            self.is_logged_in = (user, password) == account
            self.say("235 hello" if self.is_logged_in else f"535 {password} is wrong")

        def message(self) -> EmailMessage:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            return cast("EmailMessage", message_from_bytes(b"".join(lines), policy=policy.default))

        def say(self, *lines: str) -> None:
            self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", port), Session) as server:
        mail.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield mail
        finally:
            server.shutdown()
            thread.join()
