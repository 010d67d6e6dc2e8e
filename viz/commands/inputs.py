"""What the commands have in common: their options, and what these name."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.params import load_params
from pipeline.errors import InputError


def folder_options() -> argparse.ArgumentParser:
    """A parent parser with `--params` and `--data`."""
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument("--params", type=Path, default=Path("params.yaml"), help="default: params.yaml")
    parent.add_argument("--data", type=Path, default=Path("data"), help="default: data")
    return parent


def network_options() -> argparse.ArgumentParser:
    """`folder_options` and `--network`; see `chosen_network`."""
    parent = argparse.ArgumentParser(add_help=False, parents=[folder_options()])
    parent.add_argument("--network", help="default: the first of the parameters' networks")
    return parent


def chosen_network(network: str | None, params: Path) -> str:
    """The network of the command line, or the first of the parameters.

    Raises:
        InputError: the parameters are wrong, or do not name that network.
    """
    networks = load_params(params, accept_old_keys=True).networks
    if network is not None and network not in networks:
        raise InputError(f"--network: {network!r} is not in {params}; choose from {', '.join(networks)}")
    return network or networks[0]


def check_suffix(file: Path, suffixes: Sequence[str]) -> None:
    """Refuse a file whose name does not say what will be in it.

    Raises:
        InputError: the suffix is none of `suffixes`.
    """
    if file.suffix.lower() not in suffixes:
        raise InputError(f"{file}: its name must end in {' or '.join(suffixes)}")
