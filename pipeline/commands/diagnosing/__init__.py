"""Parts of `python -m pipeline diagnose`."""
