"""Hyper-parameter search: trials in lockstep, pruning, and settings that win as a preset."""
