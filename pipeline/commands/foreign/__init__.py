"""What `python -m pipeline filter-features` is made of."""
