"""From features to a map: principal components, t-SNE, and how much of the neighbourhood survives."""
