"""Dimensionality reduction: PCA, nearest neighbors, t-SNE, and how well an embedding preserves neighbors."""
