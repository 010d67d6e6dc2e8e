"""What `python -m pipeline tune` is made of."""
