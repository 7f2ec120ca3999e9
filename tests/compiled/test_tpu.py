"""The real TPU compiler, without a TPU: Llama 3.1 8B on eight chips of v5e. `python -m specjax.benchmarks.compiled`
does the other slices and sizes; the text of compiled programs is what is looked at here."""

import importlib.util
import re

import jax
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install libtpu")]

CONTEXT = 8192


def pair(name, layers=None, attention="auto"):
    from specjax.benchmarks.compiled import cases, chips, measuring

    mesh = chips.tpu_mesh("v5e:2x4", (1, 8))
    config = measuring.cut(cases.LLAMA_8B, layers)
    return cases.PAIRS[name](config, mesh, attention), chips.CHIPS["v5e"]


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("name", ["1b draft", "eagle3 tree"])
def test_parts_of_a_round(name, batch):
    from specjax.benchmarks.compiled import measuring

    made, chip = pair(name, layers=2, attention="einsum")
    found = measuring.passes(made, chip, batch, CONTEXT, print)
    for part in ("plain", "verify"):
        assert found[part]["collectives"] == {"all-reduce": 2 * 2 + 1}, "two a layer, one for the embedding"
        if (name, part, batch) != ("eagle3 tree", "verify", 64):  # scores of 128 queries outweigh the keys they meet
            assert found[part]["ratio"] <= 1.25
    assert found["draft"]["ratio"] <= 1.25
    layers = 16 if name == "1b draft" else 1
    assert found["draft"]["collectives"]["all-reduce"] == 2 * layers + 1


def test_the_whole_loop_fits_and_copies_nothing():
    from specjax.benchmarks.compiled import measuring

    made, chip = pair("1b draft")
    found = measuring.whole(made, 1, CONTEXT, print)
    assert max(found["prefill"]["peak"], found["loop"]["peak"]) < chip.memory
    assert found["loop"]["aliased"] >= found["cache_bytes"] > 100e6
    assert found["cache_copies_in_the_loop"] == 0
    assert found["largest_gathered"] < 1e6


def test_what_is_too_large_is_refused_by_the_compiler():
    from specjax.benchmarks.compiled import programs

    made, _ = pair("plain")
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED|out of memory"):
        programs.one_pass(made.target, made.mesh, 512, 1, CONTEXT).lower(lowering_platforms=("tpu",)).compile()


def test_reading_counts_what_is_there():
    from specjax.benchmarks.compiled import reading
    from specjax.benchmarks.compiled.traffic import hbm_bytes

    text = """HloModule m
%inner (p0: bf16[64,128], p1: s32[]) -> bf16[8,128] {
  %p0 = bf16[64,128]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %part = bf16[8,128]{1,0} dynamic-slice(%p0, %p1, %zero), dynamic_slice_sizes={8,128}
}
ENTRY %main (a: bf16[64,128], i: s32[]) -> bf16[8,128] {
  %a = bf16[64,128]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %ahead = (bf16[64,128]{1,0:S(1)}, bf16[64,128]{1,0}, u32[]{:S(2)}) copy-start(%a)
  %there = bf16[64,128]{1,0:S(1)} copy-done(%ahead)
  %sum = bf16[64,128]{1,0:S(1)} all-reduce(%there), to_apply=%add
  ROOT %f = bf16[8,128]{1,0} fusion(%a, %i), kind=kLoop, calls=%inner
}
"""
    whole, part = 64 * 128 * 2, 8 * 128 * 2
    assert hbm_bytes(text) == whole + part + 4 + part  # read ahead; the slice, its index, the result
    assert reading.collectives(text) == {"all-reduce": 1}
    assert reading.copies(text, 1) == []
    assert [one.num_bytes for one in reading.copies(re.sub(r":S\(1\)", "", text), 1)] == [whole]
