"""Parameters: one validated, frozen model per section of params.yaml."""
