"""Images: the data sets that `prepare` reads (`registry`), and the loaders that training reads from.

This module imports nothing, so that a change to the reader of a data set does not change the training code.
"""
