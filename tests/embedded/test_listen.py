"""How the embedded server listens."""

import socket

from app.embedded.service import _listen


def test_answers_are_not_held_back_for_an_acknowledgement() -> None:
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
