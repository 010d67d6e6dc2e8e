"""Penultimate features of a trained network."""
