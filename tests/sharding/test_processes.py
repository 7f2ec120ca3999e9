"""Two processes of four devices each are one mesh: what they write, one process reads, and the other way round."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow
HERE = pathlib.Path(__file__).parent


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def start(task, count, folder):
    """The processes of a job, begun."""
    port = free_port()
    root = str(HERE.parents[1]) if (HERE.parents[1] / "pyproject.toml").exists() else ""
    environment = os.environ | {"PYTHONPATH": root, "JAX_PLATFORMS": "cpu"}
    return [subprocess.Popen(
        [sys.executable, HERE / "worker.py", task, *map(str, (process, count, port)), folder], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for process in range(count)]


def run(task, count, folder):
    """What each process of a job says at its end."""
    said = []
    for process in start(task, count, folder):
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-3000:]
        said.append(json.loads(out.splitlines()[-1]))
    return said


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job") / "model"
    return folder, run("write", 2, folder)


def test_two_processes_write_and_one_reads(written):
    folder, (first, second) = written
    assert first == second and first["devices"] == 8 and sum(first["accepted"]) > 0
    (alone,) = run("read", 1, folder)
    assert alone["devices"] == 4
    assert {**alone, "devices": 8} == first


def test_two_processes_read_what_one_wrote(tmp_path, written):
    (alone,) = run("write", 1, tmp_path / "model")
    both = run("read", 2, tmp_path / "model")
    assert both == [{**alone, "devices": 8}] * 2 == written[1]


def test_a_folder_that_exists_is_refused_by_all(written):
    first, second = run("refused", 2, written[0])
    assert "exists; pass overwrite=True" in first["error"]
    assert "the first process refused" in second["error"]


def test_a_process_that_dies_stops_the_others(written):
    first, second = start("die", 2, written[0])
    assert second.wait(timeout=200) == 9
    began = time.monotonic()
    out, err = first.communicate(timeout=100)
    assert time.monotonic() - began < 60
    assert first.returncode != 0 and "begun" in out
    assert any(word in err.lower() for word in ("heartbeat", "connection closed", "unavailable")), err[-3000:]
