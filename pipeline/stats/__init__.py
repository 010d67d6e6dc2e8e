"""Means, differences and proportions of small samples, and what they say of a study's runs."""

from pipeline.stats.estimates import Estimate, crossed_difference, mean_estimate, wilson_interval

__all__ = ["Estimate", "crossed_difference", "mean_estimate", "wilson_interval"]
