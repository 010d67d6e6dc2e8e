"""Statistics of a study: estimates with intervals, tests, paired verdicts, and their tables."""

from pipeline.stats.estimates import Estimate, crossed_estimate, mean_estimate, wilson_interval

__all__ = ["Estimate", "crossed_estimate", "mean_estimate", "wilson_interval"]
