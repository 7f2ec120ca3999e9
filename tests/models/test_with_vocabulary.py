"""Models of one tokenizer whose heads are padded to different widths."""

import numpy as np
import pytest

import specjax
from specjax import testing
from specjax.models import with_vocabulary


def test_a_padded_draft_and_a_padded_target_speculate_over_the_real_vocabulary():
    target, draft = testing.random_trigram(0, 8), testing.random_trigram(1, 10)
    prompts = [[1, 2, 3], [4]]
    wide = specjax.draft.from_model(draft[0], 3)
    with pytest.raises(ValueError, match="10 tokens and the target 8.*with_vocabulary"):
        specjax.generate(*target, prompts, drafter=wide, draft_params=draft[1], max_new_tokens=6)
    model = with_vocabulary(target[0], 7)
    drafter = specjax.draft.from_model(with_vocabulary(draft[0], 7), 3)
    out = specjax.generate(model, target[1], prompts, drafter=drafter, draft_params=draft[1], max_new_tokens=6)
    plain = specjax.generate(model, target[1], prompts, max_new_tokens=6)
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    assert np.all(out.tokens < 7)
    with pytest.raises(ValueError, match="8 tokens, fewer than the 9"):
        specjax.generate(with_vocabulary(target[0], 9), target[1], prompts, max_new_tokens=2)
