"""A folder appears whole or not at all, and no run takes away what is not its own."""

import pathlib
import shutil
import subprocess
import sys

import hugging
import pytest

from specjax import checkpoints
from specjax.checkpoints import staging
from specjax.cli.converting import run


def make(path, word="new", overwrite=False):
    with staging.staged(path, overwrite=overwrite) as scratch:
        (scratch / "specjax.json").write_text(word)


def text(path):
    return (path / "specjax.json").read_text()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_run_killed_between_the_renames_loses_nothing(tmp_path, monkeypatch):
    make(tmp_path / "m", "old")
    (tmp_path / "m").rename(tmp_path / ".m.replaced")  # as the killed run left it
    with pytest.raises(RuntimeError), staging.staged(tmp_path / "m", overwrite=True):
        assert text(tmp_path / "m") == "old"
        raise RuntimeError
    assert names(tmp_path) == ["m"] and text(tmp_path / "m") == "old"
    (tmp_path / "m").rename(tmp_path / ".m.replaced")
    with pytest.raises(ValueError, match="exists; pass overwrite=True"):
        make(tmp_path / "m")
    make(tmp_path / "m", overwrite=True)
    assert names(tmp_path) == ["m"] and text(tmp_path / "m") == "new"


def test_half_of_what_was_replaced_does_not_come_back(tmp_path, monkeypatch):
    make(tmp_path / "m", "old")
    rmtree = shutil.rmtree

    def killed(folder, **_):
        if str(folder).endswith(".replaced"):
            raise KeyboardInterrupt
        rmtree(folder, **_)

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "m", overwrite=True)
    monkeypatch.undo()
    assert text(tmp_path / "m") == "new"
    rmtree(tmp_path / "m")
    with pytest.raises(RuntimeError), staging.staged(tmp_path / "m", overwrite=False):
        raise RuntimeError
    assert names(tmp_path) == []


def test_a_rename_that_fails_brings_the_old_one_back(tmp_path, monkeypatch):
    make(tmp_path / "m", "old")
    rename = pathlib.Path.rename

    def failing(self, target):
        if self.name.endswith(".incomplete"):
            raise PermissionError(13, "no", str(self))
        return rename(self, target)

    monkeypatch.setattr(pathlib.Path, "rename", failing)
    with pytest.raises(PermissionError):
        make(tmp_path / "m", overwrite=True)
    assert names(tmp_path) == ["m"] and text(tmp_path / "m") == "old"


HOLDING = """
import sys
from specjax.checkpoints import staging
with staging.staged(sys.argv[1], overwrite=True) as scratch:
    (scratch / "specjax.json").write_text("theirs")
    print("here", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.skipif(staging.fcntl is None, reason="no locks here")
def test_two_runs_do_not_share_a_folder(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, tmp_path / "m"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "here\n"
        with pytest.raises(ValueError, match=r"another run is making .*m; wait for it, or choose another folder"):
            make(tmp_path / "m")
        other.communicate("\n")
    assert names(tmp_path) == ["m"] and text(tmp_path / "m") == "theirs"


def test_only_models_are_replaced(tmp_path):
    home = tmp_path / "home"
    (home / "thesis").mkdir(parents=True)
    with pytest.raises(ValueError, match="home is not replaced: it is neither a checkpoint nor a Hugging Face folder"):
        make(home, overwrite=True)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ValueError, match="file is not replaced"):
        make(tmp_path / "file", overwrite=True)
    assert names(tmp_path) == ["file", "home"] and names(home) == ["thesis"]
    (home / "thesis").rmdir()
    make(home, overwrite=True)
    assert text(home) == "new"


def test_a_link_stays_a_link(tmp_path):
    make(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to("real")
    make(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink() and text(tmp_path / "real") == "new"
    assert names(tmp_path) == ["link", "real"]


def test_source_and_destination_stand_apart(tmp_path):
    source = hugging.write(tmp_path / "hf", hugging.tensors())
    for dest in (source, source / "ours", tmp_path, tmp_path / "x" / ".." / "hf"):
        with pytest.raises(ValueError, match="are one folder or within one another; choose a folder apart"):
            run(str(source), dest, to_hf=False, dtype=None, tokenizer=None, overwrite=True)
    checkpoints.from_huggingface(source, tmp_path / "ours")
    with pytest.raises(ValueError, match="are one folder or within one another"):
        checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "ours", overwrite=True)
    assert names(tmp_path) == ["hf", "ours"]


FULL = """
import resource, sys
from specjax import checkpoints
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
try:
    checkpoints.from_huggingface(*sys.argv[1:])
except OSError as error:
    print(error)
"""


def test_a_full_disk_is_named(tmp_path):
    made = hugging.tensors("f32", hidden_size=64)
    source = hugging.write(tmp_path / "hf", made, hidden_size=64)
    done = subprocess.run(
        [sys.executable, "-c", FULL, source, tmp_path / "ours"], capture_output=True, text=True, check=False)
    assert done.stdout == f"{tmp_path / 'ours'} could not be written: File too large\n"
    assert names(tmp_path) == ["hf"]
