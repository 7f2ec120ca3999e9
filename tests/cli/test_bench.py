"""`specjax bench`: that it runs and adds up. What it measures is a result and no test."""

import dataclasses
import json
import pathlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from specjax.benchmarks import (
    categories,
    context,
    prompts,
    random_pair,
    record,
    results,
    run,
    serving,
    texts,
    timing,
    verifiers,
    ways,
)
from specjax.benchmarks.kept import kept_of
from specjax.benchmarks.texts import Written, finished
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
    assert "partial" not in found and found["settings"]["text_repeats"] == 2
    one, everything = found["categories"]
    assert (one["category"], everything["category"]) == ("python", "all")
    assert one | {"category": "all"} == everything and everything["best_k"] == 2
    (side,) = everything["speculative"]
    assert side["speedup"] == deep["measured_speedup"] and everything["plain"]["speedup"] == 1.0


def test_chat_prompts_by_category_and_fewer_repeats_of_texts(small, chat_pair, tmp_path):
    lines = [{"category": "b", "turns": ["x"]}, {"category": "a", "turns": ["y"]}, {"category": "b", "turns": ["z"]}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    out = tmp_path / "out.json"
    result = call(app, ["bench", "--prompts", str(tmp_path / "p.jsonl"), "--chat", "--per-category", "1", "-k", "1",
                        "--max-new-tokens", "6", "--loop-tokens", "3", "--repeats", "2", "--text-repeats", "1",
                        "--json", str(out)])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert [(row["category"], row["prompts"]) for row in found["categories"]] == [("b", 1), ("a", 1), ("all", 2)]
    assert found["settings"]["prompts"] == 2 and found["settings"]["loop_tokens"] == 3
    assert found["settings"]["padded_prompt"] > 16  # the template's turns, where the texts have one letter
    assert len(found["seconds"]["text/1/0"]) == 1 and len(found["seconds"]["loop/1/greedy"]) == 2


class Scribe(SimpleNamespace):
    """Writes nothing; its texts are given."""


def test_a_row_for_each_category():
    plain = Scribe(name="text/0", k=0, written={i: Written((1, 2, 3, 4), 4) for i in range(3)})
    two = Scribe(name="text/2", k=2, written={0: Written((1, 2, 3, 4), 2), 2: Written((1, 2, 3), 1)})
    four = Scribe(name="text/4", k=4, written={i: Written((1, 2, 3, 4), 1) for i in range(3)})
    their = Scribe(name="peer/0", k=0, written={i: Written((1, 2, 3, 4), 4) for i in range(3)})
    theirs = [their, Scribe(name="peer/2", k=2, written=two.written), Scribe(name="peer/4", k=4, written=four.written)]
    medians = {f"{name}/{k}/{i}": seconds for name, factor in (("text", 1.0), ("peer", 3.0))
               for k, seconds in ((0, 2.0 * factor), (2, 1.0 * factor), (4, 4.0 * factor)) for i in (0, 1, 2)}
    del medians["text/2/1"]
    done = finished([plain, two, four, *theirs], 3, medians)
    assert done == [0, 2]
    first, second, total = categories.table(["a", "a", "b"], [plain, two, four], theirs, done, medians)
    assert [row["category"] for row in (first, second, total)] == ["a", "b", "all"]
    assert total["prompts"] == 2 and total["best_k"] == 2
    assert total["plain"]["tokens_per_second"] == 2.0 and total["plain"]["mean_accepted_length"] == 1.0
    side = total["speculative"][0]
    assert side["speedup"] == pytest.approx((4 / 8) / (2 / 7)) and side["mean_accepted_length"] == pytest.approx(7 / 3)
    assert side["equal_to_plain"] == 0.5 and second["speculative"][0]["equal_to_plain"] == 0.0
    assert first["speculative"][0]["speedup"] == 2.0 and first["speculative"][1]["speedup"] == 0.5
    assert total["peer"]["plain"]["ours_over_theirs"] == pytest.approx(3.0)
    assert total["peer"]["assisted"][0]["ours_over_theirs"] == pytest.approx(3.0)
    assert total["peer"]["assisted"][0]["equal_to_ours"] == 0.5
    assert [row["category"] for row in categories.table([], [plain, two], [], [0], medians)] == ["all"]


def test_an_interrupted_run_leaves_what_it_measured(small, checkpoints, monkeypatch, tmp_path):
    calls = []

    def interrupted(self, index):
        calls.append(index)
        if len(calls) == 8:  # two that do not count, two prompts in two ways, half of the third
            raise KeyboardInterrupt
        return asked(self, index)

    asked = texts.Writer.__call__
    monkeypatch.setattr(texts.Writer, "__call__", interrupted)
    out = tmp_path / "out.json"
    result = call(app, ["bench", "--repeats", "1", "--limit", "3", "-k", "2", "--max-new-tokens", "8",
                        "--json", str(out)])
    assert result.exit_code != 0 and len(calls) == 8
    found = json.loads(out.read_text())
    assert found["partial"] is True and found["categories"][-1]["prompts"] == 2
    assert found["speculative"][0]["measured_speedup"] > 0 and len(found["seconds"]["text/0/2"]) == 1


def test_a_partial_record_every_minute(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr(record.time, "monotonic", lambda: now[0])
    out, state = tmp_path / "out.json", {}

    def kept():
        return json.loads(out.read_text())

    with record.kept(out, lambda: state) as keep:
        assert kept() == {"partial": True}
        state["a"] = 1
        now[0] = 59.0
        keep()
        assert kept() == {"partial": True}
        now[0] = 60.0
        keep()
        assert kept() == {"partial": True, "a": 1}
    with record.kept(None, dict) as keep:
        keep()


def test_where_no_record_can_stand_nothing_is_measured(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_compiled", lambda *_: pytest.fail("compiled"))
    (tmp_path / "file").write_text("kept")
    for out in (tmp_path, tmp_path / "file" / "out.json"):
        result = call(app, ["bench", "--limit", "1", "--json", str(out)])
        assert result.exit_code == 2 and str(tmp_path) in result.stderr, result.output
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "kept"


def test_a_process_short_of_memory_maps_says_so(tmp_path, monkeypatch):
    (tmp_path / "maps").write_text("one\n" * 60)
    (tmp_path / "allowed").write_text("100\n")
    monkeypatch.setattr(timing, "MAPS", tmp_path / "maps")
    monkeypatch.setattr(timing, "MAX_MAPS", tmp_path / "allowed")
    assert timing.Program(lambda x: x + 1, 2.0)(2.0)[0] == 3.0
    with pytest.raises(ValueError, match="use 60 of the 100 memory maps .*sysctl vm.max_map_count"):
        timing.Program(lambda x, y: x + y, 1.0, 2.0)


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
    (["--peer", "transformers"], ["tiny-python", "Hugging Face"]),
    (["--peer", "transformers", "--temperature", "0.5"], ["greedy", "0.5"]),
    (["--peer", "transformers", "--random", "llama-0.5b", "--layers", "1"], ["--peer", "random weights"]),
    (["--peer", "vllm"], ["transformers"]),
    (["--random", "llama-0.5b", "--chat", "--limit", "2"], ["--chat, --limit", "--random"]),
    (["--random", "llama-0.5b", "--target", "ckpt/name", "--seed", "1"], ["--target, --seed", "--random"]),
    (["--prompts", "no-such-file.jsonl"], ["no-such-file.jsonl"]),
])
def test_errors(checkpoints, arguments, words):
    result = call(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert all(word in result.stderr for word in words), result.stderr


def test_a_peer_that_is_not_installed(checkpoints, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(pathlib.Path, "is_dir", lambda path: True)  # as if the pair were converted
    result = call(app, ["bench", "--peer", "transformers"])
    assert result.exit_code == 2 and "pip install 'specjax[parity]'" in result.stderr


def test_depths():
    assert parse_depths("5,3,5") == [3, 5]


def test_things_take_turns_after_one_call_that_does_not_count():
    calls = []

    def thing(name):
        return lambda: calls.append(name) or float(len(calls))

    found = in_turns({"a": thing("a"), "b": thing("b")}, 3)
    assert calls == ["a", "b"] * 4
    assert found == {"a": [3.0, 5.0, 7.0], "b": [4.0, 6.0, 8.0]}
    calls.clear()
    told, into = [], {}
    in_turns({"a": thing("a"), "b": thing("b")}, 1, warm=["b"], into=into, tell=lambda: told.append(len(into)))
    assert calls == ["b", "a", "b"] and into == {"a": [2.0], "b": [3.0]} and told == [0, 1, 2]


def test_built_in_prompts_are_function_headers():
    texts = [prompt.text for prompt in prompts.read()]
    assert {prompt.category for prompt in prompts.read()} == {"python"}
    assert len(texts) >= 16 and len(set(texts)) == len(texts)
    assert all(text.startswith("def ") and text.endswith(":") for text in texts)


def test_the_first_of_each_category():
    listed = [prompts.Prompt(str(i), kind) for i, kind in enumerate("aabab")]
    assert [p.text for p in prompts.first(listed, per_category=2)] == ["0", "1", "2", "4"]
    assert [p.text for p in prompts.first(listed, per_category=1, limit=1)] == ["0"]
    assert prompts.first(listed) == listed


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"turns": ["a"]}\n\n{"turns": []}\n')
    with pytest.raises(ValueError, match="p.jsonl, line 3"):
        prompts.read(path)
    path.write_text('{"turns": ["a"]}\n{"turns": ["a"], "category": 3}\n')
    with pytest.raises(ValueError, match="line 2: .*category"):
        prompts.read(path)
    path.write_text('{"turns": "a text and no list of them"}\n')
    with pytest.raises(ValueError, match="line 1: .*non-empty list `turns`"):
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


def test_what_rules_keep_and_what_they_cost():
    """The two measurements without a model, small: hybrid keeps more than recursive rejection, that more than match."""
    kept = kept_of((3, 2), 1.0, 1.0, vocab_size=64, trees=200)
    order = [kept[name] for name in ("hybrid/hybrid", "without_replacement/without_replacement", "chosen/match")]
    assert order == sorted(order, reverse=True) and order[-1] > 0 and order[0] < 2
    assert kept["hybrid/traversal"] >= kept["hybrid/hybrid"] and kept["heard/match"] > kept["chosen/match"]
    found = verifiers.measure(vocab_size=50, repeats=1, command="test")
    assert set(found["over_softmax"]) == set(verifiers.rules()) and found["settings"]["nodes"] == 64
    assert all(np.isfinite(ratio) and ratio > 0 for ratio in found["over_softmax"].values())


def test_what_a_pass_costs_by_capacity_and_length(monkeypatch):
    small = dataclasses.replace(
        context.FULL, vocab_size=64, hidden_size=16, num_heads=2, num_kv_heads=1, head_dim=8, intermediate_size=16)
    monkeypatch.setattr(context, "FULL", small)
    monkeypatch.setattr(context, "WIDTHS", (2,))
    monkeypatch.setattr(timing, "LEAST_SECONDS", 0.0)
    found = context.measure(layers=2, repeats=1, command="test")
    assert [(row["way"], row["capacity"], row["length"]) for row in found["rows"]] == [
        tuple(point) for point in context.points()] and len(found["rows"]) == 15
    assert all(row["over_least"] == 1.0 for row in found["rows"] if row["capacity"] == 512)
    assert context.shape_of("rings", 12).sliding_layers == (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)


@pytest.mark.slow
def test_the_engine_beside_static_batches(monkeypatch, checkpoints):
    """Both write the same texts; what is faster is no test."""
    monkeypatch.setattr(serving, "SLOTS", (1, 2))
    found = serving.measure(3, 8, 2, 4, 1, command="test")
    assert [(row["drafter"], row["slots"]) for row in found["rows"]] == [
        (name, slots) for name in ("plain", "from_model(2)") for slots in (1, 2)]
    assert all(row["equal_texts"] == 3 and 3 <= row["tokens"] <= 24 for row in found["rows"])
    assert found["rows"][2]["over_one_slot"] == 1.0 and "jax" in found["environment"]
