"""One trainer for every kind of drafter: windows of a target's answers, spread over the devices of a mesh."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from specjax._src.types import Array
from specjax.benchmarks.progress import Stage
from specjax.checkpoints import LoadedModel
from specjax.training.agreement import figures, tally
from specjax.training.answers import HELD_OUT, TRAINING, fingerprint, read_answers
from specjax.training.config import TrainConfig
from specjax.training.learners import Learner, Tree, make_learner
from specjax.training.lesson import Batch, Windows, teach
from specjax.training.optimizers import optimizer
from specjax.training.runs import RunFolder
from specjax.training.taught import Taught, TaughtWindows, write_taught

Step = Callable[..., tuple[Tree, Any, dict[str, Array]]]


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run gives.

    Attributes:
      learner: with the parameters it began from.
      params: float32, those that were trained, at the end.
      figures: of the last measurement on held-out answers.
    """

    learner: Learner
    params: Tree
    figures: dict[str, Any]


def train(config: TrainConfig, target: LoadedModel, answers: pathlib.Path, out: pathlib.Path, stage: Stage) -> Trained:
    """Run a training, or go on with one that was killed; the loss curve is the same either way.

    Args:
      config: see `TrainConfig`.
      target: the loaded model of `config.target`.
      answers: folder of its answers, already written.
      out: the run's folder, made if it is missing.
      stage: shows how far it has come.

    Raises:
      ValueError: if settings do not fit one another, the target, or what is in the folders; if the loss becomes
        infinite.
    """
    written = read_answers(answers, TRAINING, config.answers.chunks)
    learner = make_learner(config, target, written)
    windows = Windows(written, config.run.length, config.run.seed)
    source: Windows | TaughtWindows = windows
    if config.run.features == "cached":
        folder = write_taught(answers, written, target, learner.needs, stage)
        source = TaughtWindows(windows, folder, target, learner.needs)
    held_out = Windows(read_answers(answers, HELD_OUT, config.answers.held_out_chunks), config.run.length, 0)
    mesh = make_mesh(config.run.devices, config.run.batch)
    run = RunFolder(out, config.run.save_seconds, print_seconds=0.0)
    run.claim(_identity(config) | {"target": fingerprint(target.params), "windows": len(windows)})
    transform = optimizer(config.optimizer, config.run.steps)
    step = train_step(target, learner, transform, config.run.seed, mesh)
    measure = functools.partial(_measure, evaluation_step(target, learner, mesh), held_out, config.run.batch, mesh)
    params, state = learner.trained, transform.init(learner.trained)
    (params, state), counters = run.resume(spread((params, state), mesh), {"step": 0, "seconds": 0.0})
    fixed = jax.device_put((learner.frozen, target.params), NamedSharding(mesh, PartitionSpec()))
    tell = stage(config.kind, config.run.steps)
    tell(completed=counters["step"])
    while counters["step"] < config.run.steps:
        began = time.monotonic()
        batch = place(source.take(counters["step"] * config.run.batch, config.run.batch), mesh)
        params, state, made = step(params, state, *fixed, batch, jnp.int32(counters["step"]))
        values = {name: np.asarray(value, np.float64).tolist() for name, value in made.items()}
        counters["step"] += 1
        if not np.isfinite(values["loss"]):
            raise ValueError(f"the loss is {values['loss']} at step {counters['step']}: start again in another folder "
                             f"with a lower rate than {config.optimizer.rate}")
        # The first step of a process compiles; that is no training time.
        counters["seconds"] += time.monotonic() - began if run.steps_here else 0.0
        every = config.run.evaluate_every
        if every and counters["step"] % every == 0 and counters["step"] < config.run.steps:
            values["held_out"] = measure(params, fixed)
        run.log({**counters, **values})
        run.maybe_save((params, state), counters)
        tell(note=f"loss {values['loss']:.3f}")
    run.save((params, state), counters)
    return Trained(learner, params, measure(params, fixed))


def _identity(config: TrainConfig) -> dict[str, Any]:
    """What makes a run the run it is: all settings but how often it is looked at and saved."""
    said = config.to_dict()
    for name in ("evaluate_every", "save_seconds"):
        del said["run"][name]
    return said


def make_mesh(devices: int, batch: int) -> Mesh:
    """One axis `data` over so many devices, 0 for as many as share `batch` windows equally.

    Raises:
      ValueError: if there are fewer, or they do not share `batch` windows equally.
    """
    count = devices or max(count for count in range(1, len(jax.devices()) + 1) if batch % count == 0)
    if count > len(jax.devices()):
        raise ValueError(f"devices={devices}, but there are {len(jax.devices())}")
    if batch % count:
        raise ValueError(f"{batch} windows a step can not be spread equally over {count} devices: choose a multiple of "
                         f"{count} for `batch`, or fewer `devices`")
    return jax.make_mesh((count,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])


def spread(tree: Any, mesh: Mesh) -> Any:
    """A copy of every array on every device; fresh ones, since a step gives away what it changes."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()), may_alias=False)


def place(batch: Batch | Taught, mesh: Mesh) -> Any:
    """The windows of a batch spread over the devices."""
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))


def train_step(
    target: LoadedModel, learner: Learner, transform: optax.GradientTransformation, seed: int, mesh: Mesh
) -> Step:
    """A compiled `(trained, state, frozen, target's params, Batch or Taught, number) -> (trained, state, values)`.

    The first two are donated. `number` int32 [] is that of the step, from which noise is drawn.
    """

    def step(params: Tree, state: Any, frozen: Tree, teacher: Any, batch: Batch | Taught, number: Array) -> Any:
        lesson = batch.lesson() if isinstance(batch, Taught) else teach(target.model, teacher, batch, learner.needs)
        key = jax.random.fold_in(jax.random.key(seed), number)

        def loss(params: Tree) -> tuple[Array, dict[str, Array]]:
            scores = learner.score({**frozen, **params}, lesson, key)
            return scores.loss, {"loss": scores.loss, "accuracy": scores.accuracy, **scores.parts}

        (_, values), grads = jax.value_and_grad(loss, has_aux=True)(params)
        values["gradient"] = optax.tree.norm(grads)
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state, values

    whole = NamedSharding(mesh, PartitionSpec())
    return jax.jit(step, donate_argnums=(0, 1), out_shardings=whole)


def evaluation_step(target: LoadedModel, learner: Learner, mesh: Mesh) -> Callable[..., dict[str, Array]]:
    """A compiled `(trained, frozen, target's params, Batch) -> tally`."""

    def step(params: Tree, frozen: Tree, teacher: Any, batch: Batch) -> dict[str, Array]:
        lesson = teach(target.model, teacher, batch, learner.needs)
        return tally(learner.guess({**frozen, **params}, lesson), lesson)

    return jax.jit(step, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _measure(
    step: Callable[..., dict[str, Array]], windows: Windows, batch: int, mesh: Mesh, params: Tree,
    fixed: tuple[Tree, Any],
) -> dict[str, Any]:
    """The figures of all held-out windows."""
    starts = range(0, len(windows), batch)
    totals = [step(params, *fixed, place(windows.in_order(first, batch), mesh)) for first in starts]
    return figures(jax.tree.map(lambda *parts: sum(parts), *totals))
