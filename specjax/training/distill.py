"""One optimiser step for a target and the draft that learns from it on the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, muon

from specjax._src.types import Array, Attend, Model

Tree = dict[str, Any]
HARD_LABEL_WEIGHT = 0.2


def optimizer(learning_rate: float, weight_decay: float, clip: float) -> optax.GradientTransformation:
    """Muon for the kernels, AdamW for embedding and norms, both at a constant rate; scale the updates for a schedule.

    Muon's updates are scaled to the root mean square of Adam's (Liu et al. 2025, arXiv:2502.16982), so one rate serves.
    """
    return optax.chain(
        optax.clip_by_global_norm(clip),
        muon(
            learning_rate,
            weight_decay=weight_decay,
            consistent_rms=0.2,
            adam_b2=0.98,
            adam_weight_decay=0.0,
            muon_weight_dimension_numbers=_kernel_axes,
        ),
    )


def _kernel_axes(params: Tree) -> Tree:
    """Input and output axes of every kernel; None for what is no matrix, and for the embedding."""

    def axes(path: tuple[Any, ...], leaf: Array) -> MuonDimensionNumbers | None:
        name = path[-1].key
        if name in ("embedding", "head") or leaf.ndim < 2:
            return None
        if leaf.ndim == 2:
            return MuonDimensionNumbers(0, 1)
        return MuonDimensionNumbers((0, 1), 2) if name == "out" else MuonDimensionNumbers(0, (1, 2))

    return jax.tree_util.tree_map_with_path(axes, params)


def schedule(progress: Array, warmup: float = 0.02, decay: float = 0.6) -> Array:
    """Share of the peak rate at `progress` in [0, 1]: linear warm-up, constant, linear decay to zero."""
    return jnp.minimum(jnp.minimum(progress / warmup, 1.0), (1.0 - progress) / decay).clip(0.0, 1.0)


def packed_attend(tokens: Array, separator: int = 0) -> Attend:
    """Causal attention inside each document of packed windows [B, T]; a separator opens its document."""
    batch, length = tokens.shape
    document = jnp.cumsum(tokens == separator, axis=1)
    steps = jnp.arange(length)
    same = (document[:, :, None] == document[:, None, :]) & (steps[:, None] >= steps)
    return Attend(
        lengths=jnp.zeros((batch,), jnp.int32),
        positions=jnp.broadcast_to(steps, (batch, length)),
        valid=jnp.ones((batch, length), bool),
        ancestors=same,
    )


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Natural-log loss of each label, float32 [B, T]."""
    logits = logits.astype(jnp.float32)
    return jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def divergence(teacher: Array, student: Array, temperature: float = 1.0) -> Array:
    """Kullback-Leibler divergence KL(teacher || student) of the softmaxed logits [B, T, V], float32 [B, T]."""
    teacher = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature)
    student = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
    return jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1)


def pair_loss(params: Tree, models: dict[str, Model], window: Array) -> tuple[Array, Tree]:
    """The target's cross-entropy plus the draft's distance from the (fixed) target, on windows int32 [B, T + 1]."""
    tokens, labels = window[:, :-1], window[:, 1:]
    attend = packed_attend(tokens)
    target = models["target"].apply(params["target"], tokens, None, attend).logits
    draft = models["draft"].apply(params["draft"], tokens, None, attend).logits
    fixed = jax.lax.stop_gradient(target)
    losses = {
        "target": jnp.mean(cross_entropy(target, labels)),
        "draft": jnp.mean(cross_entropy(draft, labels)),
        "kl": jnp.mean(divergence(fixed, draft)),
        "agree": jnp.mean(jnp.argmax(fixed, -1) == jnp.argmax(draft, -1)),
    }
    return losses["target"] + losses["kl"] + HARD_LABEL_WEIGHT * losses["draft"], losses


def pair_step(models: dict[str, Model], transforms: dict[str, optax.GradientTransformation]) -> Callable[..., Any]:
    """A compiled `(params, opt_state, window, progress) -> (params, opt_state, losses)`; the first two are donated."""

    def step(params: Tree, state: Tree, window: Array, progress: Array) -> tuple[Tree, Tree, Tree]:
        (_, losses), grads = jax.value_and_grad(pair_loss, has_aux=True)(params, models, window)
        return *apply_updates(transforms, params, state, grads, schedule(progress)), losses

    return jax.jit(step, donate_argnums=(0, 1))


def apply_updates(
    transforms: dict[str, optax.GradientTransformation], params: Tree, state: Tree, grads: Tree, rate: Array
) -> tuple[Tree, Tree]:
    """Each model's own transformation (norms are clipped per model), its update scaled by `rate`."""
    new_params, new_state = dict(params), dict(state)
    for name, transform in transforms.items():
        updates, new_state[name] = transform.update(grads[name], state[name], params[name])
        scaled = jax.tree.map(lambda u: rate * u, updates)
        new_params[name] = optax.apply_updates(params[name], scaled)
    return new_params, new_state
