"""How many drafted tokens each rule keeps of one tree: `python -m specjax.benchmarks.kept`.

No model: target and draft are random laws, the draft's logits off by a normal number. Of each drafted tree the rule's
own plan says what it keeps on the average, so that only the drafting is random here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from specjax import verify
from specjax._src.draft.static_tree import last_children
from specjax._src.noise import Noise
from specjax._src.tree import Shape, TokenTree, full_paths, paths_shape, static_parents
from specjax._src.types import Array
from specjax.benchmarks import record

CHILDREN = ((2, 2), (3, 2, 1), (4, 2, 1, 1))
"""Trees, by the number of children of a node at each depth."""
SETTINGS = ((0.3, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, 0.6))
"""How far the draft's logits are off (a standard deviation), and the temperature of both laws."""
RULES = (
    ("chosen", "match"), ("heard", "match"), ("independent", "specinfer"),
    ("without_replacement", "without_replacement"), ("without_replacement", "traversal"), ("hybrid", "hybrid"),
    ("hybrid", "traversal"),
)
"""Kind of siblings, and who judges them. `heard` are chosen with the noise of the target in mind."""


class Laws(NamedTuple):
    """What the target says at each node and what the draft says, float32 [B, N, V], log-probabilities."""

    target: Array
    draft: Array


def measure(vocab_size: int, trees: int, command: str) -> dict[str, Any]:
    """Tokens kept for each tree, setting and rule, on the average over `trees` drafted trees."""
    rows = []
    for children in CHILDREN:
        for distance, temperature in SETTINGS:
            kept = kept_of(children, distance, temperature, vocab_size, trees)
            rows.append({"children": list(children), "distance": distance, "temperature": temperature, "kept": kept})
    return {"environment": record.environment(command), "settings": {"vocab_size": vocab_size, "trees": trees},
            "rows": rows}


def kept_of(
    children: tuple[int, ...], distance: float, temperature: float, vocab_size: int, trees: int, seed: int = 0
) -> dict[str, float]:
    """Tokens that each of `RULES` keeps, as `"siblings/rule"`."""
    blank = blank_tree(paths_shape(full_paths(*children)), trees)
    laws, drawn = random_laws((*blank.tokens.shape, vocab_size), distance, temperature, seed)
    noise = Noise(jax.random.split(drawn, trees), jnp.full(trees, 5), shared=True)
    depth = np.asarray(blank.depths[0])
    kept = {}
    for kind, name in RULES:
        rule = getattr(verify, name)()
        tree = drafted(kind, blank, laws, noise, jax.random.fold_in(drawn, 1))
        if kind == "heard":  # what is kept depends on the very numbers
            kept[f"{kind}/{name}"] = float(rule.draw(noise, rule.plan(tree, laws.target)).num_accepted.mean())
        else:
            last = rule.outcomes(rule.plan(tree, laws.target))[0]
            kept[f"{kind}/{name}"] = float((last * depth).sum(axis=1).mean())
    return kept


def random_laws(size: tuple[int, ...], distance: float, temperature: float, seed: int) -> tuple[Laws, Array]:
    """Laws [B, N, V] of which the draft's logits are off by a normal number, and a key for the drafting."""
    teacher, shift, drawn = (jax.random.fold_in(jax.random.key(seed), i) for i in range(3))
    logits = 1.5 * jax.random.gumbel(teacher, size)
    guess = logits + distance * jax.random.normal(shift, size)
    return Laws(*(jax.nn.log_softmax(one / temperature) for one in (logits, guess))), drawn


def blank_tree(shape: Shape, trees: int) -> TokenTree:
    """Trees of one topology without tokens."""
    parents = static_parents(shape, trees)
    return TokenTree(jnp.zeros_like(parents), parents, jnp.ones_like(parents, bool), shape)


def drafted(kind: str, blank: TokenTree, laws: Laws, noise: Noise | None, key: Array) -> TokenTree:
    """The tree with tokens in it: of a node's children, child number `r` is the r-th of what the kind prefers.

    `noise` is the target's, for `heard`; `key` is consumed by the other kinds.
    """
    shape, draft = blank.shape, laws.draft
    ranks, parents = np.asarray(shape.ranks).clip(0), np.asarray(shape.parents).clip(0)
    own = jax.random.gumbel(key, draft.shape)
    law, sampled = draft, None
    if kind == "chosen":
        best = _best(draft, shape.num_ranks)
    elif kind == "heard":
        assert noise is not None
        best = _best(draft + _shared(noise, blank, draft), shape.num_ranks)
    elif kind == "without_replacement":
        best = _best(draft + own, shape.num_ranks)
    elif kind == "independent":
        each = (jax.random.gumbel(jax.random.fold_in(key, rank), draft.shape) for rank in range(shape.num_ranks))
        best = jnp.stack([jnp.argmax(draft + gumbel, axis=-1) for gumbel in each], axis=-1)
    else:
        best, law, sampled = _hybrid(blank, draft, own)
    tokens = best[:, parents, ranks].astype(jnp.int32).at[:, 0].set(0)
    return TokenTree(tokens, blank.parents, blank.valid, shape, None if kind in ("chosen", "heard") else law, sampled)


def _hybrid(blank: TokenTree, draft: Array, gumbel: Array) -> tuple[Array, Array, Array]:
    """All children but the last chosen, the last drawn from what is left: tokens, that law, which were drawn."""
    shape = blank.shape
    count = np.bincount(np.asarray(shape.parents)[1:], minlength=shape.num_nodes)[None, :, None]
    best = _best(draft, shape.num_ranks)
    chosen = jnp.arange(shape.num_ranks) < count - 1
    batch, nodes, _ = draft.shape
    place = jnp.arange(batch)[:, None, None], jnp.arange(nodes)[None, :, None], best
    removed = jnp.zeros(draft.shape, bool).at[place].max(chosen)
    law = jax.nn.log_softmax(jnp.where(removed, -jnp.inf, draft))
    last = jnp.argmax(law + gumbel, axis=-1)[..., None]
    sampled = jnp.broadcast_to(jnp.asarray(last_children(shape)), (batch, nodes))
    return jnp.where(jnp.arange(shape.num_ranks) == count - 1, last, best), law, sampled


def _best(values: Array, count: int) -> Array:
    return jax.lax.top_k(values, count)[1]


def _shared(noise: Noise, blank: TokenTree, draft: Array) -> Array:
    """The numbers with which the target will choose behind each node: [B, N, V]."""
    by_depth = jnp.stack([noise.gumbel(depth, draft.shape[-1]) for depth in range(blank.shape.depth + 1)], axis=1)
    return by_depth[:, blank.depths[0]]


def main() -> None:
    """Command line."""
    result = record.script("kept", __doc__, {"vocab_size": 1000, "trees": 300}, measure)
    table = Table("children", "off by", "T", *("\n".join(pair) for pair in RULES))
    for row in result["rows"]:
        numbers = (f"{value:.2f}" for value in row["kept"].values())
        table.add_row(",".join(map(str, row["children"])), str(row["distance"]), str(row["temperature"]), *numbers)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
