"""An engine on a mesh: rows over one axis, weights over the other, and each text that of one device alone."""

import jax
import numpy as np
import pytest
from test_text import K, networks

import specjax
from specjax import Sampling, draft, verify
from specjax.serving import Engine

PROMPTS = [[3], [1, 5], [2, 2, 0, 4], [5, 4, 3, 2, 1, 0, 5, 4, 3], [10], [7, 7, 8]]


@pytest.mark.slow
def test_requests_on_a_mesh(caplog):
    made, alone = networks((2, 4)), networks()
    model, params = made["target"]
    engine = Engine(
        model, params, draft.from_model(made["draft"][0], K), made["draft"][1], verify.block(), slots=4, capacity=64,
        max_new_tokens=12, prefill_chunk=8, rounds_per_step=2)
    engine.warm_up()
    settings = [Sampling(temperature=index % 2 * 1.0, seed=index) for index in range(len(PROMPTS))]
    with jax.log_compiles():
        ids = [engine.submit(prompt, sampling=one) for prompt, one in zip(PROMPTS, settings, strict=True)]
        texts = {id: [] for id in ids}
        for event in engine.run():
            texts[event.id] += np.asarray(event.tokens).tolist()
    assert not [line for line in caplog.messages if "Compiling" in line]
    for id, prompt, one in zip(ids, PROMPTS, settings, strict=True):
        out = specjax.generate(
            *alone["target"], [prompt], drafter=draft.from_model(alone["draft"][0], K), draft_params=alone["draft"][1],
            verifier=verify.block(), sampling=one, max_new_tokens=12, capacity=64)
        assert texts[id] == np.asarray(out.tokens)[0, : int(out.lengths[0])].tolist()
