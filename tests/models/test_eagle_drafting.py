"""EAGLE with real heads: what the head's cache holds after any number of rounds, and what is drafted from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drafting import (
    BUDGET,
    CONFIG,
    DEPTH,
    MIXED,
    PATHS,
    PROMPTS,
    ROWS,
    Begun,
    V,
    head,
    proposed,
    slow,
    slow_rows,
    texts_of,
)
from drafting import target as make_target
from flax import nnx

import specjax
from specjax import Params, Sampling, draft, verify
from specjax.models import Eagle, EagleConfig, head_from_nnx

pytestmark = pytest.mark.slow

CAPACITY = 40
GROWN = {
    "chain": (DEPTH,), "tree": (PATHS,), "apart": (PATHS, "without_replacement"), "dynamic": (8, DEPTH, 3, 3),
    "chosen": (8, DEPTH, 3, 0)}


def drafter_of(family, name):
    """The drafter and the sizes of its dynamic tree, or None."""
    functions, _ = head(family)
    args = GROWN[name]
    if name in ("dynamic", "chosen"):
        make = draft.eagle3 if family == "eagle3" else draft.eagle2
        return make(functions, *args[:3], drawn=args[3]), args
    return draft.eagle(functions, args[0], siblings=args[1] if len(args) > 1 else "hybrid"), None


def begin(family, name, tokens=0, verifier=None, prompts=PROMPTS, **arguments):
    """A decoder of this head after prefill and `tokens` more tokens."""
    model, params = make_target()
    decoder = specjax.speculative(model, drafter_of(family, name)[0], verifier)
    both = Params(params, head(family)[1])
    arguments = {"sampling": MIXED, "capacity": CAPACITY, "max_new_tokens": BUDGET, **arguments}
    state = decoder.init(both, prompts, **arguments)
    if tokens:
        state = jax.jit(decoder.run)(both, state, tokens)
    return Begun(decoder, both, state)


def same_state(state, fresh):
    """The head's cache and its last word are those of another state of the same text; dead entries do not count."""
    np.testing.assert_array_equal(state.length, fresh.length)
    np.testing.assert_array_equal(state.draft.length, fresh.draft.length)
    np.testing.assert_array_equal(state.draft.length, np.asarray(state.length) - 1)
    some = np.asarray(state.draft.length) > 0
    np.testing.assert_allclose(state.draft.hidden[some], fresh.draft.hidden[some], atol=2e-4)
    for one, other in zip(jax.tree.leaves(state.draft.cache), jax.tree.leaves(fresh.draft.cache), strict=True):
        slots = min(one.shape[2], other.shape[2])
        kept = np.arange(slots) < np.asarray(state.draft.length)[:, None, None, None]
        kept = np.moveaxis(kept, 3, 2)
        np.testing.assert_allclose(np.where(kept, one[:, :, :slots], 0), np.where(kept, other[:, :, :slots], 0),
                                   atol=2e-4)


@pytest.mark.parametrize(("family", "name"), [("eagle", "chain"), ("eagle", "tree"), ("eagle3", "dynamic")])
def test_entries_from_guesses_are_redone_with_the_targets_features(family, name):
    """After rounds that kept 0 to all of their tokens the state is that of a prefill of the same text, and so it is
    after `extend`, and after rounds without drafting."""
    begun = begin(family, name, 7, num_speculative_tokens=np.array([DEPTH, 1, DEPTH, 0, DEPTH]))
    kept = np.asarray(begun.state.stats.accepted_per_round)[np.asarray(begun.state.stats.drafted_per_round) > 0]
    assert len(set(kept.tolist())) > 1, "always as many tokens kept: the case is too easy"
    more = jnp.asarray(np.arange(15).reshape(ROWS, 3) % V, jnp.int32)
    extended = jax.jit(begun.decoder.extend)(begun.params, begun.state, more, jnp.array([3, 0, 1, 2, 3]))
    for state in (begun.state, extended):
        lines = texts_of(state)
        prompts = np.zeros((ROWS, 32), np.int32)
        for row, line in enumerate(lines):
            prompts[row, : len(line)] = line
        fresh = begin(family, name, prompts=prompts, lengths=np.array([len(line) for line in lines]))
        same_state(state, fresh.state)


@pytest.mark.parametrize(("family", "name", "verifier"), [
    ("eagle", "chain", None), ("eagle", "tree", None), ("eagle", "dynamic", None), ("eagle", "chosen", verify.match()),
    ("eagle3", "tree", verify.match()), ("eagle3", "apart", None), ("eagle3", "dynamic", None)])
def test_drafts_equal_those_from_scratch(family, name, verifier):
    """Each node's law is that of the head run over the whole of its own path, without any cache: a wrong mask, position
    or shift would show. After the prefill (no feature for the prompt of one token), and after some rounds."""
    drafter, sizes = drafter_of(family, name)
    drafted = 0
    for tokens in (0, 5):
        begun = begin(family, name, tokens, verifier)
        tree = proposed(begun, drafter)
        for row, one in enumerate(slow_rows(begun, head(family)[0], make_target())):
            if one is None:
                assert not np.any(tree.valid[row, 1:])
                continue
            drafted += int(tree.valid[row].sum()) - 1
            if sizes is None:
                kind, shape = drafter.siblings, drafter.shape
                want = slow.static_tree(one, kind, shape.parents, shape.ranks)
                assert tree.tokens[row].tolist() == want.tokens and tree.valid[row].tolist() == want.valid
                for node, law in want.laws.items():
                    if law is not None:
                        np.testing.assert_allclose(np.exp(tree.draft_logits[row, node]), law, atol=1e-3)
            else:
                grown = slow.dynamic_tree(one, *sizes)
                assert by_text(tree, row) == (grown.chosen, {path: token for path, (token, _) in grown.drawn.items()})
    assert drafted > 20


def by_text(tree, row):
    """The texts of the chosen nodes, and the drawn token behind each text that has one."""
    paths, drawn = {0: ()}, np.asarray(tree.drawn[row]) & (tree.draft_logits is not None)
    for node in range(1, tree.tokens.shape[1]):
        if tree.valid[row, node]:
            paths[node] = (*paths[int(tree.parents[row, node])], int(tree.tokens[row, node]))
    return ({path for node, path in paths.items() if node and not drawn[node]},
            {path[:-1]: path[-1] for node, path in paths.items() if drawn[node]})


@pytest.mark.parametrize("family", ["eagle", "eagle3"])
def test_prompts_longer_than_a_chunk(family):
    """Prefill reads 256 tokens at a time; the head's word behind them is that of one pass over the whole prompt."""
    random = np.random.default_rng(4)
    prompts = [random.integers(0, V, length).tolist() for length in (300, 256, 257, 5, 2)]
    begun = begin(family, "tree", prompts=prompts, capacity=330, num_speculative_tokens=DEPTH)
    functions, params = head(family)
    got = functions.score(params, begun.state.draft.hidden[:, None])[:, 0]
    for row, one in enumerate(slow_rows(begun, functions, make_target(), room=320)):
        np.testing.assert_allclose(np.maximum(got[row], -1e9), one.scores(prompts[row]), atol=2e-3)


@pytest.mark.parametrize(("family", "name"), [
    ("eagle", "tree"), ("eagle", "chain"), ("eagle", "chosen"), ("eagle3", "dynamic")])
def test_text_is_that_of_plain_decoding(family, name):
    """Greedy under any verifier, sampled under match; and a row alone is the row in a batch."""
    model, params = make_target()
    drafter, _ = drafter_of(family, name)

    def write(drafter, sampling, verifier=None, prompts=PROMPTS):
        out = specjax.generate(model, params, prompts, drafter=drafter, verifier=verifier, sampling=sampling,
                               draft_params=head(family)[1] if drafter else None, max_new_tokens=BUDGET)
        return [row[:length].tolist() for row, length in zip(np.asarray(out.tokens), out.lengths, strict=True)], out

    want, _ = write(None, Sampling())
    text, out = write(drafter, Sampling())
    assert text == want and out.stats.accepted.sum() > 0
    text, out = write(drafter, MIXED, verify.match())
    assert text == write(None, MIXED)[0] and out.stats.accepted.sum() > 0
    together, out = write(drafter, MIXED)
    copies = Sampling(**{name: value if np.ndim(value) == 0 else np.repeat(value[3:4], ROWS)
                         for name, value in vars(MIXED).items() if value is not None})
    alone, solo = write(drafter, copies, prompts=[PROMPTS[3]] * ROWS)
    assert alone == [together[3]] * ROWS
    np.testing.assert_array_equal(solo.stats.accepted_per_round[0], out.stats.accepted_per_round[3])


def test_a_right_head_is_accepted():
    """A target of one layer, and a head that is this layer on the embeddings of the tokens: it knows the next feature
    but for the first token of the text, which it has not read. With its halves swapped it knows nothing."""
    config = specjax.models.DecoderConfig(**{**vars(CONFIG), "num_layers": 1, "rms_norm_eps": 1e-8})
    model, params = make_target(config, 5)
    embedding = params["embedding"]
    embedding = embedding / jnp.sqrt(jnp.mean(embedding**2, -1, keepdims=True))  # the first norm changes nothing then
    ones = jnp.ones(config.hidden_size)
    layer = {**params["layers"]["0"], "attention_norm": {"scale": ones}}
    params = {**params, "embedding": embedding, "layers": {"0": layer}, "norm": {"scale": ones}}
    functions, own = head("eagle", config, 5)
    own = jax.tree.map(lambda leaf: leaf, own)
    own["layers"] = {"0": {name: part for name, part in layer.items() if name != "attention_norm"}}
    eye, zero = jnp.eye(config.hidden_size), jnp.zeros((config.hidden_size, config.hidden_size))
    single, _ = single_layer(config)
    rates = []
    for halves in ((eye, zero), (zero, eye)):
        weights = {**own, "embedding": embedding, "head": params["head"], "fc": jnp.concatenate(halves),
                   **({"fc_bias": jnp.zeros(config.hidden_size)} if "fc_bias" in own else {})}
        out = specjax.generate(model, params, [prompt * 4 for prompt in PROMPTS[1:4]], draft_params=weights,
                               drafter=draft.eagle(single, DEPTH), max_new_tokens=24)
        rates.append(float(out.stats.accepted.sum() / out.stats.drafted.sum()))
    assert rates[0] > 0.9 and rates[1] < rates[0] - 0.3, rates


def single_layer(config):
    return head_from_nnx(nnx.eval_shape(lambda: Eagle(EagleConfig.for_target(config), rngs=nnx.Rngs(0))))
