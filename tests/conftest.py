"""Settings of hypothesis for all tests."""

from hypothesis import settings

# A first import, or another process on the machine, is not a slow example.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
