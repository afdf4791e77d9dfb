"""The channel: questions and answers over a socket, with an end in sight."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from exercises.isolation.channel import (
    Channel,
    PeerGoneError,
    PeerTimeoutError,
    RemoteError,
    answer,
    serve,
    value_of,
)
from exercises.isolation.wire import WireError


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = socket.socketpair()
    channels = Channel(ours), Channel(theirs)
    yield channels
    for channel in channels:
        channel.close()


def test_a_question_is_answered_and_an_error_arrives_as_one(
    ends: tuple[Channel, Channel],
) -> None:
    asking, answering = ends
    handlers = {"add": lambda a, b: a + b, "fail": lambda: 1 / 0}
    thread = threading.Thread(target=serve, args=(answering, handlers))
    thread.start()
    assert asking.ask("add", 2, 3) == 5
    with pytest.raises(RemoteError, match="ZeroDivisionError: division by zero"):
        asking.ask("fail")
    with pytest.raises(RemoteError, match="KeyError"):
        asking.ask("unknown")
    asking.close()
    thread.join(timeout=5)
    assert not thread.is_alive()


def test_an_answer_that_does_not_fit_the_wire_is_an_error(ends: tuple[Channel, Channel]) -> None:
    asking, answering = ends
    answer(answering, {"give": lambda: object()}, ("give",))
    assert asking.receive()[:2] == ("raised", "WireError")


@pytest.mark.parametrize("question", [None, 7, (), "x", [["a"]], ("give", 1, 2)])
def test_a_question_that_is_none_gets_an_error(
    question: object, ends: tuple[Channel, Channel]
) -> None:
    asking, answering = ends
    answer(answering, {"give": lambda: 1}, question)
    assert asking.receive()[0] == "raised"


@pytest.mark.parametrize("said", [None, ("value",), ("raised", 1, 2, 3), ("other", 1)])
def test_an_answer_that_is_none_is_no_value(said: object) -> None:
    with pytest.raises(WireError):
        value_of(said)


def test_a_peer_that_has_ended_and_one_that_is_silent(ends: tuple[Channel, Channel]) -> None:
    asking, answering = ends
    asking.deadline = time.monotonic() + 0.05
    with pytest.raises(PeerTimeoutError):
        asking.receive()
    asking.deadline = None
    answering.close()
    with pytest.raises(PeerGoneError):
        asking.receive()


def test_half_a_message_and_then_the_end(ends: tuple[Channel, Channel]) -> None:
    asking, answering = ends
    answering._connection.sendall(bytes(7))
    answering.close()
    with pytest.raises(PeerGoneError):
        asking.receive()
