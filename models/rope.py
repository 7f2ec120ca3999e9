"""Rotary positions: at which rate each pair of coordinates turns, and the turn itself.

Pair `j` of a head of width d turns by `position * theta^(-2j/d)`. To read texts longer than those of its training, a
model slows its slow pairs down; the ways to do so are the kinds of `RopeScaling`.
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from specjax._src.types import Array

KINDS = ("none", "linear", "llama3", "yarn")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How the rates `f` (radians a position) are changed for long texts; a kind reads only the fields it names.

    Attributes:
      kind: `none`; `linear`: `f / factor`; `llama3`: pairs that turn fewer than `low_freq_factor` times in
        `original_max_position` tokens are divided by `factor`, more than `high_freq_factor` times are kept, others
        blended; `yarn` (arXiv 2309.00071): the same between `beta_slow` and `beta_fast` turns, with the blend linear
        in the pair's number, and cosine and sine multiplied by `attention_factor`.
      factor: by how much longer the texts become.
      original_max_position: positions of the first training (`llama3`, `yarn`).
      low_freq_factor: `llama3`.
      high_freq_factor: `llama3`.
      beta_fast: `yarn`.
      beta_slow: `yarn`.
      truncate: `yarn`; whether the two ends of the blend are rounded outwards to whole pairs.
      attention_factor: `yarn`; see `yarn_attention_factor` for the usual value.

    Raises:
      ValueError: for an unknown kind, a factor below 1, a kind without the original length it needs, or two factors of
        `llama3` between which there is nothing to blend.
    """

    kind: str = "none"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"rope scaling {self.kind!r} is not one of {', '.join(KINDS)}")
        if self.factor < 1:
            raise ValueError(f"rope scaling {self.kind!r} has factor={self.factor}; it must be at least 1")
        if self.kind in ("llama3", "yarn") and self.original_max_position < 1:
            raise ValueError(f"rope scaling {self.kind!r} needs original_max_position >= 1")
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"rope scaling 'llama3' has low_freq_factor={self.low_freq_factor} and high_freq_factor="
                f"{self.high_freq_factor}; the first must be the lower one")


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """`0.1 * mscale * ln(factor) + 1`: how much sharper YaRN makes attention over a text `factor` times as long."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def frequencies(head_dim: int, theta: float, scaling: RopeScaling = RopeScaling()) -> np.ndarray:
    """Radians a position, float32 [head_dim / 2], of each pair.

    They are computed in float64 and become constants of a program: the powers of an accelerator differ from those of a
    CPU by more than rounding, which at position 100 000 is a visible angle.
    """
    rates = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if scaling.kind == "linear":
        rates = rates / scaling.factor
    elif scaling.kind == "llama3":
        rates = _blend(rates, _kept_by_turns(rates, scaling), scaling.factor)
    elif scaling.kind == "yarn":
        rates = _blend(rates, _kept_by_pair(head_dim, theta, scaling), scaling.factor)
    return rates.astype(np.float32)


def rotary_table(
    positions: Array, head_dim: int, theta: float, scaling: RopeScaling = RopeScaling()
) -> tuple[Array, Array]:
    """Cosine and sine float32 [B, T, head_dim / 2] for int32 positions [B, T]."""
    angles = positions[..., None].astype(jnp.float32) * frequencies(head_dim, theta, scaling)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if scaling.kind == "yarn":
        cos, sin = cos * scaling.attention_factor, sin * scaling.attention_factor
    return cos, sin


def rotate(x: Array, table: tuple[Array, Array]) -> Array:
    """Turn the half-split pairs `(j, j + d/2)` of `x` [B, T, heads, d] by the table's angles."""
    cos, sin = (t[:, :, None, :] for t in table)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def _blend(rates: np.ndarray, kept: np.ndarray, factor: float) -> np.ndarray:
    """`kept` 1 leaves a rate alone, 0 divides it by `factor`."""
    return kept * rates + (1 - kept) * rates / factor


def _kept_by_turns(rates: np.ndarray, s: RopeScaling) -> np.ndarray:
    turns = s.original_max_position * rates / (2 * math.pi)
    return np.clip((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0, 1)


def _kept_by_pair(head_dim: int, theta: float, s: RopeScaling) -> np.ndarray:
    def pair(turns: float) -> float:  # the number, not whole, of the pair that turns so often
        return head_dim * math.log(s.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(s.beta_fast), pair(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    high += 0.001 if low == high else 0.0
    return 1 - np.clip((np.arange(head_dim // 2) - low) / (high - low), 0, 1)
