"""Analyses of runs: bits of finished runs compared, and critical batch sizes from branched runs and gradients."""
