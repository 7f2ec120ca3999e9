"""`specjax bench`: that it runs and adds up. What it measures is a result and no test."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from specjax.benchmarks import prompts, random_pair, results, run, ways
from specjax.benchmarks.timing import in_turns
from specjax.cli.app import app
from specjax.cli.pairs import parse_depths

call = CliRunner().invoke


@pytest.fixture(scope="module")
def small():
    patch = pytest.MonkeyPatch()
    patch.setattr("specjax.benchmarks.bandwidth.SIDE", 64)
    patch.setattr("specjax.benchmarks.timing.LEAST_SECONDS", 0.0)
    yield
    patch.undo()


def test_bench_writes_what_it_measured(small, checkpoints, tmp_path):
    out = tmp_path / "deep" / "out.json"
    result = call(app, ["bench", "--repeats", "2", "--limit", "2", "-k", "2", "--max-new-tokens", "8",
                        "--json", str(out)])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert found["settings"]["repeats"] == 2 and found["settings"]["prompts"] == 2
    assert {"jax", "python", "device", "command", "XLA_FLAGS"} <= set(found["environment"])
    (deep,) = found["speculative"]
    assert deep["k"] == 2 and deep["text_equals_plain"] is True
    assert set(found["parts"]) == {"draft/step", "draft/feed", "target/1", "target/3", "bare/2"}
    assert all(len(times) == 2 and min(times) > 0 for times in found["seconds"].values())
    numbers = ("mean_accepted_length", "predicted_speedup", "measured_speedup", "round_over_parts", "c", "v",
               "sampled_over_greedy_round", "temporary_over_arguments", "tokens_per_second")
    assert all(np.isfinite(deep[name]) and deep[name] >= 0 for name in numbers)
    assert found["plain"]["step_over_reading_weights"] > 0
    assert "round / its parts alone" in result.output


def test_random_weights(monkeypatch):
    tiny = dataclasses.replace(
        random_pair.SHAPES["llama-0.5b"], vocab_size=100, hidden_size=16, num_heads=2, num_kv_heads=1, head_dim=8,
        intermediate_size=16)
    monkeypatch.setitem(random_pair.SHAPES, "llama-0.5b", tiny)
    asked = []
    monkeypatch.setattr(run, "bench", lambda subject, settings, **_: asked.append((subject, settings)))
    result = call(app, ["bench", "--random", "llama-0.5b", "--layers", "1", "-k", "3,1", "--repeats", "13"])
    assert result.exit_code == 0, result.output
    ((subject, settings),) = asked
    assert not subject.writes and subject.width == 16
    assert len(subject.params["layers"]) == 1 and subject.params["embedding"].shape == (100, 16)
    assert settings.depths == [1, 3] and settings.repeats == 13


def test_without_texts_only_steps_are_summed_up():
    stats = SimpleNamespace(drafted_per_round=np.array([[2, 2]]), rounds=np.array([2]))
    loop = ways.Loop(SimpleNamespace(compile_seconds=1.0, temporary_bytes=5, argument_bytes=50), None, [],
                    [SimpleNamespace(stats=stats)])
    way = ways.Way(None, [2, 0], loop, loop, None)
    plain = ways.Way(None, [0], loop, loop, None)
    medians = {"draft/step": 1.0, "draft/feed": 0.5, "target/1": 4.0, "target/3": 7.5, "loop/0/greedy": 10.0,
               "bare/2": 10.0, "loop/2/greedy": 22.0, "loop/2/sampled": 24.2}
    found = results.deep_summary(way, medians)
    assert "measured_speedup" not in found
    assert found["round"] == 11.0 and found["round_over_parts"] == pytest.approx(1.1)
    assert found["round_over_bare"] == pytest.approx(1.1)
    assert found["sampled_over_greedy_round"] == pytest.approx(1.1) and found["temporary_over_arguments"] == 0.1
    assert found["c"] == 0.25 and found["v"] == 1.875


@pytest.mark.parametrize("arguments, words", [
    (["--random", "huge"], ["llama-0.5b", "huge"]),
    (["--layers", "2"], ["--layers", "--random"]),
    (["-k", "3;5"], ["3;5"]),
    (["-k", "0"], ["at least 1"]),
    (["--prompts", "no-such-file.jsonl"], ["no-such-file.jsonl"]),
])
def test_errors(checkpoints, arguments, words):
    result = call(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert all(word in result.stderr for word in words), result.stderr


def test_depths():
    assert parse_depths("5,3,5") == [3, 5]


def test_things_take_turns_after_one_call_that_does_not_count():
    calls = []

    def thing(name):
        return lambda: calls.append(name) or float(len(calls))

    found = in_turns({"a": thing("a"), "b": thing("b")}, 3)
    assert calls == ["a", "b"] * 4
    assert found == {"a": [3.0, 5.0, 7.0], "b": [4.0, 6.0, 8.0]}


def test_built_in_prompts_are_function_headers():
    texts = [prompt.text for prompt in prompts.read()]
    assert {prompt.category for prompt in prompts.read()} == {"python"}
    assert len(texts) >= 16 and len(set(texts)) == len(texts)
    assert all(text.startswith("def ") and text.endswith(":") for text in texts)


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"turns": ["a"]}\n\n{"turns": []}\n')
    with pytest.raises(ValueError, match="p.jsonl, line 3"):
        prompts.read(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="no prompt"):
        prompts.read(path)


def test_a_round_costs_what_its_rung_costs():
    medians = {"draft/step": 1.0, "draft/feed": 0.5, "target/1": 10.0, "target/3": 20.0, "target/5": 30.0}
    record = np.array([[4, 4, 3, 2, 0]])
    stats = SimpleNamespace(drafted_per_round=record, rounds=np.array([5]))
    loop = ways.Loop(None, None, [], [SimpleNamespace(stats=stats)])
    way = SimpleNamespace(widths=[4, 2, 0])
    assert loop.rounds_by_width(way.widths) == {4: 3, 2: 1, 0: 1}
    assert results.alone_seconds(way, loop, medians) == 3 * 34.5 + 22.5 + 10.0
