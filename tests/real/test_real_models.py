"""Real weights, by a command of their own: SPECJAX_REAL_MODELS=FOLDER pytest -s tests/real (about 25 minutes).

FOLDER holds the GGUF files named below, from wherever you get them; what they are converted to is kept beside them.
"""

import json
import os
import pathlib
import sys

import jax
import numpy as np
import pytest

import specjax
from specjax import checkpoints

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "checkpoints"))
from memory import bytes_read, peak  # noqa: E402

FOLDER = os.environ.get("SPECJAX_REAL_MODELS", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="SPECJAX_REAL_MODELS names no folder with GGUF files")

SMOL, SMALL, LARGE = (
    "SmolLM2-135M-Instruct.Q4_1", "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M", "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M")
PROMPTS = [json.loads(line) for line in (ROOT / "benchmarks" / "prompts.jsonl").read_text().splitlines()]
CATEGORIES = {prompt["category"]: prompt["turns"][0] for prompt in reversed(PROMPTS)}  # the first of each
MIB = 2**20


def converted(name):
    """The checkpoint made from `name.gguf`, now if there is none."""
    dest = pathlib.Path(FOLDER, "converted", name)
    if not dest.exists():
        checkpoints.from_gguf(pathlib.Path(FOLDER, f"{name}.gguf"), dest)
    return dest


@pytest.fixture(scope="module")
def pair():
    target, draft = (specjax.load(converted(name)) for name in (LARGE, SMALL))
    checkpoints.check_same_tokenizer(target, draft)
    return target, draft


def answer(model, message, max_new_tokens, **options):
    """Ids and text of a greedy answer."""
    out = specjax.generate(
        model.model, model.params, [model.chat_ids(message)], max_new_tokens=max_new_tokens, eos_ids=model.eos_ids,
        **options)
    ids = np.asarray(out.tokens[0, : out.lengths[0]]).tolist()
    return ids, model.tokenizer.decode(ids)


def test_memory_and_reading_of_the_largest(tmp_path):
    """Conversion: twice the largest tensor and 1.5 GiB. Loading: the weights, the largest and 0.5 GiB, read once."""
    dest = tmp_path / "ours"
    needed = peak(lambda: checkpoints.from_gguf(pathlib.Path(FOLDER, f"{LARGE}.gguf"), dest))
    loaded, before = [], bytes_read()
    loading = peak(lambda: loaded.append(specjax.load(dest)))
    read = bytes_read() - before
    sizes = [leaf.nbytes / MIB for leaf in jax.tree.leaves(loaded[0].params)]
    stored = sum(path.stat().st_size for path in dest.rglob("*") if path.is_file())
    print(f"\nconversion {needed:.0f} MiB, loading {loading:.0f}, weights {sum(sizes):.0f}, largest {max(sizes):.0f}; "
          f"{read / stored:.3f} bytes read for each stored")
    assert needed < 2 * max(sizes) + 1536
    assert loading < sum(sizes) + max(sizes) + 512
    assert 0.9 * stored < read < 1.1 * stored


@pytest.mark.parametrize("name", [SMOL, SMALL, LARGE])
def test_an_answer_makes_sense(name):
    _, text = answer(specjax.load(converted(name)), "What is the capital of France? Answer in one sentence.", 40)
    print(f"\n{text}")
    assert "Paris" in text and "<|" not in text


@pytest.mark.parametrize("category", CATEGORIES)
def test_greedy_text_of_the_pair_is_that_of_the_target(pair, category):
    target, draft = pair
    plain, text = answer(target, CATEGORIES[category], 200)
    drafter = specjax.draft.from_model(draft.model, num_speculative_tokens=4)
    fast, _ = answer(target, CATEGORIES[category], 200, drafter=drafter, draft_params=draft.params)
    print(f"\n{text}")
    assert fast == plain


def test_another_tokenizer_is_refused(pair):
    with pytest.raises(ValueError, match="different tokenizers: id 0 is"):
        checkpoints.check_same_tokenizer(pair[0], specjax.load(converted(SMOL)))
