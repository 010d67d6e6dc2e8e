"""Benchmarks: each measures ratios within one run. None is a test."""

# First, so that OpenMP reads what the package sets.
import pipeline  # noqa: F401
