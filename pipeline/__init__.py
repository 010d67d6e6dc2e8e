"""batchsieve: choose training images by their features, and train on them at any batch size."""
