"""Training one network, and a study's many."""
