"""Inputs, settings and outputs of `filter-features`."""
