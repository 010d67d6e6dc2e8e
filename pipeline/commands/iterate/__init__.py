"""Parts of the command `iterate`: round 0, images and stages of a round, and the comparison of rounds."""
