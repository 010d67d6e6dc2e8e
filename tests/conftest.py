"""Set up hypothesis, DVC and pytest's plugins for all tests, and share fixtures between folders."""

import gc
import os
import signal

import pipeline  # isort: skip - it bounds how long OpenMP threads spin, before anything imports torch or scikit-learn
import pytest
from hypothesis import settings

from pipeline.processes import disable_malloc_trim
from tests.fixtures.browser_app import running_app, served
from tests.fixtures.chromium import page, profile, pytest_runtest_makereport

__all__ = ["page", "pipeline", "profile", "pytest_runtest_makereport", "running_app", "served"]

# The repositories of tests have no .dvc/config with this setting; without it each command starts a process to send
# usage.
os.environ["DVC_NO_ANALYTICS"] = "1"

# An example is slow at a first import, or when another process uses the machine: that is no failure.
settings.register_profile("fast", deadline=None, max_examples=25)
settings.register_profile("all", deadline=None)

pytest_plugins = ["tests.fixtures.changed", "tests.fixtures.golden", "tests.fixtures.needs"]


def pytest_configure(config: pytest.Config) -> None:
    """Keep freed memory, as training does; try more examples where slow tests run too, before any test is imported.

    What is written outlives its process without fsync, and no test cuts the power. The garbage collector is off while
    tests are imported, which leaves next to no garbage and many objects to scan. Background jobs of a shell ignore
    SIGINT, and so would the processes that tests start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    disable_malloc_trim()
    pytest.MonkeyPatch().setattr(os, "fsync", lambda _: None)
    settings.load_profile("fast" if "not slow" in config.option.markexpr else "all")
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first: no process then waits for the last file of another."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from scanning the imported libraries: a full collection takes a second with them."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Let libraries free what they warn of at exit."""
    gc.unfreeze()


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in float64: sums in another order then differ by 1e-15, while mistakes differ by as much as in float32."""
    from tests.fixtures.training import build_float64  # imports torch, which few folders need

    monkeypatch.setattr("pipeline.training.state.build_network", build_float64)
