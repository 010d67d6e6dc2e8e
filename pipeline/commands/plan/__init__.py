"""Estimates of `plan`: sizes of the data, states of the stages, speeds and costs."""
