"""A channel: messages of the wire over a socket, and questions with answers.

One side asks, the other one answers; which is which depends on the job. An answer is
("value", result) or ("raised", name of the error, message, line).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from exercises.isolation import wire


class PeerGoneError(Exception):
    """The other side has closed the channel, or ended."""


class PeerTimeoutError(Exception):
    """The other side has used up its time."""


class RemoteError(Exception):
    """The other side's code raised; name of the error, its message, the line in its own file."""

    def __init__(self, name: str, message: str, line: int | None = None) -> None:
        super().__init__(f"{name}: {message}" if message else name)
        self.name = name
        self.message = message
        self.line = line


class Channel:
    """One end. `deadline` is a time of `time.monotonic()`, after which PeerTimeoutError is raised.

    Used by one thread at a time.
    """

    def __init__(self, connection: socket.socket, deadline: float | None = None) -> None:
        self._connection = connection
        self.deadline = deadline

    def send(self, value: Any) -> None:
        """Send one value. Raises PeerGoneError, PeerTimeoutError and wire.WireError."""
        message = wire.encode(value)
        try:
            self._connection.settimeout(self._seconds_left())
            self._connection.sendall(message)
        except TimeoutError as error:
            raise PeerTimeoutError("no answer in time") from error
        except OSError as error:
            raise PeerGoneError("the other side has ended") from error

    def receive(self) -> Any:
        """Wait for one value. Raises PeerGoneError, PeerTimeoutError and wire.WireError."""
        return wire.decode(self._read)

    def ask(self, *question: Any) -> Any:
        """Send a question and return the value of the answer. Raises RemoteError if it raised."""
        self.send(question)
        return value_of(self.receive())

    def close(self) -> None:
        """Close this end."""
        self._connection.close()

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        try:
            while len(parts) < count:
                self._connection.settimeout(self._seconds_left())
                part = self._connection.recv(min(count - len(parts), 1 << 20))
                if not part:
                    raise PeerGoneError("the other side has ended")
                parts += part
        except TimeoutError as error:
            raise PeerTimeoutError("no answer in time") from error
        except OSError as error:
            raise PeerGoneError("the other side has ended") from error
        return bytes(parts)

    def _seconds_left(self) -> float | None:
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def value_of(answer: Any) -> Any:
    """Return the value of an answer. Raises RemoteError, and wire.WireError for another thing."""
    match answer:
        case ("value", value):
            return value
        case ("raised", str(name), str(message), int() | None as line):
            raise RemoteError(name[:100], message[:2000], line)
    raise wire.WireError("the answer is none: it is neither a value nor an error")


def serve(channel: Channel, answers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer questions (name, *arguments) until the other side closes the channel."""
    while True:
        try:
            question = channel.receive()
        except PeerGoneError:
            return
        answer(channel, answers, question)


def answer(channel: Channel, answers: Mapping[str, Callable[..., Any]], question: Any) -> None:
    """Answer one question with a value, or with an error where that does not fit the wire."""
    try:
        name, *arguments = question
        channel.send(("value", answers[name](*arguments)))
    except (PeerGoneError, PeerTimeoutError):
        raise
    except Exception as error:
        channel.send(("raised", type(error).__name__, str(error)[:2000], None))
