"""The files in machines/: a cluster, as the simulator of data-parallel steps sees it."""

import json
from pathlib import Path
from typing import Literal, Self

from pydantic import ValidationError, model_validator

from pipeline.config.base import NonNegativeFloat, Positive, PositiveFloat, Section
from pipeline.config.messages import describe
from pipeline.config.params import parse_params, read_params_text
from pipeline.errors import InputError


class LinkConfig(Section):
    """Between two GPUs of a node.

    Attributes:
        bytes_per_second: in one direction, while the other direction carries as much.
        tree_latency_seconds: of a hop of a tree; left out: latency_seconds.
    """

    latency_seconds: NonNegativeFloat
    bytes_per_second: PositiveFloat
    tree_latency_seconds: NonNegativeFloat | None = None


class NetworkConfig(LinkConfig):
    """Between nodes; the figures are those of one network adapter.

    Attributes:
        adapters_per_node: that the GPUs of a node share.
    """

    adapters_per_node: Positive


class MachineConfig(Section):
    """A cluster of equal nodes, with one worker on each GPU.

    Attributes:
        inside: null for nodes of one GPU.
        between: null for a machine of one node.
        guessed, measured: keys whose figures are assumptions, or were measured on the machine itself; the others are
            given by its makers or operators.
    """

    nodes: Positive
    gpus_per_node: Positive
    inside: LinkConfig | None
    between: NetworkConfig | None
    guessed: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()

    @property
    def origins(self) -> dict[str, Literal["given", "guessed", "measured"]]:
        """Key path of every figure -> where it comes from."""
        keys = ["nodes", "gpus_per_node"]
        for name, link in (("inside", self.inside), ("between", self.between)):
            figures = link.model_dump(exclude_none=True) if link else {}
            keys += [f"{name}.{key}" for key in figures]
        return {
            key: "guessed" if key in self.guessed else "measured" if key in self.measured else "given" for key in keys
        }

    @model_validator(mode="after")
    def _origins_are_of_figures(self) -> Self:
        named = [*self.guessed, *self.measured]
        for key in named:
            if key not in self.origins:
                raise ValueError(f"guessed, measured: no figure is called {key}; here are {', '.join(self.origins)}")
            if named.count(key) > 1:
                raise ValueError(f"guessed, measured: {key} stands there twice; a figure has one origin")
        return self

    @model_validator(mode="after")
    def _links_are_where_they_are_needed(self) -> Self:
        for key, link, counted, count in (
            ("inside", self.inside, "gpus_per_node", self.gpus_per_node),
            ("between", self.between, "nodes", self.nodes),
        ):
            if link is None and count > 1:
                raise ValueError(f"{key} is null, but {counted} is {count}; describe the link")
            if link is not None and count == 1:
                raise ValueError(f"{key} links nothing, since {counted} is 1; set it to null")
        return self


def load_machine(path: Path) -> MachineConfig:
    """Read and check the description of a machine.

    Raises:
        InputError: naming the file, the key path, the value and the mend.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a machine's description, such as machines/summit.yaml")
    tree = parse_params(read_params_text(path), source=str(path))
    try:
        # As for params.yaml: whole numbers and lists of YAML are strict in the JSON mode.
        return MachineConfig.model_validate_json(json.dumps(tree, default=str))
    except ValidationError as error:
        raise InputError(f"{path}: {describe(error, tree, MachineConfig)}") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as plain keys and values ({error}); see machines/") from None
