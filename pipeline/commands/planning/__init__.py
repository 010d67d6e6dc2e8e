"""What `plan` knows before a run: sizes of the data, states of the stages, speeds and costs."""
