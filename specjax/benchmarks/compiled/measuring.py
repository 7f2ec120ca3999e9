"""One pair on one slice: what its programs need, and what its rounds cost at best."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax

from specjax._src.sharding import cache_shapes
from specjax.benchmarks.compiled import cases, programs, reading
from specjax.benchmarks.compiled.cases import Pair
from specjax.benchmarks.compiled.chips import Chip
from specjax.benchmarks.compiled.traffic import hbm_bytes
from specjax.models import DecoderConfig

MARGIN = 256  # slots behind the text, for the widest pass
KEPT = 3.0  # tokens a round, for the predicted speed; what a pair really keeps is for measurement
Tell = Callable[[str], None]


def passes(pair: Pair, chip: Chip, batch: int, context: int, tell: Tell) -> dict[str, Any]:
    """The parts of a round as programs of their own: one step of the target, a verify pass, a step of the draft."""
    shape = pair.drafter.shape
    parts = {
        "plain": (pair.target, programs.one_pass(pair.target, pair.mesh, batch, 1, context)),
        "verify": (pair.target, programs.one_pass(
            pair.target, pair.mesh, batch, shape.num_nodes, context, tree=not shape.is_chain))}
    if pair.draft is None:
        del parts["verify"]
    elif shape.is_chain:
        parts["draft"] = pair.draft, programs.one_pass(pair.draft, pair.mesh, batch, 1, context)
    else:
        parts["draft"] = pair.draft, programs.head_pass(pair.draft, pair.mesh, batch, cases.WIDTH, context)
    found = {}
    for name, (network, traced) in parts.items():
        tell(f"{pair.name}, batch {batch}: {name}")
        text, figures, seconds = _compiled(traced)
        needed = reading.device_bytes(network.params) + reading.device_bytes(
            cache_shapes(network.functions, batch, context))
        moved, spoken = hbm_bytes(text), reading.spoken_bytes(text)
        found[name] = {
            "bytes_needed": needed, "bytes_moved": moved, "ratio": moved / needed,
            "bytes_accessed_by_the_compiler": figures.accessed, "flops": figures.flops,
            "collectives": reading.collectives(text), "bytes_spoken": spoken, "compile_seconds": seconds,
            "seconds": max(moved / chip.bandwidth, figures.flops / chip.flops) + spoken / chip.links}
    return found | _round(found, shape.depth, batch)


def whole(pair: Pair, batch: int, context: int, tell: Tell) -> dict[str, Any]:
    """Prefill and the loop: do they fit, are the caches written in place, what is gathered or copied."""
    tell(f"{pair.name}, batch {batch}: prefill")
    traced = programs.prefill(pair, batch, context - MARGIN)
    compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    state = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        traced.out_info, compiled.output_shardings)
    tell(f"{pair.name}, batch {batch}: loop")
    text, figures, seconds = _compiled(programs.loop(pair, state))
    caches = [leaf for leaf in jax.tree.leaves((state.cache, state.draft)) if leaf.ndim >= 4]
    smallest = min(reading.device_bytes(leaf) for leaf in caches)
    gathered = reading.instructions(text, ("all-gather", "all-to-all"))
    return {
        "prefill": reading.figures(compiled)._asdict() | {"peak": reading.figures(compiled).peak},
        "loop": figures._asdict() | {"peak": figures.peak, "compile_seconds": seconds},
        "cache_bytes": reading.device_bytes(caches),
        "cache_copies_in_the_loop": len([
            one for one in reading.copies(text, smallest) if _is_cache(one.line, caches) and not one.once]),
        "collectives": reading.collectives(text),
        "largest_gathered": max((one.num_bytes for one in gathered), default=0)}


def _is_cache(line: str, caches: list[Any]) -> bool:
    shapes = {",".join(map(str, leaf.sharding.shard_shape(leaf.shape))) for leaf in caches}
    return any(f"[{shape}]" in line.split(" copy")[0] for shape in shapes)


def _round(found: dict[str, Any], depth: int, batch: int) -> dict[str, Any]:
    """Seconds of a plain step and of a round, and what follows."""
    plain = found["plain"]["seconds"]
    if "verify" not in found:
        return {"plain_tokens_per_second": batch / plain}
    a_round = found["verify"]["seconds"] + (depth + 1) * found["draft"]["seconds"]
    return {
        "plain_tokens_per_second": batch / plain, "seconds_per_round": a_round, "break_even": a_round / plain,
        "tokens_kept": KEPT, "tokens_per_second": batch * KEPT / a_round, "speed_up": KEPT * plain / a_round}


def _compiled(traced: Any) -> tuple[str, reading.Figures, float]:
    began = time.monotonic()
    compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    return compiled.as_text(), reading.figures(compiled), time.monotonic() - began


def cut(config: DecoderConfig, layers: int | None) -> DecoderConfig:
    """The same decoder with fewer layers; of each layer everything stays."""
    return config if layers is None else dataclasses.replace(config, num_layers=layers)
