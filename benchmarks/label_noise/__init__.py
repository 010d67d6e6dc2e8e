"""Measure which scorers find wrong labels: planted noise, or labels of the data compared with the truth."""
