"""Measurements: ratios within one run, never tests."""

# First, so that OpenMP reads what the package sets.
import pipeline  # noqa: F401
