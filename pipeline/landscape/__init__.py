"""The loss around a trained network's weights: its sharpest curvature, and slices through it."""
