"""Figures of the artefacts, and the interactive visualizer."""
