"""Is a sample from this law? Chi-square with the Bonferroni correction, and a way to show that it would notice.

Needs scipy, which is imported when a test is made (it comes with `specjax[test]`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

LEVEL = 1e-4


def chi_square(counts: Any, law: Any) -> float:
    """The p-value of `counts` against `law`, two arrays of the same shape.

    Cells expected fewer than 5 times are merged into one; a count where the law is 0 gives p = 0.
    """
    from scipy import stats

    counts, law = np.asarray(counts, np.float64).ravel(), np.asarray(law, np.float64).ravel()
    if counts.shape != law.shape:
        raise ValueError(f"counts have {counts.size} cells and the law {law.size}")
    if np.any(counts[law <= 0.0] > 0):
        return 0.0
    expected = counts.sum() * law / law.sum()
    rare = expected < 5.0
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    counts, expected = counts[expected > 0], expected[expected > 0]
    if len(counts) < 2:
        raise ValueError("fewer than two cells are expected: draw more, or look at a wider law")
    statistic = np.sum((counts - expected) ** 2 / expected)
    return float(stats.chi2.sf(statistic, len(counts) - 1))


def histogram(texts: Any, vocab_size: int) -> np.ndarray:
    """How often each text occurs among `texts` int [rows, H]: int64 (V,) * H."""
    texts = np.asarray(texts)
    flat = np.ravel_multi_index(tuple(texts.T), (vocab_size,) * texts.shape[1])
    return np.bincount(flat, minlength=vocab_size ** texts.shape[1]).reshape((vocab_size,) * texts.shape[1])


def assert_from_law(texts: Any, law: Any, tests: int = 1, level: float = LEVEL) -> float:
    """Fail if `texts` int [rows, H] are not from `law` (V,) * H at `level`, corrected for `tests` such questions."""
    law = np.asarray(law)
    p_value = chi_square(histogram(texts, law.shape[0]), law)
    assert p_value * tests > level, (
        f"{len(texts)} texts do not come from this law: p = {p_value:.3g} in each of {tests} tests (level {level:g})")
    return p_value


def bonferroni(p_values: Iterable[float]) -> float:
    """The smallest p-value times their number, at most 1: one p-value for all of them."""
    p_values = list(p_values)
    return min(1.0, min(p_values) * len(p_values))


def plant(law: Any, distance: float) -> np.ndarray:
    """A law at total variation `distance` from `law`: mass is moved from the likelier half of the cells to the rest."""
    law = np.asarray(law, np.float64)
    flat = law.ravel()
    order = np.argsort(flat)[::-1]
    held = np.cumsum(flat[order])
    rich = order[: int(np.searchsorted(held, 0.5)) + 1]
    poor = np.setdiff1d(np.nonzero(flat)[0], rich)
    moved = flat.copy()
    moved[rich] *= 1.0 - distance / flat[rich].sum()
    moved[poor] *= 1.0 + distance / flat[poor].sum()
    return moved.reshape(law.shape)
