"""Parts of the command `iterate`: round 0, the images of a round, its stages, and the comparison of rounds."""
