"""AdamW and Muon with clipped gradients, and a schedule of the learning rate that both share."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, muon

from specjax._src.types import Array

OPTIMIZERS = ("adamw", "muon")
VOCABULARIES = ("embedding", "head", "output", "own_embedding")  # matrices of one row or column a token


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """How parameters move.

    Attributes:
      name: `adamw` (betas 0.9 and 0.95), or `muon`: Muon for the kernels and AdamW for the rest, at one rate.
      rate: the peak learning rate.
      weight_decay: per step, times the rate; Muon leaves what it does not move itself without.
      clip: longest gradient, all parameters together; longer ones are shortened to it.
      warmup, decay: shares of the run in which the rate rises and falls, linearly.
      vocabulary: share of the rate for matrices with a row or column for each token. Where one begins as the target's,
        the full rate of a short run would unlearn it.
    """

    name: str = "adamw"
    rate: float = 1e-3
    weight_decay: float = 0.0
    clip: float = 0.5
    warmup: float = 0.05
    decay: float = 0.6
    vocabulary: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ValueError(f"optimizer name {self.name!r} is none of {', '.join(OPTIMIZERS)}")
        if not self.rate > 0 or not self.clip > 0:
            raise ValueError(f"rate and clip must be positive, got {self.rate} and {self.clip}")
        if not (self.warmup >= 0 and self.decay >= 0 and self.warmup + self.decay <= 1):
            raise ValueError(f"warmup and decay are shares of the run and must sum to at most 1, got {self.warmup} and "
                             f"{self.decay}")
        if not 0 <= self.vocabulary <= 1:
            raise ValueError(f"vocabulary is a share of the rate, in 0 .. 1, got {self.vocabulary}")


def optimizer(settings: OptimizerSettings, steps: int | None) -> optax.GradientTransformation:
    """The transformation of `settings` over `steps` optimiser steps; None keeps the rate at its peak."""
    clipped = optax.clip_by_global_norm(settings.clip)
    if settings.name == "muon":
        moved = _muon(settings.rate, settings.weight_decay)
    else:
        moved = optax.adamw(settings.rate, b1=0.9, b2=0.95, weight_decay=settings.weight_decay)
    moved = optax.chain(moved, _scale_vocabularies(settings.vocabulary))
    if steps is None:
        return optax.chain(clipped, moved)
    # The first step is one share into the warm-up, or it would move nothing.
    shares = optax.scale_by_schedule(
        lambda count: schedule((count + 1) / (steps + 1), settings.warmup, settings.decay))
    return optax.chain(clipped, moved, shares)


def schedule(progress: Array, warmup: float = 0.02, decay: float = 0.6) -> Array:
    """Share of the peak rate at `progress` in [0, 1]: linear warm-up, constant, linear decay to zero."""
    rising = progress / warmup if warmup else jnp.ones_like(progress)
    falling = (1.0 - progress) / decay if decay else jnp.ones_like(progress)
    return jnp.minimum(jnp.minimum(rising, 1.0), falling).clip(0.0, 1.0)


def _muon(rate: float, weight_decay: float) -> optax.GradientTransformation:
    """Muon's updates are scaled to the root mean square of Adam's (arXiv:2502.16982), so one rate serves."""
    return muon(
        rate, weight_decay=weight_decay, consistent_rms=0.2, adam_b2=0.98, adam_weight_decay=0.0,
        muon_weight_dimension_numbers=_kernel_axes)


def _scale_vocabularies(share: float) -> optax.GradientTransformation:
    def scale(path: tuple[Any, ...], update: Array) -> Array:
        return update * share if path[-1].key in VOCABULARIES else update

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scale, updates))


def _kernel_axes(params: dict[str, Any]) -> dict[str, Any]:
    """Input and output axes of every kernel; None for what is no matrix, and for those of the vocabulary."""

    def axes(path: tuple[Any, ...], leaf: Array) -> MuonDimensionNumbers | None:
        name = path[-1].key
        if name in VOCABULARIES or leaf.ndim < 2 or name.endswith("_bias"):
            return None
        if leaf.ndim == 2:
            return MuonDimensionNumbers(0, 1)
        return MuonDimensionNumbers((0, 1), 2) if name == "out" else MuonDimensionNumbers(0, (1, 2))

    return jax.tree_util.tree_map_with_path(axes, params)
