"""Loss and accuracy of a run as a picture."""

from __future__ import annotations

import pathlib

import numpy as np

from specjax.training.runs import read_log

SMOOTHED = 50  # a point is the mean of so many steps of the run's, at most


def plot(out: pathlib.Path) -> str:
    """Draw `curves.png` from the run's log.

    Args:
      out: the run's folder.

    Returns:
      a line that says where the picture is, or that matplotlib is missing and how to get it.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return f"no curves were drawn: matplotlib is missing (pip install 'specjax[plot]'); the numbers are in {out}"
    entries = read_log(out)
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    steps = np.array([entry["step"] for entry in entries])
    left.plot(*_smooth(steps, np.array([entry["loss"] for entry in entries])))
    left.set(xlabel="step", ylabel="loss")
    accuracy = np.array([entry["accuracy"] for entry in entries])
    for ahead in range(accuracy.shape[1]):
        right.plot(*_smooth(steps, accuracy[:, ahead]), color=f"C{ahead}", label=f"token {ahead + 1}")
    measured = [(entry["step"], entry["held_out"]["accuracy"]) for entry in entries if "held_out" in entry]
    for step, values in measured:
        right.scatter([step] * len(values), values, c=[f"C{ahead}" for ahead in range(len(values))], marker="x")
    right.set(xlabel="step", ylabel="agreement with the target (x: held out)")
    right.legend()
    figure.savefig(out / "curves.png", dpi=120)
    return f"curves: {out / 'curves.png'}"


def _smooth(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    width = min(SMOOTHED, max(1, len(values) // 10))
    kernel = np.ones(width) / width
    return np.convolve(steps, kernel, "valid"), np.convolve(values, kernel, "valid")
