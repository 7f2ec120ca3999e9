"""`specjax bench --peer transformers`: the same weights, the same texts, and k drafted in every round."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

import specjax
from specjax import checkpoints
from specjax.benchmarks import peer_transformers
from specjax.benchmarks.settings import Settings
from specjax.cli.app import app
from specjax.cli.options import DrafterName
from specjax.cli.pairs import bench_subject, load_pair
from specjax.cli.proposers import Wanted

WORDS = 80  # of the tokenizer; the models have 96 rows
PROMPTS = [("code", "3 1 4 1 5"), ("code", "9 2 6"), ("chat", "5 3 5 8 9 7 9")]


@pytest.fixture(scope="module")
def folder(make, torch, tmp_path_factory):
    """Prompts and a converted pair: padded vocabularies, penalties in the files, a draft that is often right."""
    root = tmp_path_factory.mktemp("pair")
    for name, noise in (("target", 0.0), ("draft", 0.02)):
        module, source = make("qwen2", tie_word_embeddings=True)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
            module.model.embed_tokens.weight[WORDS:] *= 3.0  # padding that would win, were it not left out
        module.save_pretrained(source)
        tokenizer = Tokenizer(models.WordLevel({str(i): i for i in range(WORDS)}, unk_token="0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(source / "tokenizer.json"))
        (source / "generation_config.json").write_text(json.dumps(
            {"eos_token_id": [2], "pad_token_id": 0, "do_sample": True, "repetition_penalty": 3.0, "top_k": 2,
             "num_assistant_tokens": 7}))
        checkpoints.from_huggingface(source, root / name)
    lines = [{"question_id": i, "category": kind, "turns": [text]} for i, (kind, text) in enumerate(PROMPTS)]
    (root / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return root


@pytest.fixture
def subject(folder):
    pair = load_pair(str(folder / "target"), str(folder / "draft"), Wanted(DrafterName.MODEL))
    return bench_subject(pair, folder / "prompts.jsonl")


def test_the_same_texts_and_a_record_of_both(folder, monkeypatch, tmp_path):
    monkeypatch.setattr("specjax.benchmarks.bandwidth.SIDE", 64)
    monkeypatch.setattr("specjax.benchmarks.timing.LEAST_SECONDS", 0.0)
    out = tmp_path / "out.json"
    result = CliRunner().invoke(app, [
        "bench", "--target", str(folder / "target"), "--draft", str(folder / "draft"), "--peer", "transformers",
        "--prompts", str(folder / "prompts.jsonl"), "-k", "2,4", "--max-new-tokens", "12", "--loop-tokens", "4",
        "--repeats", "1", "--json", str(out)])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert {"transformers", "torch", "torch_threads"} <= set(found["environment"]["peer"])
    assert [(row["category"], row["prompts"]) for row in found["categories"]] == [("code", 2), ("chat", 1), ("all", 3)]
    for row in found["categories"]:
        plain, assisted = row["peer"]["plain"], row["peer"]["assisted"]
        assert [side["k"] for side in assisted] == [2, 4]
        assert plain["tokens"] == row["plain"]["tokens"] and plain["mean_accepted_length"] == 1.0
        for side, mine in zip((plain, *assisted), (row["plain"], *row["speculative"]), strict=True):
            assert side["equal_to_ours"] == 1.0
            assert side["ours_over_theirs"] == pytest.approx(
                mine["tokens_per_second"] / side["tokens_per_second"], rel=1e-4)
    assert found["categories"][-1]["peer"]["assisted"][1]["mean_accepted_length"] > 1.2
    assert {f"transformers/{k}/{i}" for k in (0, 2, 4) for i in range(3)} <= set(found["seconds"])
    assert "ours over its" in result.output


@pytest.mark.parametrize("k", [1, 3])
def test_the_assistant_drafts_k_in_every_round(k, subject, transformers, monkeypatch):
    kind = transformers.generation.candidate_generator.AssistedCandidateGenerator
    asked, drafted = kind.get_candidates, []

    def get_candidates(self, input_ids, **kwargs):
        candidates, logits = asked(self, input_ids, **kwargs)
        drafted.append((input_ids.shape[1], candidates.shape[1] - input_ids.shape[1]))
        return candidates, logits

    monkeypatch.setattr(kind, "get_candidates", get_candidates)
    peer = peer_transformers.opened(subject._replace(eos_ids=()), Settings([k], max_new_tokens=20))
    plain, assisted = peer.writers
    for index, prompt in enumerate(subject.prompts):
        drafted.clear()
        assert plain(index) > 0 and not drafted
        assert assisted(index) > 0
        assert assisted.written[index].rounds == len(drafted)
        assert assisted.written[index].ids == plain.written[index].ids and len(plain.written[index].ids) == 20
        last = len(prompt) + 20
        assert [count for _, count in drafted] == [min(k, last - length - 1) for length, _ in drafted]


def test_padding_is_no_token_and_the_files_penalties_do_not_act(subject, folder, transformers, torch, tmp_path):
    peer = peer_transformers.opened(subject, Settings([2], max_new_tokens=12))
    plain = peer.writers[0]
    assert plain.model.config.vocab_size == WORDS
    plain(0)
    drafter_free = specjax.generate(
        subject.model, subject.params, [subject.prompts[0]], max_new_tokens=12, eos_ids=subject.eos_ids)
    assert list(plain.written[0].ids) == drafter_free.tokens[0, : drafter_free.lengths[0]].tolist()
    checkpoints.to_huggingface(folder / "target", tmp_path / "back")
    as_found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)
    out = as_found.generate(**plain.inputs[0], do_sample=False, max_new_tokens=12)
    assert tuple(out[0, len(subject.prompts[0]):].tolist()) != plain.written[0].ids
