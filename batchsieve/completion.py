"""`batchsieve completion SHELL`: print a script that completes commands, options and files.

    batchsieve completion bash > ~/.local/share/bash-completion/completions/batchsieve
    batchsieve completion zsh > ~/.zfunc/_batchsieve        # a folder of $fpath

The script is static: run the command again after an update.
"""

import argparse
from collections.abc import Sequence

from batchsieve.cli import commands, parser_of
from pipeline.errors import InputError

_SHELLS = ("bash", "zsh", "tcsh")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = argparse.ArgumentParser(
        prog="batchsieve completion", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shell", choices=_SHELLS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the script.

    Raises:
        InputError: shtab is not installed.
    """
    shell: str = make_parser().parse_args(argv).shell
    try:
        import shtab
    except ModuleNotFoundError:
        raise InputError("completion: needs shtab, which is not installed; install batchsieve[stages]") from None
    print(shtab.complete(full_parser(), shell=shell))
    return 0


def full_parser() -> argparse.ArgumentParser:
    """Return one parser with all commands and their options. It imports every command, which takes seconds."""
    root = argparse.ArgumentParser(prog="batchsieve")
    root.add_argument("--version", action="store_true", help="print the version and exit")
    subparsers = root.add_subparsers(metavar="COMMAND")
    for name, module, purpose in commands():
        subparsers.add_parser(name, help=purpose, parents=[parser_of(module)], add_help=False)
    return root
