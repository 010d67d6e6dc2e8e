"""Parts of `python -m pipeline verify`: what is recorded, the checks of it, and the audit by training again."""
