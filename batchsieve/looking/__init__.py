"""`look`: find labels that are probably wrong in a folder of images, without a project and without training."""
