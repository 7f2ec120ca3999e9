"""`check_model`: is this `Model` right? Run it on every model before decoding with it."""

from __future__ import annotations

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from specjax._src.types import Array, Attend, Cache, Model, Output

ROWS, LENGTH, CHUNK = 3, 20, 5
# A tree of depth 3 with branches at the root and below, in topological order, and its paths from root to leaf. On the
# last path a window of 2 that counts slots sees the second node from the fourth, which stands two positions behind it.
PARENTS = (-1, 0, 0, 1, 1, 2, 4, 5)
PATHS = ((0, 1, 3), (0, 1, 4, 6), (0, 2, 5, 7))
LEVELS = ((0,), (1, 2), (3, 4, 5), (6, 7))


class Report(NamedTuple):
    """What `check_model` measured.

    Attributes:
      differences: for each check the largest absolute difference of logits from those of one full pass.
      scale: the largest absolute logit of the full pass.
    """

    differences: dict[str, float]
    scale: float


def check_model(
    model: Model,
    params: Any,
    *,
    vocab_size: int | None = None,
    trees: bool = True,
    tolerance: float = 1e-4,
    seed: int = 0,
    length: int = LENGTH,
    widest: int | None = None,
) -> Report:
    """Hold a model to its contract: every way of feeding the same tokens gives the same logits.

    full pass = token by token = in chunks = ragged rows = after a rollback = a tree read along its paths = a tree level
    by level, whatever stands in invalid places; and `commit` returns a cache of the form that `init_cache` made.

    Args:
      model: the three functions.
      params: its parameters.
      vocab_size: token ids are drawn below it; None means all that the model scores.
      trees: False for a model that can not honour `Attend.ancestors` (ring and recurrent caches).
      tolerance: largest difference allowed, as a share of the largest logit (at least 1). 1e-4 suits float32;
        a bfloat16 model needs about 5e-2, and then proves less.
      seed: of the random tokens.
      length: of the texts, at least 20. A ring should be written round in it.
      widest: the most tokens that one call of the model may have (with the earlier columns of a wide
        `Attend.ancestors`; at least 11), where a ring sets a limit: the full pass is then one of pieces.

    Returns:
      `Report`.

    Raises:
      AssertionError: naming the check that failed, and what is likely wrong with the model.
    """
    check = _Check(model, params, trees, tolerance, seed, length, widest or length)
    check.set_up(vocab_size)
    check.token_by_token()
    check.in_chunks()
    check.ragged()
    check.rollback()
    check.invalid()
    if trees:
        check.tree()
        check.tree_by_levels()
        check.block_of_equals()
    return Report(check.differences, check.scale)


class _Check:
    """The tokens, the full pass, and one method for each claim."""

    def __init__(
        self, model: Model, params: Any, trees: bool, tolerance: float, seed: int, length: int, widest: int
    ) -> None:
        self.model, self.params, self.trees, self.tolerance = model, params, trees, tolerance
        self.length, self.widest = length, widest
        self.random = np.random.default_rng(seed)
        self.differences: dict[str, float] = {}
        self.apply = jax.jit(lambda tokens, cache, attend: model.apply(params, tokens, cache, attend))
        self.commit = jax.jit(model.commit)

    def set_up(self, vocab_size: int | None) -> None:
        self.cache = self.model.init_cache(ROWS, self.length + 3 * CHUNK)
        for leaf in jax.tree.leaves(self.cache):
            assert leaf.shape[:1] == (ROWS,), (
                f"init_cache({ROWS}, ..) made a leaf of shape {leaf.shape}: every leaf needs a leading row axis")
        start = jnp.zeros(ROWS, jnp.int32)
        first = jnp.zeros((ROWS, self.widest), jnp.int32)
        shape = jax.eval_shape(self.apply, first, self.cache, _attend(start, self.widest))
        assert isinstance(shape, Output), f"apply must return specjax.Output, got {type(shape).__name__}"
        assert shape.logits.ndim == 3 and shape.logits.shape[:2] == (ROWS, self.widest), (
            f"logits must be [B, T, V] with B={ROWS}, T={self.widest}, got {shape.logits.shape}")
        self.vocab_size = shape.logits.shape[-1] if vocab_size is None else vocab_size
        self.tokens = self.draw(self.length)
        self.full, cache = self.begin(np.full(ROWS, self.length))
        self.same_form(cache)
        assert np.all(np.isfinite(self.full)), "logits of the full pass are not finite"
        self.scale = float(np.max(np.abs(self.full)))

    def same_form(self, cache: Cache) -> None:
        try:
            chex.assert_trees_all_equal_shapes_and_dtypes(self.cache, cache)
        except AssertionError as error:
            raise AssertionError(f"commit returned a cache of another form than init_cache: {error}") from None

    def draw(self, count: int) -> np.ndarray:
        return self.random.integers(0, self.vocab_size, (ROWS, count)).astype(np.int32)

    def feed(self, tokens: Any, cache: Cache, lengths: Any, num: Any, valid: Any = None) -> tuple[np.ndarray, Cache]:
        """A chain of `tokens` [B, T] behind `lengths`, of which `num` [B] are kept; all valid unless said otherwise."""
        lengths, num = jnp.asarray(lengths, jnp.int32), jnp.asarray(num, jnp.int32)
        out = self.apply(jnp.asarray(tokens), cache, _attend(lengths, tokens.shape[1], valid))
        return np.asarray(out.logits, np.float32), self.commit(out.pending, None, lengths, num)

    def begin(self, num: np.ndarray) -> tuple[np.ndarray, Cache]:
        """The first `num` [B] of the tokens, in one pass where the model allows it: logits and cache."""
        cache, parts = self.cache, []
        for at in range(0, self.length, self.widest):
            piece = self.tokens[:, at : at + self.widest]
            lengths, kept = np.minimum(num, at), np.clip(num - at, 0, piece.shape[1])
            logits, cache = self.feed(piece, cache, lengths, kept, np.arange(piece.shape[1]) < kept[:, None])
            parts.append(logits)
        return np.concatenate(parts, axis=1), cache

    def compare(self, name: str, got: np.ndarray, want: np.ndarray, where: np.ndarray, hint: str) -> None:
        """`got` and `want` [B, T, V] agree at `where` bool [B, T]."""
        gap = np.max(np.where(where[..., None], np.abs(got - want), 0.0), initial=0.0)
        gap = np.inf if not np.all(np.isfinite(got[where])) else float(gap)
        self.differences[name] = max(gap, self.differences.get(name, 0.0))
        allowed = self.tolerance * max(1.0, self.scale)
        assert gap <= allowed, (
            f"{name}: logits differ from those of one full pass by {gap:.3g} (allowed: {allowed:.3g}). {hint}")

    def token_by_token(self) -> None:
        cache, lengths = self.cache, np.zeros(ROWS, np.int32)
        for place in range(self.length):
            logits, cache = self.feed(self.tokens[:, place : place + 1], cache, lengths, np.ones(ROWS))
            self.compare("token by token", logits, self.full[:, place : place + 1], np.ones((ROWS, 1), bool),
                         "Does apply read the cache, and write its tokens at slots `attend.lengths ..`?")
            lengths += 1

    def in_chunks(self) -> None:
        num = np.full(ROWS, CHUNK)
        self._walk("in chunks", lambda left: np.minimum(num, left), False, False,
                   "Does apply take positions from `attend.positions` and mask future tokens of its own call?")

    def ragged(self) -> None:
        self._walk("ragged rows", lambda left: np.minimum(self.random.integers(0, CHUNK + 1, ROWS), left), False, False,
                   "Has every row its own length, and do invalid tokens change nothing?")

    def rollback(self) -> None:
        self._walk("after a rollback", lambda left: np.minimum(self.random.integers(0, CHUNK + 1, ROWS), left), True,
                   False, "commit(num) must leave exactly `num` of the tokens of the call, and num = 0 the old row.")

    def invalid(self) -> None:
        self._walk("other invalid tokens", lambda left: np.minimum(self.random.integers(0, CHUNK + 1, ROWS), left),
                   False, True, "An invalid token must change nothing that others see.")

    def _walk(self, name: str, advance: Any, speculate: bool, partly: bool, hint: str) -> None:
        """Feed blocks of CHUNK, keep `advance(left)` tokens of each; what is not kept is random.

        With `speculate` the random tail is valid when it is scored, and then refused; else it is invalid. With
        `partly` some of the valid tokens are refused too.
        """
        cache, lengths = self.cache, np.zeros(ROWS, np.int64)
        while np.any(lengths < self.length):
            num = advance(self.length - lengths)
            window = lengths[:, None] + np.arange(CHUNK)
            right = np.arange(CHUNK) < num[:, None]
            index = np.minimum(window, self.length - 1)
            tokens = np.where(right, np.take_along_axis(self.tokens, index, 1), self.draw(CHUNK))
            want = np.take_along_axis(self.full, index[..., None], 1)
            kept = self.random.integers(0, num + 1) if partly else num
            logits, cache = self.feed(tokens, cache, lengths, kept, None if speculate else right)
            self.compare(name, logits, want, right, hint)
            self.same_form(cache)
            lengths += kept

    def tree(self) -> None:
        nodes, paths = len(PARENTS), [np.array(path) for path in PATHS]
        ancestors = _ancestors()
        lengths = np.array([4, 9, 6]) + self.length - LENGTH
        _, cache = self.begin(lengths)
        tokens = self.draw(nodes)
        depth = ancestors.sum(1) - 1
        for name, batch in (("a tree by its paths", 1), ("a tree for each row", ROWS)):
            for num_valid in (nodes, 5):
                valid = np.broadcast_to(np.arange(nodes) < num_valid, (ROWS, nodes))
                attend = Attend(jnp.asarray(lengths, jnp.int32), jnp.asarray(lengths[:, None] + depth, jnp.int32),
                                jnp.asarray(valid), jnp.asarray(np.broadcast_to(ancestors, (batch, nodes, nodes))))
                out = self.apply(jnp.asarray(tokens), cache, attend)
                for path in paths:
                    self._follow(name, out, cache, tokens, lengths, path[path < num_valid])

    def tree_by_levels(self) -> None:
        """A tree fed level by level, as a draft model grows it, scores as it does when it is fed at once."""
        ancestors, nodes = _ancestors(), len(PARENTS)
        lengths = np.array([2, 9, 6]) + self.length - LENGTH
        _, cache = self.begin(lengths)
        tokens, depth = self.draw(nodes), ancestors.sum(1) - 1
        whole = Attend(jnp.asarray(lengths, jnp.int32), jnp.asarray(lengths[:, None] + depth, jnp.int32),
                       jnp.ones((ROWS, nodes), bool), jnp.asarray(ancestors[None]))
        want = np.asarray(self.apply(jnp.asarray(tokens), cache, whole).logits, np.float32)
        for number, level in enumerate(LEVELS):
            read, count = level[0], len(level)
            # A row with fewer slots than columns: those of slots below 0 mean nothing.
            above = ancestors[list(level), : read + count]
            seen = np.concatenate([np.ones((count, nodes - read), bool), above], axis=1)
            attend = Attend(jnp.asarray(lengths + read, jnp.int32),
                            jnp.asarray(np.broadcast_to((lengths + number)[:, None], (ROWS, count)), jnp.int32),
                            jnp.ones((ROWS, count), bool), jnp.asarray(np.broadcast_to(seen, (ROWS, *seen.shape))))
            out = self.apply(jnp.asarray(tokens[:, list(level)]), cache, attend)
            cache = self.commit(out.pending, None, attend.lengths, jnp.full(ROWS, count, jnp.int32))
            self.compare("a tree by its levels", np.asarray(out.logits, np.float32), want[:, list(level)],
                         np.ones((ROWS, count), bool), "Does attention see only the slots before `attend.lengths` that "
                         "the first columns of a wide `attend.ancestors` mark?")

    def _follow(self, name: str, out: Output, cache: Cache, tokens: np.ndarray, lengths: Any, path: Any) -> None:
        """The nodes of one path score as the same tokens in a chain, and so does what follows when it is committed."""
        chain = np.concatenate([tokens[:, path], self.draw(CHUNK + 3)], axis=1)
        want, _ = self.feed(chain[:, : CHUNK + 3], cache, lengths, np.zeros(ROWS))
        everywhere = np.ones((ROWS, len(path)), bool)
        self.compare(name, np.asarray(out.logits, np.float32)[:, path], want[:, : len(path)], everywhere,
                     "Does attention see exactly `attend.ancestors`, and stand at `attend.positions`?")
        padded = np.broadcast_to(np.pad(path, (0, 4 - len(path))), (ROWS, 4))
        kept = self.commit(out.pending, jnp.asarray(padded, jnp.int32), jnp.asarray(lengths, jnp.int32),
                           jnp.full(ROWS, len(path), jnp.int32))
        self.same_form(kept)
        later, _ = self.feed(chain[:, len(path) : len(path) + 3], kept, lengths + len(path), np.zeros(ROWS))
        self.compare("after a path of a tree", later, want[:, len(path) : len(path) + 3], np.ones((ROWS, 3), bool),
                     "commit(path) must move the entries of the path to the slots right behind `base`.")

    def block_of_equals(self) -> None:
        """Tokens that all see each other, the last two invalid: what stands there must not be seen."""
        lengths = np.array([3, 7, 5]) + self.length - LENGTH
        _, cache = self.begin(lengths)
        valid = np.broadcast_to(np.arange(CHUNK) < CHUNK - 2, (ROWS, CHUNK))
        tokens = self.draw(CHUNK)
        seen = []
        for tail in (self.draw(CHUNK), self.draw(CHUNK)):
            attend = _attend(jnp.asarray(lengths, jnp.int32), CHUNK, valid, jnp.ones((1, CHUNK, CHUNK), bool))
            seen.append(self.apply(jnp.asarray(np.where(valid, tokens, tail)), cache, attend))
        first, second = (np.asarray(out.logits, np.float32) for out in seen)
        self.compare("invalid tokens of a block", first, second, valid, "Is `attend.valid` part of the attention mask?")


def _attend(lengths: Array, count: int, valid: Any = None, ancestors: Array | None = None) -> Attend:
    valid = np.ones((lengths.shape[0], count), bool) if valid is None else valid
    return Attend(lengths, lengths[:, None] + jnp.arange(count), jnp.asarray(valid), ancestors)


def _ancestors() -> np.ndarray:
    """bool [N, N] of the tree: row `t` marks the nodes from the root to `t`."""
    table = np.eye(len(PARENTS), dtype=bool)
    for node, parent in enumerate(PARENTS):
        if parent >= 0:
            table[node] |= table[parent]
    return table
