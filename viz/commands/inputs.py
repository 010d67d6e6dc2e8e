"""Options that the commands share, and their checks."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.params import load_params
from pipeline.errors import InputError


def folder_options() -> argparse.ArgumentParser:
    """Return a parent parser with `--params` and `--data`."""
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file; default: params.yaml")
    parent.add_argument("--data", type=Path, default=Path("data"), help="folder of the results; default: data")
    return parent


def network_options() -> argparse.ArgumentParser:
    """Return a parent parser with `folder_options` and `--network`; see `chosen_network`."""
    parent = argparse.ArgumentParser(add_help=False, parents=[folder_options()])
    parent.add_argument("--network", help="default: the first of the parameters' networks")
    return parent


def chosen_network(network: str | None, params: Path) -> str:
    """Return the network of the command line, or the first network of the parameters.

    Raises:
        InputError: the parameters are wrong, or do not have the network.
    """
    networks = load_params(params, accept_old_keys=True).networks
    if network is not None and network not in networks:
        raise InputError(f"--network: {network!r} is not in {params}; choose from {', '.join(networks)}")
    return network or networks[0]


def check_suffix(file: Path, suffixes: Sequence[str]) -> None:
    """Check that the name of a file has the suffix of its format.

    Raises:
        InputError: the suffix is not in `suffixes`.
    """
    if file.suffix.lower() not in suffixes:
        raise InputError(f"{file}: its name must end in {' or '.join(suffixes)}")
