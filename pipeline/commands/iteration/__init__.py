"""The parts of `recurse`: round 0, the images a round trains on, its stages, and how rounds compare."""
