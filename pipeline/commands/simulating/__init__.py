"""Parts of `python -m pipeline simulate`."""
