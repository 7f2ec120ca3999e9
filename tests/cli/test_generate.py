"""`specjax generate`: what it prints, what it refuses."""

import numpy as np
import pytest
from typer.testing import CliRunner

import specjax
from specjax.cli import writing
from specjax.cli.app import DrafterName, VerifierName, app
from specjax.cli.pairs import load_pair, make_job, prompt_ids
from specjax.cli.proposers import Wanted

run = CliRunner().invoke
END = "<|endoftext|>"
SHORT = ["--max-new-tokens", "12", "-k", "2"]


def fields(output):
    """The two-column records under the text."""
    pairs = (line.split("  ", 1) for line in output.splitlines() if "  " in line)
    return {name.strip(): value.strip() for name, value in pairs}


def test_version():
    result = run(app, ["--version"])
    assert result.exit_code == 0 and result.output == f"specjax {specjax.__version__}\n"


def test_prints_the_prompt_the_text_and_the_record(checkpoints):
    result = run(app, ["generate", "def f(x):", *SHORT, "--draft", "twin"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("def f(x):")
    found = fields(result.output)
    # The twin drafts what the target would say: four rounds of three tokens, all kept.
    assert found["tokens"].startswith("12 ")
    assert (found["rounds"], found["drafted"], found["accepted"]) == ("4", "8", "8")
    assert found["mean accepted length"].startswith("3.00")
    assert float(found["tokens per second"].split()[0]) > 0 and found["compilation"].endswith(" s")


def test_compare_prints_the_ratio_and_that_greedy_text_is_equal(checkpoints):
    result = run(app, ["generate", "def f(x):", *SHORT, "--compare"])
    assert result.exit_code == 0, result.output
    found = fields(result.output)
    assert float(found["ratio"]) > 0
    assert "tokens per second" in found["plain"] and "tokens per second" in found["speculative"]
    assert found["text"] == "equal to plain decoding, token for token"


@pytest.mark.parametrize("options", [
    ["--drafter", "ngram"], ["--drafter", "none"], ["--verifier", "rejection", "--temperature", "0.8"],
    ["--verifier", "match", "--temperature", "1", "--top-p", "0.9", "--top-k", "20", "--min-p", "0.01", "--seed", "3"],
])
def test_every_option_runs(checkpoints, options):
    result = run(app, ["generate", "x", *SHORT, *options])
    assert result.exit_code == 0, result.output


def test_the_streamed_text_is_that_of_generate(checkpoints):
    result = run(app, ["generate", "def f(x):", *SHORT])
    wanted = Wanted(DrafterName.MODEL, num_speculative_tokens=2)
    pair = load_pair("tiny-python", None, wanted)
    job = make_job(pair, "def f(x):", wanted, verifier=VerifierName.AUTO, max_new_tokens=12, seed=0)
    whole = specjax.generate(**job.arguments)
    text = writing.TextStream(pair.target.tokenizer, job.prompt).push(
        np.asarray(whole.tokens)[0, : int(whole.lengths[0])])
    assert result.output.startswith("def f(x):" + text)


@pytest.mark.parametrize("arguments, words", [
    (["x", "--target", "nowhere", "--draft", "twin"], ["no checkpoint nowhere"]),
    (["x", "--target", "twin"], ["no draft model is known for twin", "--draft"]),
    (["x", "--draft", "stranger"], ["tokenizers", "differ"]),
    (["x", "--draft", "twin", "--drafter", "ngram"], ["--draft twin", "leave one"]),
    (["x", "--drafter", "none", "--compare"], ["--compare", "--drafter none"]),
    (["x", "--temperature", "-1"], ["temperature", "-1"]),
    (["x", "--top-p", "1.5"], ["top_p", "1.5"]),
])
def test_a_users_error_is_one_message_and_exit_code_2(checkpoints, arguments, words):
    result = run(app, ["generate", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("specjax: error: ") and "Traceback" not in result.output
    assert all(word in result.stderr for word in words), result.stderr


def test_an_error_of_another_library_keeps_its_traceback(checkpoints, monkeypatch):
    monkeypatch.setattr(specjax, "stream", lambda **_: int("no number"))
    result = run(app, ["generate", "x"])
    # `int` was called in this file, not in specjax.
    assert isinstance(result.exception, ValueError) and result.exit_code == 1


def test_a_character_appears_once_it_is_whole(shelf):
    tokenizer = shelf["tiny-python"].tokenizer
    ids = tokenizer.encode("naïve → 🙂", add_special_tokens=False).ids
    stream = writing.TextStream(tokenizer, tokenizer.encode("p").ids)
    pieces = [stream.push([token]) for token in ids]
    assert "".join(pieces) == "naïve → 🙂"
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)
    assert pieces[-4:] == ["", "", "", "🙂"]


def test_special_tokens_are_not_shown(shelf):
    stream = writing.TextStream(shelf["tiny-python"].tokenizer, [0])
    assert stream.push([0]) == ""


def test_without_a_chat_template_chat_says_what_to_do(checkpoints):
    result = run(app, ["generate", "hello", *SHORT, "--chat"])
    assert result.exit_code == 2
    assert result.stderr.startswith("specjax: error: ") and "no chat template" in result.stderr
    assert "plain prompt" in result.stderr and "Traceback" not in result.output


def test_a_prompt_is_continued_or_answered(chat_pair):
    tokenizer = chat_pair["tiny-python"].tokenizer
    continued, answered = (prompt_ids(chat_pair["tiny-python"], "hello", chat) for chat in (False, True))
    assert tokenizer.decode(continued, skip_special_tokens=False) == f"{END}hello"
    # The template writes the begin-of-text token, and the tokenizer not another.
    assert tokenizer.decode(answered, skip_special_tokens=False) == (
        f"{END}<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")


def test_an_answer_ends_with_the_turn_and_shows_no_special_token(chat_pair):
    result = run(app, ["generate", "hello", *SHORT, "--chat"])
    assert result.exit_code == 0, result.output
    found = fields(result.output)
    assert found["tokens"] == "3 (ended by eos)"
    assert result.output.startswith("hello\n") and "<|" not in result.output
