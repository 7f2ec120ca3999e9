"""From the name of a drafter to who proposes, with its weights and its tree."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import specjax
from specjax._src.draft.choices import EAGLE_PATHS, MEDUSA_PATHS, best_paths
from specjax._src.draft.dynamic_tree import plan
from specjax._src.tree import Path
from specjax._src.types import Drafter, Verifier
from specjax.checkpoints import LoadedHead, LoadedModel, check_same_tokenizer, embedded_names
from specjax.cli.options import DrafterName, SiblingsName, VerifierName
from specjax.models import some_layers

FAMILY = {DrafterName.MEDUSA: "medusa", DrafterName.EAGLE: "eagle", DrafterName.EAGLE2: "eagle",
          DrafterName.EAGLE3: "eagle3"}
"""Which kind of head each drafter reads."""
DRAFT_OF = {"tiny-python": "tiny-python-draft"}
NODES = 32  # of a dynamic tree, the root included
WIDTH = 8  # nodes that a dynamic tree expands at each depth, see `_width`
SELF_SHARE = 2 / 3  # of the target's layers, the first ones, draft for it


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is asked of a drafter.

    Attributes:
      name: which.
      num_speculative_tokens: k, the length of a chain or the depth of a tree; None is the drafter's usual one.
      num_nodes: of a tree, the root included; None is the drafter's usual one, 1 + k of a draft model (a chain).
      siblings: how the children of a node come about; "" is the drafter's usual way.
    """

    name: DrafterName
    num_speculative_tokens: int | None = None
    num_nodes: int | None = None
    siblings: str = ""

    def __post_init__(self) -> None:
        trees = (*FAMILY, DrafterName.MODEL)
        if self.name not in trees and (self.num_nodes is not None or self.siblings):
            raise ValueError(f"--drafter {self.name} proposes a chain: leave --num-nodes and the kind of siblings out")
        kinds = ("chosen",) if self.name == DrafterName.MEDUSA else tuple(SiblingsName)
        if self.siblings and self.siblings not in kinds:
            raise ValueError(f"--drafter {self.name} knows no siblings that are {self.siblings}: "
                             f"they are {', '.join(kinds)}")
        if self.name == DrafterName.MODEL and self.siblings and self.num_nodes in (None, 1 + self.length):
            raise ValueError(f"--drafter model proposes a chain of {self.length}, which has no siblings that are "
                             f"{self.siblings}: ask for a tree with --num-nodes, or leave the kind out")

    @property
    def length(self) -> int:
        """k of a chain."""
        return self.num_speculative_tokens or 5


def load_for(
    wanted: Wanted, target_name: str, target: LoadedModel, draft: str | None
) -> LoadedModel | LoadedHead | None:
    """The weights that a drafter needs beside the target's.

    Raises:
      ValueError: if there are none to use, or they do not go with the target.
    """
    if wanted.name in FAMILY:
        return _load_head(wanted.name, target_name, target, draft)
    if wanted.name != DrafterName.MODEL:
        if draft is not None:
            raise ValueError(
                f"--draft {draft} names a model, but --drafter {wanted.name} uses none: leave one of them out")
        return None
    draft = DRAFT_OF.get(target_name) if draft is None else draft
    if draft is None:
        raise ValueError(f"no draft model is known for {target_name}: name one with --draft, or use --drafter ngram "
                         "(look-up, needs no model) or --drafter none")
    loaded = specjax.load(draft)
    check_same_tokenizer(target, loaded)
    return loaded


def _load_head(name: DrafterName, target_name: str, target: LoadedModel, draft: str | None) -> LoadedHead:
    family = FAMILY[name]
    if draft is None:
        draft = f"{target_name}-{family}"
        if draft not in embedded_names():
            raise ValueError(f"no {family} head is known for {target_name}: name one with --draft (train one with "
                             f"`specjax train {family}`, or convert a published one), or use --drafter ngram")
    loaded = specjax.load_head(draft, target)
    if loaded.config.family != family:
        raise ValueError(f"--drafter {name} needs a {family} head, but {draft} is a {loaded.config.family} head: use "
                         f"--drafter {loaded.config.family}, or name another head")
    return loaded


def make_drafter(
    wanted: Wanted, target: LoadedModel, draft: LoadedModel | LoadedHead | None
) -> tuple[Drafter | None, Any]:
    """The drafter and its parameters, from what `load_for` gave."""
    k, nodes = wanted.length, wanted.num_nodes
    if isinstance(draft, LoadedHead):
        return _from_head(wanted, draft), draft.params
    if isinstance(draft, LoadedModel):
        if nodes is None or nodes == 1 + k:
            return specjax.draft.from_model(draft.model, k), draft.params
        return specjax.draft.dynamic_model_tree(
            draft.model, nodes, k, _width(nodes, k), drawn=_drawn(wanted, nodes)), draft.params
    if wanted.name == DrafterName.NGRAM:
        return specjax.draft.ngram(k), None
    if wanted.name == DrafterName.SELF:
        dtype = target.params["embedding"].dtype
        part = some_layers(target.config, max(1, round(SELF_SHARE * target.config.num_layers)), dtype)
        return specjax.draft.self_model(part, k), None
    return None, None


def _from_head(wanted: Wanted, draft: LoadedHead) -> Drafter:
    head: Any = draft.head
    k, nodes = wanted.num_speculative_tokens, wanted.num_nodes
    rates = draft.metadata.get("held_out", {}).get("ranks")  # as `specjax train` measured them
    if wanted.name == DrafterName.MEDUSA:
        return specjax.draft.medusa(head, _static(MEDUSA_PATHS, k, head.num_heads, nodes, rates))
    siblings = {"siblings": wanted.siblings} if wanted.siblings else {}
    if wanted.name == DrafterName.EAGLE:
        return specjax.draft.eagle(head, _static(EAGLE_PATHS, k, 5, nodes, rates), **siblings)
    if k is not None and nodes == k + 1:
        return specjax.draft.eagle(head, k, **siblings)
    grow = specjax.draft.eagle2 if wanted.name == DrafterName.EAGLE2 else specjax.draft.eagle3
    depth = inspect.signature(grow).parameters["depth"].default if k is None else k
    nodes = nodes or min(NODES, 1 + plan(NODES, depth, WIDTH, 0).looked_at)
    return grow(head, nodes, depth, _width(nodes, depth), drawn=_drawn(wanted, nodes))


def fitting(name: DrafterName, siblings: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """What of `wanted` (k and nodes) means something to a drafter: a look-up has no nodes, and a draft model drafts a
    chain unless a kind of siblings is named."""
    grows = name in FAMILY or (name == DrafterName.MODEL and bool(siblings))
    return {key: value for key, value in wanted.items() if key != "num_nodes" or grows}


def make_verifier(name: VerifierName) -> Verifier | None:
    """The verifier of that name; None lets `specjax.generate` choose."""
    return None if name == VerifierName.AUTO else getattr(specjax.verify, name.value)()


def _width(nodes: int, depth: int) -> int:
    """Nodes to expand at each depth: a quarter of the tree, from 2 to WIDTH, and more where a shallow tree needs it.

    A wide frontier makes each pass of the draft dearer, and a small tree has no room for what it finds.
    """
    width = min(WIDTH, max(2, nodes // 4))
    while plan(nodes, depth, width, 0).looked_at < nodes - 1:
        width += 1
    return width


def _drawn(wanted: Wanted, nodes: int) -> int:
    if wanted.siblings not in ("", "chosen", "hybrid"):
        raise ValueError(f"a tree that grows in each row has siblings that are chosen or hybrid, not {wanted.siblings}")
    if wanted.siblings == "hybrid" and nodes < 3:
        raise ValueError("siblings that are hybrid need a chosen node that one is drawn below: ask for --num-nodes 3 "
                         f"at least, not {nodes}")
    return max(1, nodes // 4) if wanted.siblings == "hybrid" else 0


def _static(
    published: tuple[Path, ...], k: int | None, usual: int, nodes: int | None, rates: Any
) -> list[Path]:
    """A tree of so many nodes: the best one for measured rates [depth, rank] if the head came with them, else the first
    of the published; by default as large as the published one, or what there is of it down to the `usual` depth.

    Raises:
      ValueError: if neither reaches so deep or has so many nodes.
    """
    deepest = max(map(len, published)) if rates is None else len(rates)
    depth = min(usual, deepest) if k is None else k
    paths = [path for path in published if len(path) <= depth]
    if depth > deepest:
        raise ValueError(f"the tree of this head has depth {deepest} at most, k={k} asks for more: take a smaller k")
    if rates is not None:
        room = sum(len(rates[0]) ** level for level in range(1, depth + 1))
        return list(best_paths(rates[:depth], nodes or 1 + min(len(published), room)))
    if nodes is not None and nodes - 1 > len(paths):
        raise ValueError(f"the published tree has {1 + len(paths)} nodes down to depth {depth}, asked for are {nodes} "
                         "nodes: ask for fewer, or train the head with `specjax train`, which measures the rates that "
                         "other trees are made from")
    return paths if nodes is None else paths[: nodes - 1]
