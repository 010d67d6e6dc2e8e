"""What `python -m viz` can do, a module each with `main(argv) -> exit code`."""
