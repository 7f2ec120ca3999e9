"""One process of a job: `python worker.py TASK PROCESS COUNT PORT FOLDER`; a line of JSON says what it found."""

import json
import os
import sys
import time

import jax

task, process, count, port, folder = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_default_matmul_precision", "highest")
if count > 1:
    jax.distributed.initialize(f"localhost:{port}", count, process, heartbeat_timeout_seconds=10)

import numpy as np  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402
from jax.sharding import AxisType  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402

import specjax  # noqa: E402
from specjax import checkpoints, models  # noqa: E402
from specjax.sharding import shard  # noqa: E402

CONFIG = models.DecoderConfig(
    vocab_size=11, hidden_size=16, num_layers=2, num_heads=8, num_kv_heads=2, head_dim=4, intermediate_size=24,
    max_position=64, tie_embeddings=False)  # fmt: skip
PROMPTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
SHAPES = {8: (2, 4), 4: (1, 4)}
mesh = jax.make_mesh(SHAPES[len(jax.devices())], ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def write():
    from flax import nnx

    model, params = models.from_nnx(models.Decoder(CONFIG, rngs=nnx.Rngs(0)))
    model, params = shard(model, jax.tree.map(np.asarray, params), mesh)
    checkpoints.save(folder, params, CONFIG, Tokenizer(WordLevel({str(i): i for i in range(11)}, unk_token="0")))
    return model, params


def text(model, params):
    sampling = specjax.Sampling(temperature=np.array([0, 1.0, 0, 1.0]), seed=np.arange(4))
    out = specjax.generate(
        model, params, PROMPTS, max_new_tokens=8, sampling=sampling,
        drafter=specjax.draft.from_model(model, 3), draft_params=params)
    tokens, accepted = multihost_utils.process_allgather((out.tokens, out.stats.accepted), tiled=True)
    return {"tokens": np.asarray(tokens).tolist(), "accepted": np.asarray(accepted).tolist()}


if task == "write":
    said = text(*write())
elif task == "read":
    found = checkpoints.load(folder, mesh=mesh)
    said = text(found.model, found.params)
elif task == "refused":
    try:
        write()
    except ValueError as error:
        said = {"error": str(error)}
else:  # "die": the last process goes without a word, the others would wait for it
    found = checkpoints.load(folder, mesh=mesh)
    text(found.model, found.params)
    print("begun", flush=True)
    if process == count - 1:
        os._exit(9)
    while True:
        text(found.model, found.params)
        time.sleep(0.1)
print(json.dumps(said | {"devices": len(jax.devices())}))
