"""The exact law of a round on a token tree, by enumeration of every tree that could have been drafted.

As `specjax.testing.exact` does for chains: nothing is sampled, so that an error of 1e-6 in total variation is seen.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src.tree import Shape, TokenTree
from specjax._src.types import Array, Verifier
from specjax.testing import exact
from specjax.testing.exact import PLAIN, Setting, Tables


class Drafts(NamedTuple):
    """R drafted trees of one topology.

    Attributes:
      tokens: int32 [R, N], 0 where not valid and at the root.
      valid: bool [R, N].
      weights: float64 [R], the probability of each, which sums to 1 over the rows of a case.
      laws: float32 [R, N, V], the laws the drawn children of each node come from; 0 below leaves.
      sampled: bool [R, N], which tokens were drawn.
      case: int [R], groups the rows of one law.
    """

    tokens: np.ndarray
    valid: np.ndarray
    weights: np.ndarray
    laws: np.ndarray
    sampled: np.ndarray
    case: np.ndarray


class Children(NamedTuple):
    """One way in which the children of a node may come: tokens, probability, the law reported, which were drawn."""

    tokens: tuple[int, ...]
    chance: float
    law: np.ndarray
    sampled: tuple[bool, ...]


def children(siblings: str, q: np.ndarray, count: int) -> Iterator[Children]:
    """Every way in which `count` children come from the draft's law `q` [V], for a kind of `SIBLINGS`."""
    best = np.argsort(-q, kind="stable")
    chosen = {"chosen": count, "hybrid": count - 1}.get(siblings, 0)
    fixed = tuple(int(token) for token in best[:chosen])
    law = np.where(np.isin(np.arange(len(q)), fixed), 0.0, q)
    law = law / law.sum() if law.sum() > 0 else law
    sampled = tuple(place >= chosen for place in range(count))
    for drawn in itertools.product(range(len(q)), repeat=count - chosen):
        chance, left = 1.0, law
        for place, token in enumerate(drawn):
            if left.sum() == 0.0:  # nothing left to draw: the first unused token is put there
                unused = min(set(range(len(q))) - set(fixed) - set(drawn[:place]))
                chance *= float(token == unused)
            else:
                chance *= float(left[token] / left.sum())
            if siblings != "independent":
                left = np.where(np.arange(len(q)) == token, 0.0, left)
        if chance > 0.0:
            yield Children(fixed + drawn, chance, law, sampled)


def enumerate_drafts(draft: Sequence[np.ndarray], shape: Shape, siblings: str) -> Drafts:
    """Every tree that may be drafted, for each number of levels 0 .. depth as a case of its own.

    Args:
      draft: laws of the draft after each text: entry `i` has shape (V,) * (i + 1).
      shape: static.
      siblings: of `SIBLINGS`.
    """
    parents, vocab_size = _parents(shape), draft[0].shape[-1]
    below = [[node for node, parent in enumerate(parents) if parent == above] for above in range(len(parents))]
    options = functools.cache(lambda text, count: list(children(siblings, np.asarray(draft[len(text)][text]), count)))
    nothing = np.zeros(vocab_size)
    parts = []
    for levels in range(shape.depth + 1):
        trees = [(((),) * len(parents), 1.0, (nothing,) * len(parents), (False,) * len(parents))]
        for node, kids in enumerate(below):
            if not kids or _depth(parents, node) >= levels:
                continue
            trees = [_grown(tree, node, kids, option) for tree in trees for option in options(tree[0][node], len(kids))]
        parts += [(levels, *tree) for tree in trees]
    case, texts, weights, laws, sampled = zip(*parts, strict=True)
    reached = [[_depth(parents, node) <= levels for node in range(len(parents))] for levels in case]
    return Drafts(np.array([[text[-1] if text else 0 for text in row] for row in texts], np.int32), np.array(reached),
                  np.array(weights), np.array(laws, np.float32), np.array(sampled), np.array(case))


def tree_text_laws(
    verifier: Verifier,
    tables: Tables,
    shape: Shape,
    siblings: str,
    setting: Setting = PLAIN,
    *,
    dynamic: bool = False,
    change: Callable[[Drafts], Drafts] | None = None,
) -> list[np.ndarray]:
    """The laws of the next H tokens when a round drafts a tree and the target goes on alone.

    Args:
      verifier: the rule.
      tables: of target and draft, of depth + 1 tokens or more.
      shape: static.
      siblings: how the children come about, of `SIBLINGS`.
      setting: of the rows.
      dynamic: whether the topology is hidden from the compiler.
      change: for negative controls, done to the drafts before they are judged.

    Returns:
      A float64 array (V,) * H for each number of levels that are drafted, 0 .. depth.
    """
    drafts, ends, following = judged(verifier, tables, shape, siblings, setting, dynamic=dynamic, change=change)
    conditionals = exact.target_conditionals(tables, setting)
    return [_text_law(conditionals, _parents(shape), drafts, ends, following, drafts.case == case)
            for case in range(shape.depth + 1)]


def mean_kept(verifier: Verifier, tables: Tables, shape: Shape, siblings: str, setting: Setting = PLAIN) -> float:
    """The expected number of drafted tokens kept in a round that drafts all levels of the tree."""
    drafts, ends, _ = judged(verifier, tables, shape, siblings, setting)
    depths = np.array([_depth(_parents(shape), node) for node in range(shape.num_nodes)])
    return float(np.sum((drafts.weights[:, None] * ends * depths)[drafts.case == shape.depth]))


def judged(
    verifier: Verifier, tables: Tables, shape: Shape, siblings: str, setting: Setting = PLAIN, *,
    dynamic: bool = False, change: Callable[[Drafts], Drafts] | None = None
) -> tuple[Drafts, np.ndarray, np.ndarray]:
    """All drafts, and of each the law of the last node kept [R, N] and of the token after each node [R, N, V]."""
    draft = [np.exp(np.asarray(one, np.float64)) for one in exact.log_laws(tables.draft, setting)]
    drafts = enumerate_drafts(draft, shape, siblings)
    drafts = drafts if change is None else change(drafts)
    target = exact.log_laws(tables.target, setting)
    texts = path_texts(shape, drafts.tokens)
    scores = np.stack([target[len(text)][None][(np.zeros(len(drafts.tokens), np.int64), *text)] for text in texts], 1)
    with np.errstate(divide="ignore"):
        laws = None if siblings == "chosen" else jnp.asarray(np.log(drafts.laws))
    parents = jnp.broadcast_to(jnp.asarray(_parents(shape), jnp.int32), drafts.tokens.shape)
    tree = TokenTree(jnp.asarray(drafts.tokens), parents, jnp.asarray(drafts.valid),
                     shape._replace(parents=None, ranks=None) if dynamic else shape, laws,
                     jnp.asarray(drafts.sampled) if siblings == "hybrid" else None)
    ends, following = _outcomes(verifier, tree, jnp.asarray(scores))
    return drafts, np.asarray(ends, np.float64), np.asarray(following, np.float64)


def path_texts(shape: Shape, tokens: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """For each node the tokens from the root to it, the root's left out: a tuple of int [R]."""
    parents = _parents(shape)
    texts: list[tuple[np.ndarray, ...]] = [()]
    for node in range(1, len(parents)):
        texts.append((*texts[parents[node]], tokens[:, node]))
    return texts


@functools.partial(jax.jit, static_argnums=0)
def _outcomes(verifier: Verifier, tree: TokenTree, target: Array) -> tuple[Array, Array]:
    return verifier.outcomes(verifier.plan(tree, target))


def _text_law(
    conditionals: list[np.ndarray], parents: tuple[int, ...], drafts: Drafts, ends: np.ndarray, following: np.ndarray,
    rows: np.ndarray
) -> np.ndarray:
    vocab_size = following.shape[-1]
    total = np.zeros((vocab_size,) * len(conditionals))
    for node, text in enumerate(path_texts(Shape(len(parents), 0, 0, parents), drafts.tokens[rows])):
        law = np.zeros((1, *(vocab_size,) * (len(text) + 1)))  # the leading 1 gives the root something to index
        place = (np.zeros(int(rows.sum()), np.int64), *text)
        np.add.at(law, place, (drafts.weights[rows] * ends[rows, node])[:, None] * following[rows, node])
        law = law[0]
        for conditional in conditionals[len(text) + 1 :]:
            law = law[..., None] * conditional
        total += law
    return total


def _grown(tree: tuple, node: int, kids: list[int], option: Children) -> tuple:
    """A partial tree (texts of the nodes, weight, laws, sampled) with the children of one node put in."""
    texts, weight, laws, sampled = map(list, (tree[0], [tree[1]], tree[2], tree[3]))
    laws[node] = option.law
    for kid, token, drawn in zip(kids, option.tokens, option.sampled, strict=True):
        texts[kid], sampled[kid] = (*texts[node], token), drawn
    return tuple(texts), weight[0] * option.chance, tuple(laws), tuple(sampled)


def _parents(shape: Shape) -> tuple[int, ...]:
    if shape.parents is None:
        raise ValueError("the trees of a dynamic shape can not be enumerated: give a static one, and dynamic=True")
    return shape.parents


def _depth(parents: Sequence[int], node: int) -> int:
    return 0 if node == 0 else 1 + _depth(parents, parents[node])
