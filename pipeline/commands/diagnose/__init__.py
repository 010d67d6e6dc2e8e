"""Parts of the command `diagnose`: steps that are timed, and what bounds them."""
