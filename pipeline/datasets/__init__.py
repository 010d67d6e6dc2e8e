"""Images: the data sets that `prepare` reads (`registry`), and the loaders that training reads from.

Kept empty of imports, so that a change to a data set's reader is no change to the training code.
"""
