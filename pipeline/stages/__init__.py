"""One module per DVC stage: parse, load, run, save."""
