"""Settings of hypothesis and DVC for all tests, their marks, and fixtures that several folders share."""

import os

from browser_app import served, shared
from chromium import browser, page, pytest_runtest_makereport
from hypothesis import settings

__all__ = ["browser", "page", "pytest_runtest_makereport", "served", "shared"]

# Repositories of tests have no .dvc/config that says it; each command would start a process to send usage.
os.environ["DVC_NO_ANALYTICS"] = "1"

# A first import, or another process on the machine, is not a slow example.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

pytest_plugins = ["changed", "needs"]
