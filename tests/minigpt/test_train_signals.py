"""Signals in a training run: the first is noted, a second Ctrl-C ends, a closed terminal saves."""

import signal
import sys
from collections.abc import Iterator

import pytest

from minigpt.train._signals import signals_noted

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGHUP there")


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """Handlers as in a program that has just started, and afterwards as they were."""
    usual = {signal.SIGINT: signal.default_int_handler}
    usual |= {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, usual[number]) for number in usual}
    yield
    now = {number: signal.getsignal(number) for number in usual}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert now == usual  # each test leaves the block behind


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_is_noted(number: signal.Signals) -> None:
    with signals_noted() as requested:
        assert not requested.is_set()
        signal.raise_signal(number)
        assert requested.is_set()


def test_the_second_ends_at_once() -> None:
    with signals_noted():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    with signals_noted(second_ends=False) as requested:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert requested.is_set()


def test_a_closing_terminal_may_say_so_twice() -> None:
    """The shell and the system both send SIGHUP; the run is saved all the same."""
    with signals_noted() as requested:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert requested.is_set()


def test_nohup_is_respected() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_noted() as requested:
        signal.raise_signal(signal.SIGHUP)
        assert not requested.is_set()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
