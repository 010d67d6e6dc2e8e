"""Measurements for a few minutes on a GPU, in steps: `python -m benchmarks.gpu_day`."""
