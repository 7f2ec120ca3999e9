"""Configs: the recipes that come along are whole, and whatever is wrong in one is named."""

import pytest
import toys

from specjax.training.config import LOSSES, make_config, read_config, recipes
from specjax.training.learners import make_learner


def test_every_recipe_is_a_config():
    assert {"tiny-python-medusa", "tiny-python-eagle", "tiny-python-eagle3"} <= set(recipes())
    for name in recipes():
        kind = name.rpartition("-")[2]
        config = read_config(kind, name)
        assert config.kind == kind and config.to_dict()["run"]["steps"] == config.run.steps


def test_a_recipes_head_fits_a_target_of_that_depth(chunk):
    target = toys.toy_target(layers=5)
    for kind in ("medusa", "eagle"):
        config = read_config(kind, f"tiny-python-{kind}")
        assert make_learner(config, target, [chunk]).config.vocab_size == toys.VOCAB


BAD = [
    ({"extra": 1}, "unknown extra; a config has answers, head"),
    ({"target": 3}, "`target` must name a model"),
    ({"run": {}}, r"\[run\]: steps must be given"),
    ({"run": {"steps": 1, "bach": 2}}, r"\[run\]: unknown bach; it knows steps, batch"),
    ({"run": {"steps": "many"}}, r"\[run\] steps must be int, got 'many'"),
    ({"run": {"steps": True}}, "steps must be int, got True"),
    ({"run": {"steps": 0}}, "steps must be at least 1, got 0"),
    ({"run": {"steps": 1, "compute": "float8"}}, "compute must be one of float32, bfloat16"),
    ({"run": {"steps": 1, "features": "guessed"}}, "features must be one of computed, cached"),
    ({"run": 3}, r"\[run\] must be a table"),
    ({"head": 3}, r"\[head\] must be a table"),
    ({"answers": {"prompts": "headers"}}, r"\[answers\]: chunks must be given"),
    ({"answers": {"prompts": "headers", "chunks": 1, "temperatures": [0, "hot"]}}, "temperatures must be float"),
    ({"answers": {"prompts": "headers", "chunks": 1, "temperatures": [-1.0]}}, "temperatures must be 0 or more"),
    ({"answers": {"prompts": "headers", "chunks": 0}}, "chunks must be at least 1"),
    ({"optimizer": {"name": "sgd"}}, "optimizer name 'sgd' is none of adamw, muon"),
    ({"optimizer": {"rate": 0.0}}, "rate and clip must be positive"),
    ({"optimizer": {"vocabulary": 1.5}}, "a share of the rate, in 0 .. 1"),
    ({"optimizer": {"warmup": 0.7, "decay": 0.7}}, "must sum to at most 1"),
    ({"loss": {"decay": "x"}}, r"\[loss\] decay must be float"),
    ({"loss": {"steps": 0}}, "steps must be at least 1"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        make_config("eagle3", toys.tables("eagle3") | change, "my.toml")


def test_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match=r"no config nowhere: .* nor one of the recipes \(.*tiny-python-eagle3"):
        read_config("eagle3", "nowhere")
    (tmp_path / "c.toml").write_text("target = ")
    with pytest.raises(ValueError, match="c.toml is no TOML"):
        read_config("eagle3", str(tmp_path / "c.toml"))
    with pytest.raises(ValueError, match="no drafter 'hydra' to train; choose medusa"):
        make_config("hydra", {}, "x")
    with pytest.raises(ValueError, match="unknown steps; it knows decay, soft"):  # of another kind
        read_config("medusa", "tiny-python-eagle3")
    assert set(LOSSES) == {"medusa", "eagle", "eagle3", "draft"}
