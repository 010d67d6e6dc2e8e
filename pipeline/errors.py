"""The one exception that means "the user can mend this": a single line and exit code 2."""


class InputError(ValueError):
    """Bad input from outside: a parameter, a file, a data set, an installation.

    The message is one line that names the key or file, the value found and the mend. Stages and
    commands print it without a traceback and exit with code 2; anything else is a bug and keeps
    its traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
