"""One optimiser step for a target and the draft that learns from it on the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from specjax._src.types import Array, Model
from specjax.training.data import SEPARATOR
from specjax.training.lesson import packed_attend
from specjax.training.losses.common import agree, cross_entropy, divergence
from specjax.training.optimizers import schedule

Tree = dict[str, Any]
HARD_LABEL_WEIGHT = 0.2


def pair_loss(params: Tree, models: dict[str, Model], window: Array) -> tuple[Array, Tree]:
    """The target's cross-entropy plus the draft's distance from the (fixed) target, on windows int32 [B, T + 1]."""
    tokens, labels = window[:, :-1], window[:, 1:]
    attend = packed_attend(jnp.cumsum(tokens == SEPARATOR, axis=1))  # a separator opens its document
    target = models["target"].apply(params["target"], tokens, None, attend).logits
    draft = models["draft"].apply(params["draft"], tokens, None, attend).logits
    fixed = jax.lax.stop_gradient(target)
    losses = {
        "target": jnp.mean(cross_entropy(target, labels)),
        "draft": jnp.mean(cross_entropy(draft, labels)),
        "kl": jnp.mean(divergence(fixed, draft)),
        "agree": jnp.mean(agree(fixed, draft)),
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
