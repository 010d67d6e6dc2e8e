"""What a person calls beside DVC: one module a command, each with `main(argv) -> exit code`."""
