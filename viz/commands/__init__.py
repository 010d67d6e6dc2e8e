"""Commands of `python -m viz`: one module each, with `main(argv) -> exit code`."""
