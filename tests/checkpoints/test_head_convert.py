"""Published draft heads to checkpoints of ours and back; and ours to what other engines load."""

import dataclasses
import json

import head_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest
from typer.testing import CliRunner

import specjax
from specjax import checkpoints
from specjax.checkpoints import shards
from specjax.cli.app import app

SAME = [name for name in cases.CASES if not name.startswith("medusa")]


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """The two targets of the cases, as checkpoints and loaded."""
    folder = tmp_path_factory.mktemp("targets")
    paths = {True: published.target(folder / "tied"), False: published.target(folder / "untied", cases.UNTIED)}
    return {tied: (path, checkpoints.load(path)) for tied, path in paths.items()}


def of(targets, name):
    config = cases.CASES[name]
    return targets[(config if config.family == "medusa" else config.layer).tie_embeddings]


def convert(source, dest, target, **options):
    options = {"tap_convention": "boundary", "recycle": None, **options}
    return checkpoints.from_published_head(source, dest, target, **options)


def said(name):
    config = cases.CASES[name]
    return {"recycle": "post" if getattr(config, "norm_output", False) else None}


def equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("name", SAME)
def test_there_and_back(tmp_path, targets, name):
    """What is loaded are the params that `tests/models` holds against the reference; and every byte comes back."""
    path, target = of(targets, name)
    found = published.tensors(name)
    source = published.write(tmp_path / "hf", found, published.values(cases.CASES[name]))
    convert(source, tmp_path / "ours", path, **said(name))
    loaded = specjax.load_head(tmp_path / "ours", target)
    config, head, params = cases.made(name)
    bare = dataclasses.replace(config.layer, scale_embedding=False, final_softcap=None)  # what is borrowed, as it is
    assert loaded.config == dataclasses.replace(config, layer=bare)
    assert (loaded.head is head) == (bare == config.layer)
    equal(loaded.params, params)
    checkpoints.to_published_head(tmp_path / "ours", tmp_path / "back")
    assert published.same_bytes(tmp_path / "back", found)
    assert (tmp_path / "back" / "config.json").read_bytes() == (source / "config.json").read_bytes()


def medusa_names(name, style):
    """The tensors of a Medusa case by the names of one of its dialects."""
    config = cases.CASES[name]
    n, found = config.num_layers, {}
    for key, x in published.tensors(name).items():
        h, j, *rest = key.split(".")
        last = int(j) == n
        vllm = f"lm_heads.{h}.weight" if last else f"blocks.{h}.layers.{j}.{rest[-1]}"
        tensorrt = f"{h}.lm_head.weight" if last else f"{h}.medusa_layers.{j}.{'.'.join(rest)}"
        found[{"official": key, "medusa-2": f"medusa_head.{key}", "vllm": vllm, "vllm-prefix": f"medusa_heads.{vllm}",
               "tensorrt": f"medusa_heads.{tensorrt}"}[style]] = x
    return found


@pytest.mark.parametrize("name, style", [
    ("medusa", "official"), ("medusa", "medusa-2"), ("medusa", "vllm"), ("medusa", "vllm-prefix"),
    ("medusa", "tensorrt"), ("medusa-shared", "official"), ("medusa-untied", "vllm")])
def test_medusa_dialects(tmp_path, targets, name, style):
    """The number of heads is that of the tensors; the config says another."""
    path, target = of(targets, name)
    found, file = medusa_names(name, style), "medusa_lm_head.safetensors" if style == "official" else shards.SINGLE
    source = published.write(tmp_path / "hf", found, published.values(cases.CASES[name]), file)
    convert(source, tmp_path / "ours", path)
    loaded = specjax.load_head(tmp_path / "ours", target)
    config, head, params = cases.made(name)
    assert dataclasses.replace(loaded.config, final_softcap=config.final_softcap) == config
    equal(loaded.params, params)
    checkpoints.to_published_head(tmp_path / "ours", tmp_path / "back")
    assert published.same_bytes(tmp_path / "back", found)


def test_a_block_that_a_head_has_twice(tmp_path, targets):
    """The authors repeat one block, and safetensors keep one of its names."""
    path, target = targets[True]
    found = medusa_names("medusa", "official")
    found = {f"{n[0]}.3.weight" if n[1:] == ".1.weight" else n: x for n, x in found.items()}
    values = published.values(cases.CASES["medusa"], medusa_num_layers=3)
    convert(published.write(tmp_path / "hf", found, values), tmp_path / "ours", path)
    loaded = specjax.load_head(tmp_path / "ours", target)
    blocks = loaded.params["heads"]["1"]["blocks"]
    assert loaded.config.num_layers == 3 and len(blocks) == 3
    np.testing.assert_array_equal(blocks["2"]["kernel"], found["1.0.linear.weight"].T)
    checkpoints.to_published_head(tmp_path / "ours", tmp_path / "back")
    assert published.same_bytes(tmp_path / "back", found)


EAGLE3_NAMES = {
    "speculators": lambda n: n.replace("midlayer.", "layers.0."),
    "prefix": lambda n: n if n in ("d2t", "t2d", "lm_head.weight") else f"model.{n}",
    "legacy": lambda n: n.replace("fc_norm.0", "aux_norm_low").replace("fc_norm.1", "aux_norm_mid").replace(
        "fc_norm.2", "aux_norm_high"),
    "sglang": lambda n: n.replace("layers.1.input_layernorm", "layers.1.hidden_norm"),
}  # fmt: skip


@pytest.mark.parametrize("name, style", [
    ("eagle3", "speculators"), ("eagle3", "prefix"), ("eagle3-fc-norm", "legacy"), ("eagle3-deep", "sglang")])
def test_eagle3_dialects(tmp_path, targets, name, style):
    path, target = targets[True]
    found = {EAGLE3_NAMES[style](n): x for n, x in published.tensors(name).items()}
    values = published.values(cases.CASES[name])
    if style == "speculators":
        values = {"speculators_model_type": "eagle3", "transformer_layer_config": values, "draft_vocab_size": 9,
                  "norm_before_residual": False, "eagle_aux_hidden_state_layer_ids": [0, 2, 4],
                  "target_hidden_size": None, "architectures": ["Eagle3DraftModel"]}  # fmt: skip
    source = published.write(tmp_path / "hf", found, values)
    convert(source, tmp_path / "ours", path, tap_convention=None if style == "speculators" else "boundary")
    loaded = specjax.load_head(tmp_path / "ours", target)
    equal(loaded.params, cases.made(name)[2])
    checkpoints.to_published_head(tmp_path / "ours", tmp_path / "back")
    assert published.same_bytes(tmp_path / "back", found)


def test_a_copy_of_the_embedding_is_not_kept_and_comes_back(tmp_path, targets):
    path, target = targets[True]
    half = jnp.dtype(jnp.bfloat16)
    found = published.tensors("eagle", half)
    found["embed_tokens.weight"] = np.asarray(target.params["embedding"]).astype(half)
    source = published.write(tmp_path / "hf", found, published.values(cases.CASES["eagle"]))
    convert(source, tmp_path / "ours", path)
    loaded = specjax.load_head(tmp_path / "ours", target)
    assert loaded.params["embedding"] is target.params["embedding"]
    with pytest.raises(ValueError, match="holds embed_tokens.weight, a copy of the target's; give --target TARGET"):
        checkpoints.to_published_head(tmp_path / "ours", tmp_path / "back")
    checkpoints.to_published_head(tmp_path / "ours", tmp_path / "back", target=path)
    assert published.same_bytes(tmp_path / "back", found)
    found["embed_tokens.weight"] = found["embed_tokens.weight"][::-1].copy()
    other = published.write(tmp_path / "other", found, published.values(cases.CASES["eagle"]))
    with pytest.raises(ValueError, match=r"embed_tokens.weight \(23, 12\) in .* is no copy of .*another target"):
        convert(other, tmp_path / "refused", path)


def test_a_target_with_padding(tmp_path):
    """The rows of other libraries count the padding; what is scored, and what is proposed, does not."""
    path = published.target(tmp_path / "target", rows=published.PADDED)
    target = checkpoints.load(path)
    found = published.tensors("eagle3")
    found["t2d"] = np.pad(found["t2d"], (0, 3))
    source = published.write(
        tmp_path / "hf", found, published.values(cases.CASES["eagle3"], vocab_size=published.PADDED))
    convert(source, tmp_path / "ours", path)
    loaded = specjax.load_head(tmp_path / "ours", target)
    assert loaded.config.vocab_size == cases.ROWS and loaded.params["places"].shape == (cases.ROWS,)
    checkpoints.to_published_head(tmp_path / "ours", tmp_path / "back")
    assert published.same_bytes(tmp_path / "back", found)
    wide = {n: np.pad(x, ((0, 3), (0, 0))) if x.shape[0] == cases.ROWS else x for n, x in
            medusa_names("medusa", "official").items()}
    source = published.write(tmp_path / "medusa", wide, published.values(cases.CASES["medusa"]))
    convert(source, tmp_path / "heads", path)
    loaded = specjax.load_head(tmp_path / "heads", target)
    assert loaded.params["heads"]["0"]["output"].shape == (cases.WIDTH, cases.ROWS)
    checkpoints.to_published_head(tmp_path / "heads", tmp_path / "wide")
    assert published.same_bytes(tmp_path / "wide", wide)


@pytest.mark.parametrize("name, layout", [
    ("eagle3", "official"), ("eagle3", "speculators"), ("eagle3-residual", "speculators"),
    ("eagle3-hidden", "official"), ("eagle3-norms", "official"), ("eagle", "official"), ("eagle-plain", "sglang"),
    ("medusa", "vllm"), ("medusa-shared", "vllm")])
def test_what_was_trained_here_is_written_for_others_and_read_again(tmp_path, targets, name, layout):
    path, target = of(targets, name)
    config, head, params = cases.made(name)
    checkpoints.save_head(tmp_path / "ours", params, config, target)
    checkpoints.to_published_head(tmp_path / "ours", tmp_path / "hf", layout=layout, target=path, verifier="me/target")
    values = json.loads((tmp_path / "hf" / "config.json").read_text())
    convert(tmp_path / "hf", tmp_path / "again", path, tap_convention=None if layout == "speculators" else "boundary")
    loaded = specjax.load_head(tmp_path / "again", target)
    if layout == "sglang":  # where fc always has a bias
        assert not np.any(loaded.params.pop("fc_bias")) and values["bias"]
    else:
        assert loaded.config == config and loaded.head is head
    equal(loaded.params, params)
    assert values["architectures"] == [{
        ("eagle3", "official"): "LlamaForCausalLMEagle3", ("eagle3", "speculators"): "Eagle3DraftModel",
        ("eagle", "official"): "LlamaForCausalLM", ("eagle", "sglang"): "LlamaForCausalLMEagle",
        ("medusa", "vllm"): "MedusaModel"}[config.family, layout]]


def test_trained_here_for_a_target_with_padding(tmp_path):
    """Engines count the target's rows: what is not scored here is left out of the draft vocabulary there."""
    path = published.target(tmp_path / "target", rows=published.PADDED)
    loaded = checkpoints.load(path)
    target = dataclasses.replace(loaded, metadata={"huggingface": {"rows": published.PADDED}})
    for name, layout in (("eagle3-hidden", "official"), ("medusa", "vllm")):
        config, _, params = cases.made(name)
        checkpoints.save_head(tmp_path / name, params, config, target)
        checkpoints.to_published_head(tmp_path / name, tmp_path / f"{name}-hf", layout=layout)
        found = {n: e.view() for n, e in shards.read_folder(tmp_path / f"{name}-hf", shards.WITH_IDS).items()}
        values = json.loads((tmp_path / f"{name}-hf" / "config.json").read_text())
        assert values["vocab_size"] == published.PADDED
        if layout == "official":
            assert values["draft_vocab_size"] == cases.ROWS and not found["d2t"].any()
            np.testing.assert_array_equal(found["t2d"], np.arange(published.PADDED) < cases.ROWS)
        else:
            assert values["truncated_vocab_size"] == cases.ROWS
            np.testing.assert_array_equal(found["token_map"], np.arange(cases.ROWS))
        convert(tmp_path / f"{name}-hf", tmp_path / f"{name}-again", path)
        again = specjax.load_head(tmp_path / f"{name}-again", loaded)
        np.testing.assert_array_equal(
            again.params["output"] if layout == "official" else again.params["heads"]["0"]["output"],
            params["output"] if layout == "official" else params["heads"]["0"]["output"])


def test_a_cast_leaves_ids_alone_and_is_said(tmp_path, targets):
    path, target = targets[True]
    found = published.tensors("eagle3")
    values = published.values(cases.CASES["eagle3"], torch_dtype="float32")
    convert(published.write(tmp_path / "hf", found, values), tmp_path / "ours", path, dtype="bfloat16")
    checkpoints.to_published_head(tmp_path / "ours", tmp_path / "back")
    half = {n: x.astype(jnp.bfloat16) if x.dtype == np.float32 else x for n, x in found.items()}
    assert published.same_bytes(tmp_path / "back", half)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_the_command(tmp_path, targets):
    path, _ = targets[True]
    found = published.tensors("eagle3")
    values = published.values(cases.CASES["eagle3"])
    source = published.write(tmp_path / "hf", found, values)

    def run(*arguments):
        result = CliRunner().invoke(app, ["convert", *map(str, arguments)])
        return result.exit_code, result.output

    code, output = run(source, tmp_path / "ours")
    assert code == 2 and "is a draft head (eagle3): give --target TARGET" in output.replace("\n", " ")
    code, output = run(source, tmp_path / "ours", "--target", path)
    assert code == 0, output  # 4 is the target's last boundary, so the numbers can only be boundaries
    assert json.loads((tmp_path / "ours/specjax.json").read_text())["metadata"]["wiring"]["tap_boundaries"] == [0, 2, 4]
    code, output = run(tmp_path / "ours", tmp_path / "back", "--to-hf")
    assert code == 0 and published.same_bytes(tmp_path / "back", found)
    code, output = run(tmp_path / "ours", tmp_path / "spec", "--to-hf", "--layout", "speculators", "--verifier", "me/x")
    assert code == 0
    said = json.loads((tmp_path / "spec/config.json").read_text())
    assert said["speculators_config"]["verifier"]["name_or_path"] == "me/x"
    for wrong, message in (
        ((source, tmp_path / "no", "--recycle", "pre"), "is a draft head"),
        ((source, tmp_path / "no", "--target", path, "--layout", "official"), "--layout means nothing without --to-hf"),
        ((path, tmp_path / "no", "--to-hf", "--layout", "official"), "means nothing for a model that is no draft head"),
        ((tmp_path / "ours", tmp_path / "no", "--to-hf", "--layout", "vllm"), "none of those of eagle3 heads"),
        ((tmp_path / "ours", tmp_path / "no", "--to-hf", "--recycle", "pre"), "--recycle means nothing with --to-hf"),
    ):
        code, output = run(*wrong)
        assert code == 2 and message in output.replace("\n", " "), output
