"""What a run does at SIGTERM and SIGINT, and which handlers it leaves behind."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import Terminated
from pipeline.training.checkpointing import Checkpointer, Checkpoints, stop_and_save_flags
from tests.fixtures.training import ALONE

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Give SIGINT Python's handler: background jobs of a shell ignore it."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def checkpointer(tmp_path: Path) -> Checkpointer:
    return Checkpointer(Checkpoints(tmp_path), stop_and_save_flags(), world=ALONE, steps=1000)


def _send_all(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("sent", _SIGNALS)
def test_the_first_signal_only_requests_a_stop(checkpointer: Checkpointer, sent: signal.Signals) -> None:
    before = [signal.getsignal(number) for number in _SIGNALS]
    with pytest.raises(Terminated), checkpointer.stop_at_signals():
        _send_all(sent, signal.SIGTERM)
    assert checkpointer.stop_requested
    assert [signal.getsignal(number) for number in _SIGNALS] == before


def test_a_second_sigint_ends_the_run_without_a_save(checkpointer: Checkpointer, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), checkpointer.stop_at_signals():
        _send_all(signal.SIGINT, signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not list(tmp_path.iterdir())


def test_an_ignored_sigint_stays_ignored(checkpointer: Checkpointer) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with checkpointer.stop_at_signals():
        _send_all(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
