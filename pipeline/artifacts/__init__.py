"""The files that stages exchange: atomic writers, and readers that check what they read."""
