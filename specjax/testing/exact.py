"""The exact law of a round, by enumeration of `Verifier.plan` over every block that could have been drafted.

Laws of texts are float64 arrays of shape (V,) * H: `law[a, b, c]` is the probability that the next H tokens are
`a b c`. Nothing is sampled, so an error of 1e-6 in total variation is seen.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src import constraint as constraints
from specjax._src import sampling as samplings
from specjax._src.sampling import History, Sampling
from specjax._src.tree import chain
from specjax._src.types import Array, Constraint, Verifier
from specjax.testing import reference


class Tables(NamedTuple):
    """Raw logits of a target and a draft after every text of up to H - 1 tokens: entry `i` has shape (V,) * (i + 1)."""

    target: list[np.ndarray]
    draft: list[np.ndarray]

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.target[0].shape[-1]


class Setting(NamedTuple):
    """Everything else that shapes the law of a text.

    Attributes:
      sampling: scalar settings (`logit_bias` and `allowed` may be [V]).
      prompt: tokens before the round, at least one.
      output: of those, how many are output rather than prompt.
      eos: ids withheld by `min_new_tokens`.
      constraint: or None.
    """

    sampling: Sampling = Sampling(temperature=1.0)
    prompt: Sequence[int] = (0,)
    output: int = 0
    eos: Sequence[int] = ()
    constraint: Constraint | None = None


PLAIN = Setting()


def random_tables(seed: int, vocab_size: int, horizon: int, scale: float = 1.5) -> Tables:
    """Two unrelated models with normal logits, for texts of `horizon` tokens."""
    draw = np.random.default_rng(seed).normal
    target, draft = ([scale * draw(size=(vocab_size,) * (i + 1)).astype(np.float32) for i in range(horizon)]
                     for _ in range(2))
    return Tables(target, draft)


def trigram_tables(logits: Any, prompt: Sequence[int], horizon: int) -> Tables:
    """What the toy `trigram` of these `logits` [V + 1, V, V] says after `prompt`, as target and draft alike."""
    logits = np.asarray(logits, np.float32)
    stacked = []
    for depth in range(horizon):
        table = np.zeros((logits.shape[-1],) * (depth + 1), np.float32)
        for text in itertools.product(range(logits.shape[-1]), repeat=depth):
            line = [-1, *prompt, *text]
            table[text] = logits[line[-2] + 1, line[-1]]
        stacked.append(table)
    return Tables(stacked, stacked)


def target_text_law(tables: Tables, setting: Setting = PLAIN) -> np.ndarray:
    """The law of the next H tokens under the target alone, from the numpy reference of the transforms."""
    conditionals = target_conditionals(tables, setting)
    law = np.ones(())
    for conditional in conditionals:
        law = law[..., None] * conditional
    return law


def target_conditionals(tables: Tables, setting: Setting) -> list[np.ndarray]:
    """Entry `i`, shape (V,) * (i + 1): the target's law of token `i` after each text of `i` tokens."""
    split = len(setting.prompt) - setting.output
    before, start = list(setting.prompt[:split]), list(setting.prompt[split:])
    conditionals = []
    for depth, logits in enumerate(tables.target):
        law = np.zeros(logits.shape)
        for text in itertools.product(range(tables.vocab_size), repeat=depth):
            law[text] = reference.target_law(
                logits[text], setting.sampling, before, start + list(text), setting.eos, _mask(setting, start, text))
        conditionals.append(law)
    return conditionals


def round_text_laws(
    verifier: Verifier,
    tables: Tables,
    depth: int,
    setting: Setting = PLAIN,
    *,
    blocks: Sequence[Sequence[int]] | None = None,
    drawn_from: Callable[[np.ndarray], np.ndarray] | None = None,
) -> list[np.ndarray]:
    """The laws of the next H tokens when a round drafts some tokens and the target goes on alone.

    Args:
      verifier: the rule.
      tables: of target and draft; the draft's transforms are those of the target.
      depth: nodes below the root in the tree, whatever the rows draft.
      setting: of the rows.
      blocks: blocks of `depth` tokens that are always proposed (a one-hot draft); None enumerates all blocks, weighted
        by the draft's law.
      drawn_from: for negative controls, `(draft laws [rows, depth, V]) -> laws` that the blocks are really drawn from.

    Returns:
      A float64 array (V,) * H for every k in 0 .. depth; with `blocks`, for every block and every k.
    """
    rows = _enumerate(tables.vocab_size, depth, blocks)
    count, following, weights = _rows_law(verifier, tables, depth, setting, rows, blocks is None, drawn_from)
    conditionals = target_conditionals(tables, setting)
    return [
        _text_law(conditionals, tables.vocab_size, *(part[rows.case == case] for part in (
            rows.drafted, weights, count, following)))
        for case in range(rows.case[-1] + 1)
    ]


def mean_accepted(verifier: Verifier, tables: Tables, depth: int, setting: Setting = PLAIN) -> float:
    """The expected number of drafted tokens kept in a round that draws `depth` of them from the draft's law."""
    rows = _enumerate(tables.vocab_size, depth, None)
    count, _, weights = _rows_law(verifier, tables, depth, setting, rows, True, None)
    longest = rows.num_drafted == depth
    return float(np.sum((weights[:, None] * count)[longest] * np.arange(depth + 1)))


class _Rows(NamedTuple):
    """What may be drafted: `drafted` [R, depth], of which `num_drafted` [R] count; `case` [R] groups one law's rows."""

    drafted: np.ndarray
    num_drafted: np.ndarray
    case: np.ndarray


def _enumerate(vocab_size: int, depth: int, blocks: Sequence[Sequence[int]] | None) -> _Rows:
    drafted, num_drafted, cases = [], [], []
    for case, (block, k) in enumerate(itertools.product([None] if blocks is None else blocks, range(depth + 1))):
        for text in itertools.product(range(vocab_size), repeat=k) if block is None else [tuple(block)[:k]]:
            drafted.append((*text, *[0] * (depth - k)))
            num_drafted.append(k)
            cases.append(case)
    return _Rows(np.array(drafted, np.int32).reshape(-1, depth), np.array(num_drafted, np.int32), np.array(cases))


def _rows_law(
    verifier: Verifier, tables: Tables, depth: int, setting: Setting, rows: _Rows, drawn: bool, drawn_from: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each row: the law of the number kept [R, depth + 1], of the next token [.., V], and the row's weight [R]."""
    target = _log_laws(tables.target, rows.drafted, setting, depth + 1)
    draft = _log_laws(tables.draft, rows.drafted, setting, depth) if drawn and depth else None
    weights = np.ones(len(rows.drafted))
    if draft is not None:
        law = np.exp(np.asarray(draft, np.float64))
        law = law if drawn_from is None else drawn_from(law)
        for place in range(depth):
            chance = law[np.arange(len(law)), place, rows.drafted[:, place]]
            weights *= np.where(place < rows.num_drafted, chance, 1.0)
    count, following = _plan(verifier, jnp.asarray(rows.drafted), jnp.asarray(rows.num_drafted), target, draft)
    return np.asarray(count, np.float64), np.asarray(following, np.float64), weights


def _text_law(
    conditionals: list[np.ndarray], vocab_size: int, drafted: np.ndarray, weights: np.ndarray, count: np.ndarray,
    following: np.ndarray
) -> np.ndarray:
    total = np.zeros((vocab_size,) * len(conditionals))
    for kept in range(count.shape[1]):
        law = np.zeros((1, *(vocab_size,) * (kept + 1)))  # the leading 1 gives `kept = 0` something to index
        place = (np.zeros(len(drafted), np.int64), *drafted[:, :kept].T)
        np.add.at(law, place, (weights * count[:, kept])[:, None] * following[:, kept])
        law = law[0]
        for conditional in conditionals[kept + 1 :]:
            law = law[..., None] * conditional
        total += law
    return total


def total_variation(law: np.ndarray, other: np.ndarray) -> float:
    """Half the sum of absolute differences: the most that any event can differ by."""
    return 0.5 * float(np.sum(np.abs(law - other)))


def assert_same_law(law: np.ndarray, exact: np.ndarray, tolerance: float = 1e-6) -> None:
    """Fail if the total variation exceeds `tolerance`, or if the law does not sum to 1."""
    distance = total_variation(law, exact)
    assert distance <= tolerance, f"total variation {distance:.3g} from the target's law (allowed: {tolerance:g})"
    assert abs(law.sum() - 1.0) <= 2.0 * tolerance, f"probabilities sum to {law.sum()}"


def log_laws(tables: list[np.ndarray], setting: Setting = PLAIN) -> list[np.ndarray]:
    """The library's own log-laws after every text: entry `i`, of texts of `i` tokens, is float32 (V,) * (i + 1)."""
    vocab_size, last = tables[0].shape[-1], len(tables) - 1
    texts = np.array(list(itertools.product(range(vocab_size), repeat=last)), np.int32).reshape(-1, last)
    laws = np.asarray(_log_laws(tables, texts, setting, last + 1))
    shaped = laws.reshape(*(vocab_size,) * last, last + 1, vocab_size)
    return [shaped[(slice(None),) * depth + (0,) * (last - depth) + (depth,)] for depth in range(last + 1)]


def _log_laws(tables: list[np.ndarray], drafted: np.ndarray, setting: Setting, depth: int) -> Array:
    """The library's own log-laws after 0 .. depth - 1 drafted tokens of each row: float32 [rows, depth, V]."""
    first = np.zeros(len(drafted), np.int64)  # an index that gives every row the same table
    logits = [table[None][(first, *drafted[:, :place].T)] for place, table in enumerate(tables[:depth])]
    history, state = _history(setting, len(drafted))
    return _transformed(setting.constraint, jnp.asarray(np.stack(logits, axis=1)), jnp.asarray(drafted), history, state)


def _history(setting: Setting, rows: int) -> tuple[History, Any]:
    """The committed text of the setting in every row, and the constraint's state after it."""
    length = len(setting.prompt)
    tokens = np.zeros((rows, 8), np.int32)
    tokens[:, :length] = setting.prompt
    eos = np.full((rows, 4), -1, np.int32)
    eos[:, : len(setting.eos)] = setting.eos
    lengths = jnp.full(rows, length, jnp.int32)
    history = History(jnp.asarray(tokens), lengths, lengths - setting.output, jnp.asarray(eos),
                      samplings.by_row(setting.sampling, rows))
    state = constraints.start(setting.constraint, rows)
    for token in setting.prompt[length - setting.output :]:
        state = constraints.advance(setting.constraint, state, jnp.full(rows, token, jnp.int32))
    return history, state


@functools.partial(jax.jit, static_argnums=0)
def _transformed(constraint: Constraint | None, logits: Array, drafted: Array, history: History, state: Any) -> Array:
    masks = constraints.masks_along(constraint, state, drafted)
    masks = None if masks is None else masks[:, : logits.shape[1]]
    prefix = samplings.chain_prefix(drafted, 0, logits.shape[1])
    return samplings.log_law(samplings.adjust(logits, history, prefix, masks), history.sampling)


@functools.partial(jax.jit, static_argnums=0)
def _plan(
    verifier: Verifier, drafted: Array, num_drafted: Array, target: Array, draft: Array | None
) -> tuple[Array, Array]:
    """The law of the number kept, float32 [R, depth + 1], and of the token after them [R, depth + 1, V]."""
    root = jnp.zeros(drafted.shape[0], jnp.int32)
    proposal = chain(root, drafted, num_drafted, jnp.ones_like(root, bool), draft)
    return verifier.outcomes(verifier.plan(proposal, target))


def _mask(setting: Setting, start: list[int], text: tuple[int, ...]) -> np.ndarray | None:
    rule = setting.constraint
    if rule is None:
        return None
    state = jax.tree.map(lambda leaf: leaf[0], rule.init(1))
    for token in [*start, *text]:
        state = rule.advance(state, jnp.int32(token))
    return np.asarray(rule.mask(state))
