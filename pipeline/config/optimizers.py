"""Optimizers and their options; `optim/` builds them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import PositiveFloat, Section, Share


class _Momentum(Section):
    momentum: Share = 0.9
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0; give one, or set nesterov: false")
        return self


class _Moments(Section):
    """`beta1` and `beta2` decay the first and second moment of the gradient."""

    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: PositiveFloat = 1e-8


class SgdConfig(_Momentum):
    """Stochastic gradient descent with (Nesterov) momentum."""

    name: Literal["sgd"] = "sgd"


class LarsConfig(_Momentum):
    """Layer-wise adaptive rate scaling; the rate multiplies `trust_coefficient`, so it is a large one."""

    name: Literal["lars"]
    trust_coefficient: PositiveFloat = 0.001


class LambConfig(_Moments):
    """LAMB: Adam with a layer-wise trust ratio."""

    name: Literal["lamb"]
    eps: PositiveFloat = 1e-6


class RadamConfig(_Moments):
    """Rectified Adam with decoupled weight decay."""

    name: Literal["radam"]


class AdamwConfig(_Moments):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"]


class MuonConfig(_Momentum):
    """Orthogonalized momentum for hidden weight matrices and filters, AdamW for the rest, at the same learning rate.

    The rest are vectors, the first convolution and the classifier, as Muon's authors advise.
    """

    name: Literal["muon"]
    momentum: Share = 0.95
    nesterov: bool = True


Optimizer = Annotated[
    SgdConfig | LarsConfig | LambConfig | RadamConfig | AdamwConfig | MuonConfig, Field(discriminator="name")
]
