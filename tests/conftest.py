"""Settings of hypothesis and DVC for all tests, their marks, and fixtures that several folders share."""

import os

import pipeline  # isort: skip - it bounds how long OpenMP threads spin, before anything imports torch or scikit-learn
import pytest
from hypothesis import settings

from tests.fixtures.browser_app import served, shared
from tests.fixtures.chromium import browser, page, pytest_runtest_makereport

__all__ = ["browser", "page", "pipeline", "pytest_runtest_makereport", "served", "shared"]

# Repositories of tests have no .dvc/config that says it; each command would start a process to send usage.
os.environ["DVC_NO_ANALYTICS"] = "1"

# A first import, or another process on the machine, is not a slow example.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

pytest_plugins = ["tests.fixtures.changed", "tests.fixtures.golden", "tests.fixtures.needs"]


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in float64, where sums in another order differ by 1e-15, and mistakes by as much as in float32."""
    from tests.fixtures.training import build_float64  # torch, which few folders need

    monkeypatch.setattr("pipeline.training.state.build_network", build_float64)
