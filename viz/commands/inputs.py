"""What the commands have in common: their options, and what these name."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.params import load_params
from pipeline.errors import InputError


def add_folders(parser: argparse.ArgumentParser) -> None:
    """The options `--params` and `--data`."""
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="default: params.yaml")
    parser.add_argument("--data", type=Path, default=Path("data"), help="default: data")


def add_network(parser: argparse.ArgumentParser) -> None:
    """The option `--network`; see `chosen_network`."""
    parser.add_argument("--network", help="default: the first of the parameters' networks")


def chosen_network(network: str | None, params: Path) -> str:
    """The network of the command line, or the first of the parameters.

    Raises:
        InputError: the parameters are wrong, or do not name that network.
    """
    networks = load_params(params).networks
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
