"""What `filter-features` does with pictures."""
