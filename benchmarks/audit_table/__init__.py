"""One table of audits: networks by kinds of noise, every scorer, at equal training time."""
