"""Log-probabilities of every emitted token, under the target's law and its raw softmax, against numpy."""

import numpy as np
import pytest
from scenarios import BAD, BUDGET, PROMPTS, ROWS, TARGET, assert_same_text, generate, texts

from specjax import Sampling
from specjax.testing import reference

SAMPLING = Sampling(
    temperature=np.array([1.0, 0.0, 0.7, 1.5, 1.0, 1.0, 0.0, 1.0]), top_p=np.array([1.0, 1, 0.8, 1, 1, 0.9, 1, 1]),
    frequency_penalty=np.array([0.0, 0.5, 0, 0, 0.7, 0, 0, 0]), seed=np.arange(ROWS) + 2)


def direct(row, text):
    """What the two records should hold for one row."""
    logits = np.asarray(TARGET[1]["logits"], np.float64)
    settings = Sampling(**{name: value if value is None or np.ndim(value) == 0 else value[row]
                           for name, value in vars(SAMPLING).items()})
    law, raw = [], []
    for place, token in enumerate(text):
        line = [-1, *PROMPTS[row], *text[:place]]
        scores = logits[line[-2] + 1, line[-1]]
        law.append(np.log(reference.target_law(scores, settings, PROMPTS[row], text[:place], [6])[token]))
        raw.append(scores[token] - np.log(np.sum(np.exp(scores))))
    return law, raw


@pytest.mark.parametrize("pair", ["ngram-match", "model-block"])
def test_logprobs(pair):
    """Bug log J5: the right position, of the target and not of the draft, cut with the tokens, 0 behind the end."""
    out = generate(pair, sampling=SAMPLING, logprobs=True, eos_ids=[6], draft_params=BAD[1])
    for row, text in enumerate(texts(out)):
        law, raw = direct(row, text)
        rest = [0.0] * (BUDGET - len(text))
        np.testing.assert_allclose(out.logprobs[row], law + rest, atol=2e-5)
        np.testing.assert_allclose(out.raw_logprobs[row], raw + rest, atol=2e-5)
    greedy = SAMPLING.temperature == 0
    assert np.all(out.logprobs[greedy] == 0) and np.all(out.raw_logprobs[greedy, 0] < 0)
    assert len({len(text) for text in texts(out)}) > 2


def test_asking_for_them_changes_no_text():
    one, two = (generate("model-block", sampling=SAMPLING, logprobs=asked, draft_params=BAD[1], eos_ids=[6])
                for asked in (False, True))
    assert_same_text(one, two)
    assert one.logprobs is None and one.raw_logprobs is None
