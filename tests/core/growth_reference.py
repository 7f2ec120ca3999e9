"""Slow growth of token trees: one row, one node at a time, each law from the whole text before it (numpy, float64)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from specjax import Sampling
from specjax.testing import reference


class Row(NamedTuple):
    """One row, and what its draft may know.

    Attributes:
      prompt: token ids.
      output: token ids generated so far, the root last.
      sampling: scalar settings.
      drafts: most levels.
      eos: ids.
      scores: `(text) -> logits [V]` of the draft after the whole text.
      mask: `(output) -> bool [V]` of the constraint, or None.
      uniforms: `(node) -> (u, v)`, the numbers with which a node is drawn.
      gumbel: `(depth) -> [V]`, the noise of the place after a node at that depth; None in the rejection family.
    """

    prompt: list[int]
    output: list[int]
    sampling: Sampling
    drafts: int
    eos: tuple[int, ...]
    scores: Callable[[list[int]], np.ndarray]
    mask: Callable[[list[int]], np.ndarray] | None
    uniforms: Callable[[int], tuple[float, float]]
    gumbel: Callable[[int], np.ndarray] | None

    def laws(self, path: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
        """Behind `path`: the softmax of the adjusted logits, by which tokens are ranked, and the law that is drawn
        from; None where the logits are broken or nothing is allowed."""
        output = [*self.output, *path]
        scores = np.asarray(self.scores([*self.prompt, *output]), np.float64)
        mask = None if self.mask is None else self.mask(output)
        if not np.all(np.isfinite(scores)) or (mask is not None and not np.any(mask)):
            return None
        plain = replace(self.sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        both = [reference.target_law(scores, settings, self.prompt, output, self.eos, mask)
                for settings in (plain, self.sampling)]
        return both[0], both[1]

    def liking(self, path: tuple[int, ...], plain: np.ndarray, law: np.ndarray) -> np.ndarray:
        """Log-probabilities by which a dynamic tree grows: those of the draft, or, where the noise of the target is
        known, how likely each token is to win with it if the draft's own logits are off by 0.5 or so."""
        with np.errstate(divide="ignore"):
            if self.gumbel is None or self.sampling.temperature == 0:
                return np.log(plain)
            noisy = (np.log(law) + self.gumbel(len(path))) * self.sampling.temperature / 0.5
            return noisy - noisy.max() - np.log(np.sum(np.exp(noisy - noisy.max())))


class Tree(NamedTuple):
    """Tokens, which nodes there are, and for each inner node the law of its drawn children or None."""

    tokens: list[int]
    valid: list[bool]
    laws: dict[int, np.ndarray | None]


def without(law: np.ndarray, removed: Any, substitute: int) -> np.ndarray:
    """`law` given that it is none of `removed`; certain of `substitute` if nothing is left."""
    rest = np.array([0.0 if token in removed else chance for token, chance in enumerate(law)])
    return rest / rest.sum() if rest.sum() > 0 else np.eye(len(law))[substitute]


def ranked(values: np.ndarray) -> list[int]:
    return np.argsort(-values, kind="stable").tolist()


def children(kind: str, row: Row, depth: int, nodes: list[int], ranks: list[int], laws: Any) -> tuple[list[int], Any]:
    """Tokens of the children `nodes` of one node, and the law of the drawn ones."""
    plain, law = laws
    likeliest = ranked(plain)
    if kind == "chosen" or row.sampling.temperature == 0:
        return [likeliest[rank] for rank in ranks], None
    if row.gumbel is not None:
        with np.errstate(divide="ignore"):
            noisy = np.where(law > 0, np.log(law) + row.gumbel(depth), -np.inf)
        order = sorted(range(len(law)), key=lambda token: (-noisy[token], likeliest.index(token)))
        return [order[rank] for rank in ranks], None
    if kind in ("hybrid", "one"):
        fixed = [likeliest[rank] for rank in ranks[:-1]]
        rest = without(law, fixed, likeliest[ranks[-1]])
        return [*fixed, reference.choose(rest, row.uniforms(nodes[-1]))], rest
    tokens: list[int] = []
    for node in nodes:
        rest = law if kind == "independent" else without(law, tokens, next(t for t in likeliest if t not in tokens))
        tokens.append(reference.choose(rest, row.uniforms(node)))
    return tokens, law


def static_tree(row: Row, kind: str, parents: tuple[int, ...], ranks: tuple[int, ...]) -> Tree:
    """A tree of a static topology."""
    count = len(parents)
    tokens, valid, laws = [row.output[-1] if row.output else row.prompt[-1]] + [0] * (count - 1), [True], {}
    paths: list[tuple[int, ...]] = [()] * count
    valid += [False] * (count - 1)
    for node in range(count):
        below = [child for child in range(count) if parents[child] == node]
        if not below or not valid[node] or len(paths[node]) >= row.drafts:
            continue
        both = row.laws(paths[node])
        if both is None:
            continue
        drawn, laws[node] = children(kind, row, len(paths[node]), below, [ranks[child] for child in below], both)
        for child, token in zip(below, drawn, strict=True):
            tokens[child], valid[child], paths[child] = token, True, (*paths[node], token)
    return Tree(tokens, valid, laws)


class Grown(NamedTuple):
    """A dynamic tree by its texts: paths of the chosen nodes, and for each parent of a drawn one its token and law."""

    chosen: set[tuple[int, ...]]
    drawn: dict[tuple[int, ...], tuple[int, np.ndarray]]


def dynamic_tree(row: Row, num_nodes: int, depth: int, width: int, drawn: int) -> Grown:
    """Expansion and rerank of arXiv:2406.16858; then one drawn child below each of the best inner nodes."""
    score: dict[tuple[int, ...], float] = {}
    known: dict[tuple[int, ...], Any] = {}
    frontier: list[tuple[int, ...]] = [()]
    for _ in range(min(depth, row.drafts)):
        below = {}
        for path in frontier:
            known[path] = row.laws(path)
            if known[path] is None:
                continue
            liking = row.liking(path, *known[path])
            for token in ranked(liking)[:width]:
                if np.isfinite(liking[token]):
                    below[(*path, token)] = (score[path] if path else 0.0) + float(liking[token])
        score |= below
        frontier = sorted(below, key=lambda path: -below[path])[:width]
    hybrid = drawn if row.sampling.temperature > 0 and row.gumbel is None else 0
    best = sorted(score, key=lambda path: -score[path])[: num_nodes - 1 - hybrid]
    inner = [path for path in known
             if (path in best or not path) and known[path] is not None and len(path) < row.drafts]
    inner.sort(key=lambda path: -(score[path] if path else 0.0))
    found = {}
    for place, path in enumerate(inner[:hybrid]):
        fixed = [other[-1] for other in best if other[:-1] == path and other]
        plain, law = known[path]
        rest = without(law, fixed, next(token for token in ranked(plain) if token not in fixed))
        found[path] = reference.choose(rest, row.uniforms(num_nodes - hybrid + place)), rest
    return Grown(set(best), found)
