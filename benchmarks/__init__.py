"""Measurements: ratios within one run, never tests."""
