"""What a few minutes on a GPU can teach, in steps: `python -m benchmarks.gpu_day`."""
