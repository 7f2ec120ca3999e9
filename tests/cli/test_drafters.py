"""Draft heads on the command line: `specjax generate --drafter` and `specjax bench --drafters`."""

import json

import numpy as np
import pytest
from flax import nnx
from typer.testing import CliRunner

from specjax.checkpoints import save_head
from specjax.cli.app import app
from specjax.models import Eagle3, Eagle3Config, Medusa, MedusaConfig, head_from_nnx

call = CliRunner().invoke


@pytest.fixture(scope="module")
def heads(shelf, tmp_path_factory):
    """Random heads of the toy target, on disk."""
    root, target = tmp_path_factory.mktemp("heads"), shelf["tiny-python"]
    made = {
        "eagle3": (Eagle3, Eagle3Config.for_target(target.config, taps=(0, 1))),
        "medusa": (Medusa, MedusaConfig.for_target(target.config, num_heads=2)),
    }
    for name, (module, config) in made.items():
        _, params = head_from_nnx(module(config, rngs=nnx.Rngs(0)))
        save_head(root / name, params, config, target)
    return root


def test_a_head_drafts_for_the_text_of_plain_decoding(checkpoints, heads):
    arguments = ["generate", "def f(x):", "--max-new-tokens", "8"]
    plain = call(app, [*arguments, "--drafter", "none"])
    tree = call(app, [*arguments, "--drafter", "eagle3", "--draft", str(heads / "eagle3"), "-k", "2",
                      "--num-nodes", "6"])
    assert plain.exit_code == tree.exit_code == 0, tree.output
    assert tree.output.partition("tokens ")[0] == plain.output.partition("tokens ")[0]
    assert "mean accepted length" in tree.output


@pytest.mark.parametrize(("drafter", "draft", "words"), [
    ("eagle3", None, ["no eagle3 head is known for twin", "--draft", "specjax train eagle3"]),
    ("eagle", "medusa", ["needs a eagle head", "is a medusa head"]),
    ("medusa", "nowhere", ["no checkpoint"]),
])
def test_a_head_that_is_none(checkpoints, heads, drafter, draft, words):
    named = [] if draft is None else ["--draft", str(heads / draft)]
    result = call(app, ["generate", "x", "--target", "twin", "--drafter", drafter, *named])
    assert result.exit_code == 2 and all(word in result.output for word in words), result.output


def test_bench_compares_drafters(checkpoints, heads, tmp_path):
    out = tmp_path / "out.json"
    result = call(app, ["bench", "--drafters", f"ngram,medusa={heads / 'medusa'}", "--num-nodes", "5", "-k", "2",
                        "--limit", "1", "--max-new-tokens", "6", "--repeats", "1", "--json", str(out)])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    rows = {(row["drafter"], row["temperature"]): row for row in found["drafters"]}
    assert set(rows) == {(name, heat) for name in ("plain", "ngram", "medusa") for heat in (0.0, 1.0)}
    assert (rows["medusa", 0.0]["num_nodes"], rows["medusa", 0.0]["depth"]) == (5, 2)
    assert all(row["verifier"] == "match" and row["equal_to_plain"] == 1.0 for row in rows.values())
    assert all(np.isfinite(row["speedup"]) and row["mean_accepted_length"] >= 1.0 for row in rows.values())
    assert rows["plain", 1.0]["speedup"] == 1.0 and {"medusa/0", "plain/0"} <= set(found["seconds"]["1"])


def test_bench_takes_a_rule_for_each_drafter(checkpoints, tmp_path):
    out = tmp_path / "out.json"
    result = call(app, ["bench", "--drafters", "model,model::rejection", "-k", "2", "--temperatures", "1",
                        "--limit", "1", "--max-new-tokens", "6", "--repeats", "1", "--json", str(out)])
    assert result.exit_code == 0, result.output
    rules = {row["drafter"]: row["verifier"] for row in json.loads(out.read_text())["drafters"]}
    assert (rules["model"], rules["model::rejection"]) == ("block", "rejection")


@pytest.mark.parametrize(("arguments", "words"), [
    (["--drafters", "ngram,parrot"], ["'parrot' is none", "eagle3"]),
    (["--drafters", "ngram,ngram"], ["ngram twice"]),
    (["--drafters", "ngram::oracle"], ["got 'ngram::oracle'", "traversal"]),
    (["--drafters", "ngram::match:more"], ["NAME:SIBLINGS:VERIFIER at most"]),
    (["--drafters", "model:hybrid:traversal", "--num-nodes", "12"], ["must know the topology"]),
    (["--drafters", "ngram", "--temperature", "1"], ["--temperature means nothing beside --drafters"]),
    (["--drafters", "ngram", "--temperatures", "hot"], ["--temperatures takes numbers"]),
    (["--num-nodes", "8"], ["--num-nodes goes with --drafters"]),
])
def test_bench_refuses(checkpoints, arguments, words):
    result = call(app, ["bench", *arguments])
    assert result.exit_code == 2 and all(word in result.output for word in words), result.output
