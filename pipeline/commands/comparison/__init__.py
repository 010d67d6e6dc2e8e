"""Two experiments side by side: what `python -m pipeline compare` reads, pairs, tests and says."""
