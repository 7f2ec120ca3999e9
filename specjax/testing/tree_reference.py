"""Slow, obvious versions of the rules for trees: numpy in float64, one row, one node at a time, by recursion.

Each is written from the pseudo-code of its paper. Nothing is shared with the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.testing.reference import Law, choose, residual

NodeLaw = tuple[list[float], Law]


class Branch(NamedTuple):
    """A drafted token and all below it.

    Attributes:
      node: its place in the tree.
      token: the token.
      drawn: whether it was drawn from `q` of its parent.
      p: [V], the target's law after it.
      q: [V], the law its drawn children come from.
      children: in the order in which they are asked, drawn ones first.
    """

    node: int
    token: int
    drawn: bool
    p: Law
    q: Law
    children: list[Branch]


def grow(tokens: Any, parents: Any, valid: Any, drawn: Any, p: Any, q: Any, node: int = 0) -> Branch:
    """The branch at `node` of one row: `tokens`, `parents`, `valid`, `drawn` [N], `p`, `q` [N, V]."""
    children = [grow(tokens, parents, valid, drawn, p, q, child) for child in range(node + 1, len(tokens))
                if parents[child] == node and valid[child]]
    children.sort(key=lambda child: not child.drawn)
    return Branch(node, int(tokens[node]), bool(drawn[node]), p[node], q[node], children)


def match(branch: Branch) -> NodeLaw:
    """The target draws y; the first child that is y is taken. Result: the chance of each child, the law of a stop."""
    taken: list[int] = []
    chances = []
    for child in branch.children:
        chances.append(0.0 if child.token in taken else float(branch.p[child.token]))
        taken.append(child.token)
    return chances, _erased(branch.p, taken)


def specinfer(branch: Branch) -> NodeLaw:
    """SpecInfer, algorithm 2: children one by one, each against q; the target's law loses q at each refusal."""
    owed, all_refused, chances = branch.p, 1.0, []
    for child in branch.children:
        q = _law_of(child, branch.q)
        passes = min(1.0, owed[child.token] / q[child.token])
        chances.append(all_refused * passes)
        all_refused *= 1.0 - passes
        owed = residual(owed, q)
    return chances, owed


def without_replacement(branch: Branch) -> NodeLaw:
    """Recursive rejection sampling of RSD: as above, and q loses each drawn child once it was tested."""
    owed, q, all_refused, chances = branch.p, branch.q, 1.0, []
    for child in branch.children:
        proposal = _law_of(child, q)
        passes = min(1.0, owed[child.token] / proposal[child.token])
        chances.append(all_refused * passes)
        all_refused *= 1.0 - passes
        owed = residual(owed, proposal)
        q = _erased(q, [child.token], nothing=True) if child.drawn else q
    return chances, owed


def hybrid(branch: Branch) -> NodeLaw:
    """The drawn child by rejection against q; then y from the residual, which may be a chosen child."""
    drawn = [child for child in branch.children if child.drawn and branch.q[child.token] > 0]
    left, refused = branch.p, 1.0
    for child in drawn:
        refused = 1.0 - min(1.0, branch.p[child.token] / branch.q[child.token])
        left = residual(branch.p, branch.q)
    chosen = [child.token for child in branch.children if child not in drawn]
    chances = []
    for place, child in enumerate(branch.children):
        if child in drawn:
            chances.append(1.0 - refused)
        else:
            again = child.token in [other.token for other in branch.children[:place] if other not in drawn]
            chances.append(0.0 if again else refused * left[child.token])
    return chances, _erased(left, chosen)


RULES: dict[str, Callable[[Branch], NodeLaw]] = {
    "match": match, "specinfer": specinfer, "without_replacement": without_replacement, "hybrid": hybrid}


def walk_law(rule: Callable[[Branch], NodeLaw], root: Branch, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a walk from the root: the probability that each node is the last one kept [N], the law of what follows."""
    ends, following = np.zeros(num_nodes), np.zeros((num_nodes, len(root.p)))

    def visit(branch: Branch, reach: float) -> None:
        chances, following[branch.node] = rule(branch)
        ends[branch.node] = reach * max(1.0 - sum(chances), 0.0)
        for child, chance in zip(branch.children, chances, strict=True):
            visit(child, reach * chance)

    visit(root, 1.0)
    return ends, following


def traversal_law(root: Branch, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Traversal verification, recursive as in arXiv:2505.12398; the result is that of `walk_law`."""
    ends, following = np.zeros(num_nodes), np.zeros((num_nodes, len(root.p)))

    def visit(branch: Branch, a: float, alive: float) -> float:
        """`alive`: the probability that all nodes asked so far were refused; the result counts this one in."""
        p, q = branch.p, branch.q
        for child in branch.children:
            proposal = _law_of(child, q)
            alive = visit(child, min(a * p[child.token] / proposal[child.token], 1.0), alive)
            left = np.maximum(a * p - proposal, 0.0)
            p = residual(a * p, proposal, p)
            a = left.sum() / (left.sum() + 1.0 - a) if a < 1.0 else 1.0
            q = _erased(q, [child.token], nothing=True) if child.drawn else q
        ends[branch.node], following[branch.node] = alive * a, p
        return alive * (1.0 - a)

    visit(root, 1.0, 1.0)
    return ends, following


def typical(root: Branch, epsilon: float, delta: float) -> int:
    """The last node that typical acceptance keeps: the deepest, of equals the likeliest."""
    best = (0, 0.0, root.node)

    def visit(branch: Branch, depth: int, likelihood: float) -> None:
        nonlocal best
        entropy = -sum(float(chance) * np.log(chance) for chance in branch.p if chance > 0)
        for child in branch.children:
            chance = float(branch.p[child.token])
            if chance > min(epsilon, delta * np.exp(-entropy)):
                here = (depth + 1, likelihood + np.log(chance), child.node)
                best = max(best, here, key=lambda one: one[:2])
                visit(child, *here[:2])

    visit(root, 0, 0.0)
    return best[2]


def draw_walk(
    rule: Callable[[Branch], NodeLaw], root: Branch, uniforms: Sequence[float], numbers: Any
) -> tuple[list[int], int, float]:
    """The path and the next token of one walk, and how near a number came to a border.

    Args:
      rule: of `RULES`.
      root: of the tree.
      uniforms: one for each depth.
      numbers: for `choose`, of the token at the end.
    """
    path, branch, margin = [root.node], root, 1.0
    while branch.children:
        chances, after = rule(branch)
        borders = np.cumsum(chances)
        margin = min(margin, float(np.min(np.abs(borders - uniforms[len(path) - 1]))))
        below = [place for place, border in enumerate(borders)
                 if chances[place] > 0 and uniforms[len(path) - 1] < border]
        if not below:
            return path, choose(after, numbers), margin
        branch = branch.children[below[0]]
        path.append(branch.node)
    return path, choose(branch.p, numbers), margin


def draw_own(root: Branch, gumbels: Any) -> tuple[list[int], int]:
    """Sample, then match: the path and the next token, with the Gumbel noise [V] of each depth."""
    path, branch = [root.node], root
    while True:
        own = choose(branch.p, gumbels[len(path) - 1])
        same = [child for child in branch.children if child.token == own]
        if not same:
            return path, own
        branch = same[0]
        path.append(branch.node)


def _law_of(child: Branch, q: Law) -> Law:
    """q for a drawn child, all on its token for a chosen one and where q has nothing left."""
    return q if child.drawn and q[child.token] > 0 else np.eye(len(q))[child.token]


def _erased(law: Law, tokens: Sequence[int], nothing: bool = False) -> Law:
    """`law` without `tokens`, normalised; if nothing is left, 0 everywhere or (not `nothing`) `law` as it was."""
    left = law.copy()
    left[list(tokens)] = 0.0
    if left.sum() > 0:
        return left / left.sum()
    return left if nothing else law
