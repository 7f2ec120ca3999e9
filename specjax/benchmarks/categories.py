"""From the seconds of texts to what speculation gains, for each category of prompts and for all of them.

A speed-up is the time a token takes plainly over the time it takes with speculation. Both are sums over whole texts,
the reading of the prompt included: seconds of all texts of the category over their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.benchmarks.texts import Writes

ALL = "all"


def table(
    kinds: Sequence[str], ours: Sequence[Writes], theirs: Sequence[Writes], done: Sequence[int],
    medians: Mapping[str, float],
) -> list[dict[str, Any]]:
    """A row for each category, in the order of the prompts, and one for all of them.

    Args:
      kinds: the category of each prompt, or nothing.
      ours: who wrote here, plain first.
      theirs: who wrote in another library, plain first, with the same k; or nobody.
      done: the prompts that everybody has written.
      medians: seconds of each text.
    """
    groups: dict[str, list[int]] = {}
    for index in done if any(kinds) else ():
        groups.setdefault(kinds[index], []).append(index)
    return [_row(name, indices, ours, theirs, medians) for name, indices in (*groups.items(), (ALL, list(done)))]


def _row(
    name: str, indices: list[int], ours: Sequence[Writes], theirs: Sequence[Writes], medians: Mapping[str, float]
) -> dict[str, Any]:
    plain, *deep = (totals(writer, indices, medians) for writer in ours)
    for writer, side in zip(ours, (plain, *deep), strict=True):
        side["speedup"] = side["tokens_per_second"] / plain["tokens_per_second"]
        side["equal_to_plain"] = share_equal(writer, ours[0], indices)
    row = {"category": name, "prompts": len(indices), "plain": plain, "speculative": deep,
           "best_k": max(deep, key=lambda side: side["speedup"])["k"]}
    if theirs:
        their_plain, *assisted = (totals(writer, indices, medians) for writer in theirs)
        for mine, side in zip((plain, *deep), (their_plain, *assisted), strict=True):
            side["ours_over_theirs"] = mine["tokens_per_second"] / side["tokens_per_second"]
            side["speedup"] = side["tokens_per_second"] / their_plain["tokens_per_second"]
        for writer, side in zip(theirs, (their_plain, *assisted), strict=True):
            side["equal_to_ours"] = share_equal(writer, ours[0], indices)
        row["peer"] = {"plain": their_plain, "assisted": assisted}
    return row


def totals(writer: Writes, indices: Sequence[int], medians: Mapping[str, float]) -> dict[str, Any]:
    """Tokens and seconds of the texts `indices` together, and what follows from them."""
    seconds = sum(medians[f"{writer.name}/{index}"] for index in indices)
    tokens = sum(len(writer.written[index].ids) for index in indices)
    rounds = sum(writer.written[index].rounds for index in indices)
    return {"k": writer.k, "tokens": tokens, "seconds": seconds, "tokens_per_second": tokens / seconds,
            "mean_accepted_length": tokens / rounds}


def share_equal(writer: Writes, other: Writes, indices: Sequence[int]) -> float:
    """Share of the texts that are those of `other`."""
    return sum(writer.written[index].ids == other.written[index].ids for index in indices) / len(indices)
