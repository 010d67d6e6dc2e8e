"""Settings of hypothesis for all tests, and fixtures that several folders share."""

from browser_app import served, shared
from chromium import browser, page, pytest_runtest_makereport
from hypothesis import settings

__all__ = ["browser", "page", "pytest_runtest_makereport", "served", "shared"]

# A first import, or another process on the machine, is not a slow example.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
