"""A mail server that speaks SMTP (RFC 5321) as far as mails are concerned, and keeps what it took."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import cast


@dataclass
class Mail:
    sender: str
    to: list[str]
    message: EmailMessage


@dataclass
class MailServer:
    port: int = 0
    mails: list[Mail] = field(default_factory=list)


@contextmanager
def mail_server(port: int = 0) -> Iterator[MailServer]:
    kept = MailServer()

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            sender, to = "", list[str]()
            self.say("220 mail.example")
            for line in self.rfile:
                word, _, rest = line.decode().strip().partition(" ")
                match word.upper():
                    case "EHLO" | "HELO":
                        self.say("250 mail.example")
                    case "MAIL":
                        sender = rest.partition(":")[2].split()[0].strip("<>")
                        self.say("250 ok")
                    case "RCPT":
                        to.append(rest.partition(":")[2].split()[0].strip("<>"))
                        self.say("250 ok")
                    case "DATA":
                        self.say("354 go on")
                        kept.mails.append(Mail(sender, to, self.message()))
                        self.say("250 ok")
                    case "QUIT":
                        self.say("221 bye")
                        return
                    case _:
                        self.say("502 not known")

        def message(self) -> EmailMessage:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            return cast("EmailMessage", message_from_bytes(b"".join(lines), policy=policy.default))

        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", port), Session) as server:
        kept.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield kept
        finally:
            server.shutdown()
            thread.join()
