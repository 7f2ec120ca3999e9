"""The trainer on a toy target: losses fall, a killed run goes on as if nothing had been, devices share the work."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from specjax.training import runs
from specjax.training.config import make_config
from specjax.training.learners import frequent_ids, make_learner
from specjax.training.optimizers import OptimizerSettings, optimizer, schedule
from specjax.training.trainer import make_mesh, train

KINDS = ["medusa", "eagle", "eagle3", "draft"]


def stage(name, total):
    return lambda note="", completed=None: None


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    toys.write(folder, [toys.toy_chunk(24, seed) for seed in (0, 1)], [toys.toy_chunk(12, 9)])
    return folder


def run(kind, target, answers, out, **changes):
    return train(make_config(kind, toys.tables(kind, **changes), "test"), target, answers, out, stage)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_and_held_out_answers_are_measured(kind, target, answers, tmp_path):
    steps = 40
    made = run(kind, target, answers, tmp_path, steps=steps, evaluate_every=20)
    entries = runs.read_log(tmp_path)
    assert [entry["step"] for entry in entries] == list(range(1, steps + 1))
    first, last = (np.mean([e["loss"] for e in part]) for part in (entries[:5], entries[-5:]))
    assert last < 0.9 * first
    measured = [entry["held_out"] for entry in entries if "held_out" in entry]
    assert len(measured) == 1 and len(measured[0]["accuracy"]) == 3
    assert made.figures["accepted_length"] > 1 and len(made.figures["accuracy"]) == 3
    for leaf in jax.tree.leaves(made.params):
        assert leaf.dtype == jnp.float32


def test_a_killed_run_goes_on_bit_for_bit(target, answers, tmp_path, monkeypatch):
    whole = run("eagle", target, answers, tmp_path / "whole", steps=8)  # draws noise
    original = runs.RunFolder.log

    def stop(self, entry):
        original(self, entry)
        if entry["step"] == 6:  # two steps after the last saved state: they are done again
            raise KeyboardInterrupt

    def save(self, state, counters):
        if counters["step"] == 4:
            self.save(state, counters)

    monkeypatch.setattr(runs.RunFolder, "log", stop)
    monkeypatch.setattr(runs.RunFolder, "maybe_save", save)
    with pytest.raises(KeyboardInterrupt):
        run("eagle", target, answers, tmp_path / "cut", steps=8)
    monkeypatch.setattr(runs.RunFolder, "log", original)
    with (tmp_path / "cut" / "log.jsonl").open("a") as log:
        log.write('{"step": 7, "lo')  # cut off in the middle of a line
    again = run("eagle", target, answers, tmp_path / "cut", steps=8)
    for one, other in zip(jax.tree.leaves(whole.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(one, other)
    losses = [[(e["step"], e["loss"]) for e in runs.read_log(tmp_path / name)] for name in ("whole", "cut")]
    assert losses[0] == losses[1] and len(losses[0]) == 8
    assert whole.figures == again.figures


def test_another_run_in_the_same_folder_is_refused(target, answers, tmp_path):
    run("medusa", target, answers, tmp_path, steps=1)
    with pytest.raises(ValueError, match=r"other settings: run.steps 1 \(now 2\)"):
        run("medusa", target, answers, tmp_path, steps=2)
    with pytest.raises(ValueError, match="target"):
        run("medusa", toys.toy_target(width=24), answers, tmp_path, steps=1)


def test_a_loss_that_leaves_is_told(target, answers, tmp_path):
    config = make_config("medusa", toys.tables("medusa", steps=9), "test")
    config = dataclasses.replace(config, optimizer=OptimizerSettings(rate=1e30))
    with pytest.raises(ValueError, match="the loss is nan at step .* a lower rate than 1e"):
        train(config, target, answers, tmp_path, stage)


MESH = """
import pathlib, sys
import jax
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_default_matmul_precision", "highest")
import toys
from test_trainer import run
out, answers = map(pathlib.Path, sys.argv[1:])
for devices in (1, 4):
    made = run("eagle3", toys.toy_target(), answers, out / str(devices), steps=2, devices=devices)
    assert len(jax.tree.leaves(made.params)[0].sharding.device_set) == devices
"""


def test_devices_share_the_work_and_change_nothing(answers, tmp_path):
    root = pathlib.Path(__file__).resolve().parents[2]
    subprocess.run(
        [sys.executable, "-c", MESH, tmp_path, answers], check=True, cwd=root, timeout=400,
        env=os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root}/tests/training", "JAX_PLATFORMS": "cpu"})
    alone, four = ([e["loss"] for e in runs.read_log(tmp_path / name)] for name in "14")
    np.testing.assert_allclose(four, alone, rtol=1e-5)


def test_devices_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="devices=99, but there are"):
        make_mesh(99, 8)
    with pytest.raises(ValueError, match="7 windows a step can not be spread equally over 8 devices"):
        make_mesh(8, 7)
    assert [make_mesh(0, batch).size for batch in (16, 7, 12, 1)] == [8, 7, 6, 1]


def test_half_precision_keeps_float32_weights(target, answers, tmp_path):
    full = run("eagle3", target, answers, tmp_path / "full", steps=2)
    half = run("eagle3", target, answers, tmp_path / "half", steps=2, compute="bfloat16")
    first, second = (runs.read_log(tmp_path / name)[0]["loss"] for name in ("full", "half"))
    assert first != second and abs(first - second) < 0.05 * first
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(half.params))
    same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), half.params, full.params)
    assert not any(jax.tree.leaves(same))


def test_what_is_borrowed_stays_and_what_is_begun_is_the_targets(target, chunk):
    for kind, borrowed in (("eagle", {"embedding"}), ("eagle3", {"embedding", "draft_ids", "places"}),
                           ("medusa", set())):
        learner = make_learner(make_config(kind, toys.tables(kind), "test"), target, [chunk])
        assert set(learner.frozen) == borrowed and not borrowed & set(learner.trained)
    matrix = target.params["embedding"].T
    ids = frequent_ids([chunk], 18, toys.VOCAB)
    eagle3 = make_learner(make_config("eagle3", toys.tables("eagle3"), "test"), target, [chunk])
    np.testing.assert_array_equal(eagle3.frozen["draft_ids"], ids)
    np.testing.assert_array_equal(eagle3.trained["output"], matrix[:, ids])
    gemma = toys.toy_target(unit_offset_norm=True)
    begun = make_learner(make_config("eagle3", toys.tables("eagle3"), "test"), gemma, [chunk]).trained["norm"]["scale"]
    np.testing.assert_array_equal(begun, 1 + gemma.params["norm"]["scale"])
    medusa = make_learner(make_config("medusa", toys.tables("medusa"), "test"), target, [chunk])
    np.testing.assert_array_equal(medusa.trained["heads"]["2"]["output"], matrix)


def test_the_draft_vocabulary_is_what_answers_are_made_of(chunk):
    counts = np.zeros(toys.VOCAB, int)
    for tokens, start, length in zip(chunk.tokens, chunk.start, chunk.length, strict=True):
        for token in tokens[start : start + length]:
            counts[token] += 1
    ids = frequent_ids([chunk], 9, toys.VOCAB)
    assert list(ids) == sorted(ids) and counts[ids].min() >= np.delete(counts, ids).max()


def test_fields_that_do_not_fit_are_named(target, chunk):
    def learner(kind, **head):
        table = toys.tables(kind)
        table["head"] = head
        return make_learner(make_config(kind, table, "test"), target, [chunk])

    with pytest.raises(ValueError, match="number_of_heads.*its fields are hidden_size"):
        learner("medusa", number_of_heads=3)
    with pytest.raises(ValueError, match="draft_vocab_size=99"):
        learner("eagle3", draft_vocab_size=99)
    with pytest.raises(ValueError, match="leave out num_layers"):
        learner("draft", start="tiny-python-draft", num_layers=2)
    with pytest.raises(ValueError, match="scores 12 tokens, its target 24"):
        learner("draft", **toys.toy_config(width=8).to_dict() | {"vocab_size": 12})


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_schedule_scales_every_optimiser(name):
    params = {"layers": {"0": {"key": jnp.ones((4, 2, 3)), "out": jnp.ones((2, 3, 4))}}, "output": jnp.ones((4, 5))}
    grads = jax.tree.map(lambda x: 0.01 * jnp.arange(x.size, dtype=jnp.float32).reshape(x.shape), params)
    settings = OptimizerSettings(name, rate=0.1, warmup=0.5, decay=0.5)
    made, plain = optimizer(settings, 9), optimizer(settings, None)
    one, _ = made.update(grads, made.init(params), params)
    other, _ = plain.update(grads, plain.init(params), params)
    for scaled, whole in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(scaled, 0.2 * whole, rtol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_matrices_of_a_vocabulary_have_their_own_share_of_the_rate(name):
    params = {"layers": {"0": {"out": jnp.ones((2, 3, 4))}}, "output": jnp.ones((4, 5))}
    made = {share: optimizer(OptimizerSettings(name, rate=0.1, vocabulary=share), 9) for share in (1.0, 0.25)}
    moved = {share: one.update(params, one.init(params), params)[0] for share, one in made.items()}
    np.testing.assert_allclose(moved[0.25]["output"], 0.25 * moved[1.0]["output"], rtol=1e-6)
    np.testing.assert_array_equal(moved[0.25]["layers"]["0"]["out"], moved[1.0]["layers"]["0"]["out"])
    assert float(jnp.abs(moved[1.0]["output"]).min()) > 0


def test_schedule_rises_holds_and_ends_at_zero():
    values = schedule(jnp.array([0.0, 0.01, 0.02, 0.4, 0.7, 1.0]))
    np.testing.assert_allclose(values, [0.0, 0.5, 1.0, 1.0, 0.5, 0.0], atol=1e-6)
    assert float(schedule(jnp.float32(0.0), warmup=0.0, decay=0.0)) == 1.0


def test_curves_are_drawn(target, answers, tmp_path):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    from specjax.training.curves import plot

    entries = [{"step": i, "loss": 1 / i, "accuracy": [0.1, 0.2]} for i in range(1, 30)]
    entries[9]["held_out"] = {"accuracy": [0.3, 0.4, 0.5]}
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert "curves.png" in plot(tmp_path)
    assert (tmp_path / "curves.png").stat().st_size > 5000
