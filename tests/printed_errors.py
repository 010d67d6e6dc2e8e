"""Keys that errors name: in exceptions whose message begins with a file, and on standard error."""

from pipeline.errors import InputError


def key_within(error: InputError, source: object) -> str:
    """The key of a message of the form "source: key: value; fix".

    Args:
        source: what the message names first, such as the parameter file.
    """
    message = str(error)
    assert message.startswith(f"{source}: "), message
    return InputError(message.removeprefix(f"{source}: ")).key


def printed_error(stderr: str) -> InputError:
    """The error of bad input that a stage, a command or argparse printed as its last line."""
    lines = stderr.splitlines()
    assert lines, "nothing was printed"
    _, found, message = lines[-1].partition("error: ")
    assert found, stderr
    return InputError(message)
