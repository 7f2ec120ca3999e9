"""Compiled programs are kept in the user's cache folder, unless the user chose another or it can not be written."""

import os
import pathlib
import subprocess
import sys

import jax
import pytest

from specjax.cli.programs import keep_programs


@pytest.fixture
def config():
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], None)
    yield jax.config
    for name, value in before.items():
        jax.config.update(name, value)


def test_in_the_users_cache_folder(config, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep_programs()
    assert config.jax_compilation_cache_dir == str(tmp_path / "specjax" / "programs")


def test_a_chosen_folder_stays(config, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", "mine")
    keep_programs()
    assert config.jax_compilation_cache_dir == "mine" and not list(tmp_path.iterdir())


def test_where_nothing_can_be_written_nothing_is_kept(config, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep_programs()
    assert config.jax_compilation_cache_dir is None


def test_a_folder_that_may_only_be_read_is_left_alone(config, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write anywhere
    keep_programs()
    assert config.jax_compilation_cache_dir is None


def test_without_a_home_nothing_is_kept(config, monkeypatch):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setattr(pathlib.Path, "home", nobody)
    keep_programs()
    assert config.jax_compilation_cache_dir is None


def test_a_second_process_finds_the_programs_of_the_first(tmp_path):
    program = ("import jax; from specjax.cli.programs import keep_programs; keep_programs();"
               "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0); hits = [];"
               "jax.monitoring.register_event_listener(lambda name, **_: hits.append(name));"
               "jax.jit(lambda x: x @ x + 1)(jax.numpy.ones((8, 8)));"
               "print(hits.count('/jax/compilation_cache/cache_hits'))")
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    counts = [int(subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True,
                                 text=True).stdout) for _ in range(2)]
    assert counts[0] == 0 and counts[1] > 0
