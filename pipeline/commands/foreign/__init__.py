"""The part of `filter-features` that reads what it is given."""
