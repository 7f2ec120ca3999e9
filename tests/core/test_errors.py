"""Users' bad days: a `ValueError` before anything runs, that names both sides and the remedy."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenarios import GOOD, MODEL, NGRAM, PROMPTS, TARGET, V

import specjax
from specjax import Sampling, draft, testing, verify

KEY = jax.random.key(0)


def call(prompts=PROMPTS, **arguments):
    arguments.setdefault("max_new_tokens", 4)
    return specjax.generate(*TARGET, prompts, **arguments)


@pytest.mark.parametrize(("arguments", "words"), [
    ({"prompts": []}, ["empty", "token ids"]),
    ({"prompts": [[1], []]}, ["prompt 1", "empty", "BOS"]),
    ({"prompts": "text"}, ["token-id lists", "tokenizer"]),
    ({"prompts": [1, 2, 3]}, ["token-id lists"]),
    ({"prompts": np.zeros((2, 3))}, ["integer", "float64", "tokenizer"]),
    ({"prompts": np.zeros((0, 3), np.int32)}, ["[0, 3]"]),
    ({"prompts": np.zeros((2, 0), np.int32)}, ["[2, 0]"]),
    ({"prompts": np.zeros((2, 3), np.int32), "lengths": np.array([3, 4])}, ["1 .. 3", "3 .. 4"]),
    ({"prompts": np.zeros((2, 3), np.int32), "lengths": np.array([3, 0])}, ["0 .. 3", "BOS"]),
    ({"prompts": np.zeros((2, 3), np.int32), "lengths": np.array([3])}, ["[1]", "2 rows"]),
    ({"prompts": [[1, 2]], "lengths": np.array([2])}, ["lengths"]),
    ({"prompts": [[1, V]]}, [f"{V}", "tokenizer"]),
    ({"prompts": [[1, -1]]}, ["-1", "tokenizer"]),
    ({"prompts": [[1] * 9], "capacity": 8}, ["9 tokens", "capacity is 8", "raise capacity"]),
    ({"max_new_tokens": 0}, ["max_new_tokens", "at least 1"]),
    ({"num_samples": 0}, ["num_samples", "at least 1"]),
    ({"limits": 5}, ["limits", "0 .. 4", "max_new_tokens"]),
    ({"limits": np.array([1, 2])}, ["limits", "[2]", "8 rows"]),
    ({"num_speculative_tokens": 1}, ["num_speculative_tokens", "0 .. 0"]),
    ({"num_speculative_tokens": 4, "drafter": NGRAM}, ["0 .. 3", "the drafter's own"]),
    ({"num_speculative_tokens": -1, "drafter": NGRAM}, ["0 .. 3", "-1"]),
    ({"sampling": Sampling(temperature=-1.0), "key": KEY}, ["temperature", "-1"]),
    ({"sampling": Sampling(temperature=float("nan")), "key": KEY}, ["temperature", "nan"]),
    ({"sampling": Sampling(temperature=float("inf")), "key": KEY}, ["temperature", "inf"]),
    ({"sampling": Sampling(temperature=np.array([0.0, 1.0])), "key": KEY}, ["temperature", "[2]", "8 rows"]),
    ({"sampling": Sampling(temperature=1.0)}, ["temperature", "key", "seed", "temperature=0"]),
    ({"sampling": Sampling(top_p=1.5)}, ["top_p", "0 .. 1", "1.5"]),
    ({"sampling": Sampling(top_k=-1)}, ["top_k", "-1"]),
    ({"sampling": Sampling(min_p=-0.1)}, ["min_p", "-0.1"]),
    ({"sampling": Sampling(repetition_penalty=0.0)}, ["repetition_penalty"]),
    ({"sampling": Sampling(presence_penalty=float("nan"))}, ["presence_penalty"]),
    ({"sampling": Sampling(logit_bias=np.zeros(V + 1))}, ["logit_bias", f"[{V + 1}]", f"{V} tokens"]),
    ({"sampling": Sampling(allowed=np.ones((3, V), bool))}, ["allowed", f"[3, {V}]", f"[8, {V}]"]),
    ({"sampling": Sampling(allowed=np.zeros(V, bool))}, ["allowed", "every token"]),
    ({"sampling": Sampling(allowed=[False] * V)}, ["allowed", "every token"]),
    ({"sampling": Sampling(logit_bias=np.full(V, np.nan))}, ["logit_bias", "NaN", "-inf"]),
    ({"sampling": Sampling(logit_bias=[1e39] * V)}, ["logit_bias", "finite float32"]),
    ({"sampling": Sampling(logit_bias=["a"] * V)}, ["logit_bias", "finite float32"]),
    ({"sampling": Sampling(temperature=1.0, seed=np.arange(3))}, ["seed", "[3]", "8"]),
    ({"eos_ids": np.zeros((3, 2), np.int32)}, ["eos_ids", "3 rows", "8"]),
    ({"stop": [[1], []]}, ["stop", "empty"]),
    ({"stop": np.zeros((3, 2, 2), np.int32)}, ["stop", "[3, 2, 2]", "8"]),
    ({"drafter": MODEL}, ["from_model", "draft_params"]),
    ({"drafter": NGRAM, "draft_params": GOOD[1]}, ["ngram", "draft_params", "from_model"]),
    ({"draft_params": GOOD[1]}, ["draft_params", "null"]),
    ({"drafter": MODEL, "draft_params": testing.random_trigram(0, V + 2)[1]}, [f"{V + 2} tokens", f"target {V}"]),
])
def test_value_errors(arguments, words):
    with pytest.raises(ValueError) as error:
        call(**arguments)
    missing = [word for word in words if word not in str(error.value)]
    assert not missing, f"{error.value!s} does not say {missing}"


@pytest.mark.parametrize(("arguments", "words"), [
    ({"drafter": verify.block()}, ["drafter", "specjax.draft"]),
    ({"drafter": draft.ngram}, ["drafter", "factory"]),
    ({"verifier": draft.null()}, ["verifier", "specjax.verify"]),
    ({"constraint": lambda token: True}, ["constraint", "specjax.Constraint"]),
    ({"drafter": MODEL, "draft_params": TARGET}, ["draft_params", "function", "specjax.load_head"]),
    ({"drafter": MODEL, "draft_params": "tiny-python-draft"}, ["draft_params", "str", "`params` of"]),
])
def test_type_errors(arguments, words):
    with pytest.raises(TypeError) as error:
        call(**arguments)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_stream_raises_at_the_call():
    """Before the first round, not when the first chunk is asked for."""
    with pytest.raises(ValueError, match="max_new_tokens"):
        specjax.stream(*TARGET, PROMPTS, max_new_tokens=0)
    with pytest.raises(ValueError, match="neither key nor seed"):
        specjax.stream(*TARGET, PROMPTS, max_new_tokens=3, sampling=Sampling(temperature=1.0))


def test_features_that_the_model_lacks():
    needy = NGRAM._replace(name="needy", needs=frozenset({"hidden", "embedding"}))
    with pytest.raises(ValueError, match=r"needy.*\['embedding', 'hidden'\].*offers \['token'\]"):
        call(drafter=needy)


@pytest.mark.parametrize(("bad", "message"), [
    (lambda: draft.ngram(0), "at least 1, got 0"),
    (lambda: draft.ngram(3, max_ngram=1, min_ngram=2), "min_ngram=2"),
    (lambda: draft.ngram(3, min_ngram=0), "min_ngram must be at least 1"),
    (lambda: draft.from_model(TARGET[0], 0), "draft.null"),
])
def test_factories(bad, message):
    with pytest.raises(ValueError, match=message):
        bad()


def test_an_ngram_drafter_with_a_pq_verifier_is_exact_not_refused():
    for verifier in (verify.block(), verify.rejection()):
        for drafter in (NGRAM, draft.null()):
            specjax.speculative(TARGET[0], drafter, verifier)


def test_nothing_is_drawn_without_a_key():
    """Greedy needs none, and a raw uint32 key is as good as a typed one."""
    assert np.all(np.asarray(call().lengths) == 4)
    sampling = Sampling(temperature=1.0)
    typed, raw = (call(sampling=sampling, key=key) for key in (jax.random.key(7), jax.random.PRNGKey(7)))
    np.testing.assert_array_equal(typed.tokens, raw.tokens)
    assert jnp.any(typed.tokens != call(sampling=sampling, key=jax.random.key(8)).tokens)


def test_stream_shows_the_arguments_of_generate():
    shown, wanted = inspect.signature(specjax.stream), inspect.signature(specjax.generate)
    assert shown.parameters == wanted.parameters and shown.return_annotation != wanted.return_annotation
