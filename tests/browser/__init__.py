"""A package, so that its conftest.py is another module than the one above."""
