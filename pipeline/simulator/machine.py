"""Machines of the simulator: nodes of GPUs, a link inside each node and one between nodes; and the files machines/."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import ValidationError, model_validator

from pipeline.config.base import NonNegativeFloat, Positive, PositiveFloat, Section, describe_validation_error
from pipeline.config.renamed_keys import RENAMED_MACHINE_KEYS, renamed_key_error
from pipeline.config.yaml_reading import parse_yaml, read_yaml_text
from pipeline.errors import InputError


@dataclass(frozen=True, kw_only=True)
class NetworkLink:
    """A link on which n bytes take latency + n / bandwidth (Hockney 1994, the alpha-beta model).

    Attributes:
        latency_seconds: >= 0.
        bytes_per_second: in one direction, while the other direction carries as much; > 0.
        tree_latency_seconds: of a hop of a tree, which sends a whole chunk before the next hop starts with it, >= 0;
            None: equal to latency_seconds.
    """

    latency_seconds: float
    bytes_per_second: float
    tree_latency_seconds: float | None = None

    def __post_init__(self) -> None:
        assert self.latency_seconds >= 0, self.latency_seconds
        assert self.bytes_per_second > 0, self.bytes_per_second
        assert self.tree_latency_seconds is None or self.tree_latency_seconds >= 0, self.tree_latency_seconds

    @property
    def tree_hop_seconds(self) -> float:
        """Latency of a hop of a tree."""
        return self.latency_seconds if self.tree_latency_seconds is None else self.tree_latency_seconds


NO_LINK = NetworkLink(latency_seconds=0.0, bytes_per_second=math.inf)
"""For nodes of one GPU, and for machines of one node."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A cluster with one worker on each GPU.

    Attributes:
        nodes, gpus_per_node: >= 1.
        intra_node: between two GPUs of a node.
        inter_node: between two nodes, with all network adapters of a node together. Its GPUs share it.
    """

    nodes: int
    gpus_per_node: int
    intra_node: NetworkLink
    inter_node: NetworkLink

    def __post_init__(self) -> None:
        assert min(self.nodes, self.gpus_per_node) >= 1, self

    def placement(self, workers: int) -> tuple[int, int]:
        """Return workers per node and nodes in use: the fewest nodes, all full if there are several.

        Raises:
            ValueError: the machine is too small, or the last node would be partly empty.
        """
        if not 1 <= workers <= self.nodes * self.gpus_per_node:
            raise ValueError(f"{workers} workers, but the machine has {self.nodes} x {self.gpus_per_node} GPUs")
        if workers <= self.gpus_per_node:
            return workers, 1
        if workers % self.gpus_per_node:
            raise ValueError(f"{workers} workers do not fill nodes of {self.gpus_per_node} GPUs; take a multiple")
        return self.gpus_per_node, workers // self.gpus_per_node


class LinkConfig(Section):
    """Between two GPUs of a node.

    Attributes:
        bytes_per_second: in one direction, while the other direction carries as much.
        tree_latency_seconds: of a hop of a tree; left out: latency_seconds.
    """

    latency_seconds: NonNegativeFloat
    bytes_per_second: PositiveFloat
    tree_latency_seconds: NonNegativeFloat | None = None

    @property
    def link(self) -> NetworkLink:
        """The link that the section describes."""
        return NetworkLink(
            latency_seconds=self.latency_seconds,
            bytes_per_second=self.bytes_per_second,
            tree_latency_seconds=self.tree_latency_seconds,
        )


class NetworkConfig(LinkConfig):
    """Between nodes; the figures are those of one network adapter.

    Attributes:
        adapters_per_node: that the GPUs of a node share.
    """

    adapters_per_node: Positive

    @property
    def link(self) -> NetworkLink:
        """The link between two nodes, with all adapters of a node together."""
        return NetworkLink(
            latency_seconds=self.latency_seconds,
            bytes_per_second=self.adapters_per_node * self.bytes_per_second,
            tree_latency_seconds=self.tree_latency_seconds,
        )


class MachineConfig(Section):
    """A cluster of equal nodes, with one worker on each GPU.

    Attributes:
        intra_node: null for nodes of one GPU.
        inter_node: null for a machine of one node.
        assumed, measured: keys of figures that are assumptions, or were measured on the machine; its makers or
            operators give the others.
    """

    nodes: Positive
    gpus_per_node: Positive
    intra_node: LinkConfig | None
    inter_node: NetworkConfig | None
    assumed: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()

    @property
    def machine(self) -> Machine:
        """The machine that the file describes."""
        return Machine(
            nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
            intra_node=self.intra_node.link if self.intra_node else NO_LINK,
            inter_node=self.inter_node.link if self.inter_node else NO_LINK,
        )

    @property
    def origins(self) -> dict[str, Literal["given", "assumed", "measured"]]:
        """Key path of every figure -> its origin."""
        keys = ["nodes", "gpus_per_node"]
        for name, link in (("intra_node", self.intra_node), ("inter_node", self.inter_node)):
            figures = link.model_dump(exclude_none=True) if link else {}
            keys += [f"{name}.{key}" for key in figures]
        return {
            key: "assumed" if key in self.assumed else "measured" if key in self.measured else "given" for key in keys
        }

    @model_validator(mode="after")
    def _origins_are_of_figures(self) -> Self:
        named = [*self.assumed, *self.measured]
        for key in named:
            if key not in self.origins:
                raise ValueError(f"assumed, measured: there is no figure {key}; use one of {', '.join(self.origins)}")
            if named.count(key) > 1:
                raise ValueError(f"assumed, measured: {key} is listed twice; a figure has one origin")
        return self

    @model_validator(mode="after")
    def _links_fit_counts(self) -> Self:
        for key, link, counted, count in (
            ("intra_node", self.intra_node, "gpus_per_node", self.gpus_per_node),
            ("inter_node", self.inter_node, "nodes", self.nodes),
        ):
            if link is None and count > 1:
                raise ValueError(f"{key} is null, but {counted} is {count}; describe the link")
            if link is not None and count == 1:
                raise ValueError(f"{key} links nothing, since {counted} is 1; set it to null")
        return self


def load_machine(path: Path) -> MachineConfig:
    """Read and check the description of a machine.

    Raises:
        InputError: names the file, the key path, the value and the fix.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; use a machine's description, such as machines/summit.yaml")
    tree = parse_yaml(read_yaml_text(path), source=str(path))
    if renamed := renamed_key_error(tree, RENAMED_MACHINE_KEYS):
        raise InputError(f"{path}: {renamed}")
    try:
        # As for params.yaml: in the JSON mode integers and lists of YAML pass the strict types.
        return MachineConfig.model_validate_json(json.dumps(tree, default=str))
    except ValidationError as error:
        raise InputError(f"{path}: {describe_validation_error(error, tree, MachineConfig)}") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: not plain keys and values ({error}); see machines/ for examples") from None
