"""What tree a drafter is asked for, in one form: a chain, paths, or a tree that grows where the draft is sure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from specjax._src import checks, tree
from specjax._src.draft import dynamic_tree, grow, static_tree
from specjax._src.draft.null import checked_depth
from specjax._src.noise import Noise
from specjax._src.tree import SIBLINGS, Shape, TokenTree
from specjax._src.types import Cache, Context


class Growth(NamedTuple):
    """How a drafter grows its tree; hashable.

    Attributes:
      shape: of the tree.
      siblings: how the children of a node come about.
      dynamic: sizes of a dynamic growth, or None for a static one.
    """

    shape: Shape
    siblings: str
    dynamic: dynamic_tree.Plan | None = None

    @property
    def slots(self) -> int:
        """Entries that the growth writes behind the committed ones of the network's cache."""
        if self.dynamic is not None:
            return max(self.dynamic.width * (self.shape.depth - 1), 1)
        return max(static_tree.passed_nodes(self.shape), 1)

    def __call__(
        self, stepper: grow.Stepper, params: Any, noise: Noise, start: grow.Start, context: Context
    ) -> tuple[TokenTree, Cache]:
        """The tree below the root, and the network's cache."""
        if self.dynamic is not None:
            return dynamic_tree.grow_dynamic(stepper, self.dynamic, params, noise, start, context)
        return static_tree.grow_static(stepper, self.shape, self.siblings, params, noise, start, context)


def static_growth(factory: str, paths: int | Iterable[Sequence[int]], siblings: str) -> Growth:
    """A chain of so many tokens, or a tree of these paths of ranks.

    Raises:
      ValueError: for paths that make no tree, or an unknown kind of siblings.
    """
    if siblings not in SIBLINGS:
        raise ValueError(f"{factory} got siblings={siblings!r}; they are {', '.join(SIBLINGS)}")
    whole = isinstance(paths, int) or not isinstance(paths, Iterable)
    shape = tree.chain_shape(checked_depth(factory, paths)) if whole else tree.paths_shape(paths)  # type: ignore[arg-type]
    if siblings == "one" and shape.branching > 1:
        raise ValueError(f"{factory} got siblings='one', but nodes of its tree have up to {shape.branching} children: "
                         "choose how they come about (hybrid, without_replacement, independent, chosen)")
    if shape.branching <= 1 and siblings != "chosen":
        siblings = "one"
    return Growth(shape, siblings)


def dynamic_growth(factory: str, num_nodes: int, depth: int, width: int, drawn: int) -> Growth:
    """A tree of `num_nodes` with the root, `drawn` of them drawn; see `specjax._src.draft.dynamic_tree`.

    It is no deeper than its nodes reach, `num_nodes - 1`, whatever is asked for.

    Raises:
      ValueError: if the sizes do not go together.
    """
    num_nodes = checks.whole(f"{factory}'s num_nodes", num_nodes, 2)
    depth = min(checks.whole(f"{factory}'s depth", depth, 1), num_nodes - 1)
    width = checks.whole(f"{factory}'s width", width, 1)
    drawn = checks.whole(f"{factory}'s drawn", drawn, 0)
    plan = dynamic_tree.plan(num_nodes, depth, width, drawn)
    if num_nodes - 1 > plan.looked_at:
        raise ValueError(f"{factory} looks at {plan.looked_at} nodes (width {width}, depth {depth}), fewer than the "
                         f"{num_nodes - 1} below the root that num_nodes={num_nodes} asks for: take more width or "
                         "depth")
    most = min(plan.num_inner, num_nodes - 2)
    if drawn > most:
        raise ValueError(f"{factory} can draw below {most} nodes at most, drawn={drawn} asks for more")
    return Growth(plan.shape, "hybrid" if drawn else "chosen", plan)
