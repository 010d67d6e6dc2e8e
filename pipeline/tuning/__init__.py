"""Hyper-parameter search: trials in lockstep, early elimination, and settings that win as a preset."""
