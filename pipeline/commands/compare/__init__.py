"""Read, pair and test two experiments, and write the text of `python -m pipeline compare`."""
