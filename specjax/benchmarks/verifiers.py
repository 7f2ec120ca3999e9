"""What judging a tree costs, beside one softmax of the target's rows: `python -m specjax.benchmarks.verifiers`.

A round must make a law of the target's logits anyway, one softmax over N rows of V. A rule that looks at whole rows
again pays that again; one that walks down a single path looks at few of them.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import verify
from specjax._src.draft.static_tree import last_children
from specjax._src.noise import Noise
from specjax._src.tree import Shape, TokenTree, full_paths, paths_shape
from specjax._src.types import Array, Verdict, Verifier
from specjax.benchmarks import progress, record
from specjax.benchmarks.kept import blank_tree, drafted, random_laws
from specjax.benchmarks.timing import Program, in_turns

SOFTMAX = "softmax"
DISTANCE = 0.5  # standard deviation of the draft's logits around the target's
PATHS = [*full_paths(7, 2, 2), *((a, b, c, 0) for a in range(4) for b in range(2) for c in range(2))][:63]
"""64 nodes with the root: wide at the top and four deep, as published trees are."""


class Task(NamedTuple):
    """What a rule is given: a drafted tree and the target's laws.

    Attributes:
      tree: with the draft's laws.
      target: float32 [1, N, V], log-probabilities.
    """

    tree: TokenTree
    target: Array


def make_task(vocab_size: int, seed: int = 0) -> Task:
    """A tree whose children are drawn without replacement from a law near the target's."""
    blank = blank_tree(paths_shape(PATHS), 1)
    laws, drawn = random_laws((*blank.tokens.shape, vocab_size), DISTANCE, 1.0, seed)
    return Task(drafted("without_replacement", blank, laws, None, drawn), laws.target)


def rules() -> dict[str, tuple[Verifier, bool]]:
    """Each rule by name, for trees of one topology and, where it judges them, for trees that differ by row."""
    exact = {name: getattr(verify, name)() for name in
             ("match", "specinfer", "without_replacement", "hybrid", "traversal")}
    every = {**exact, "typical": verify.typical(epsilon=0.09, delta=0.3)}
    fixed = {name: (rule, False) for name, rule in every.items()}
    return fixed | {f"{name}, rows differ": (rule, True) for name, rule in exact.items() if not rule.static_only}


def judge(rule: Verifier, task: Task, seed: Array) -> Verdict:
    """One verdict, drawing included."""
    shape = task.tree.shape
    noise = Noise(jax.random.key(seed)[None], jnp.full(1, 5), rule.shared_noise)
    noise = noise.prepared(shape.num_nodes, jnp.bool_(True), shape.depth if rule.walks else 1)
    return rule.draw(noise, rule.plan(task.tree, task.target))


def measure(vocab_size: int, repeats: int, command: str) -> dict[str, Any]:
    """Seconds of each rule in turns with the softmax, and the medians of the ratios."""
    task = make_task(vocab_size)
    last = jnp.asarray(last_children(task.tree.shape))[None]
    tree = task.tree
    free: Shape = tree.shape._replace(parents=None, ranks=None)
    timed: dict[str, Callable[[], float]] = {SOFTMAX: _clock(lambda t, _: jax.nn.softmax(t.target, axis=-1), task)}
    with progress.shown() as stage:
        tell = stage("compiling", len(rules()))
        for name, (rule, differ) in rules().items():
            given = TokenTree(
                tree.tokens, tree.parents, tree.valid, free if differ else tree.shape, tree.draft_logits,
                last if rule.name == "hybrid" else None)
            timed[name] = _clock(functools.partial(judge, rule), Task(given, task.target))
            tell()
        seconds = in_turns(timed, repeats, tell=stage("in turns", (1 + repeats) * len(timed)))
    return {
        "environment": record.environment(command),
        "settings": {"nodes": tree.shape.num_nodes, "depth": tree.shape.depth, "vocab_size": vocab_size,
                     "repeats": repeats},
        "over_softmax": {
            name: statistics.median(a / b for a, b in zip(seconds[name], seconds[SOFTMAX], strict=True))
            for name in timed if name != SOFTMAX},
        "seconds": seconds}


def _clock(function: Callable[[Task, Array], Any], task: Task) -> Callable[[], float]:
    program = Program(function, task, jnp.uint32(0))
    seeds = iter(range(1, 1 << 30))
    return lambda: program(task, jnp.uint32(next(seeds)))[1]


def main() -> None:
    """Command line."""
    result = record.script("verifiers", __doc__, {"vocab_size": 152_000, "repeats": 21}, measure)
    for name, ratio in result["over_softmax"].items():
        print(f"{name:32} {ratio:5.2f} softmaxes")


if __name__ == "__main__":
    main()
