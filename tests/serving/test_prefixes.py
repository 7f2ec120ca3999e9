"""A shared prefix is read once; texts and acceptance are those without it."""

from dataclasses import replace

import numpy as np
import pytest
from fleet import assert_same, engine, gather, solo

from specjax import Sampling, testing

SYSTEM = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 7, 7, 2, 3, 2, 3, 0, 4, 6, 2, 6]
TAILS = [[], [1], [2, 2, 7], [0] * 17, SYSTEM[:19]]


def requests():
    return [{"prompt": SYSTEM + tail, "sampling": Sampling(temperature=0.8 * (number % 2), seed=number)}
            for number, tail in enumerate(TAILS)]


@pytest.mark.parametrize("pair", ["model-block", "eagle-auto", pytest.param("ngram-match", marks=pytest.mark.slow),
                                  pytest.param("fallback-auto", marks=pytest.mark.slow)])
def test_read_once_and_never_noticed(pair):
    sharing, reading = engine(pair), engine(pair)
    sharing.add_prefix(SYSTEM)
    for request in requests():
        sharing.submit(**request)
        reading.submit(**request)
    texts, without = gather(sharing.run()), gather(reading.run())
    for number, request in enumerate(requests()):
        assert_same(texts[number], without[number])
        assert_same(texts[number], solo(request, pair))
    # The last token of a text is the root of its first round: it is not read beforehand.
    tails = sum(len(tail) for tail in TAILS)
    assert sharing.tokens_read == len(SYSTEM) - 1 + tails
    assert reading.tokens_read == len(TAILS) * (len(SYSTEM) - 1) + tails


def test_a_cache_that_is_no_list_of_positions():
    """The state of a ring of eight tokens is stored whole, as any other."""
    ring = testing.ring(0, 8)
    sharing = engine("ngram-match", toy=ring)
    sharing.add_prefix(SYSTEM)
    for request in requests():
        sharing.submit(**request)
    texts = gather(sharing.run())
    for number, request in enumerate(requests()):
        assert_same(texts[number], solo(request, toy=ring))
    assert sharing.tokens_read == len(SYSTEM) - 1 + sum(len(tail) for tail in TAILS)


def test_the_stored_row_is_what_is_used():
    """A prefix that was tampered with is heard in the texts: they do come from it."""
    sharing = engine("ngram-match")
    sharing.add_prefix([1] + SYSTEM[1:])
    while not sharing.idle:
        sharing.step()
    prefix = sharing._reader._prefixes[0]
    prefix.ticket.prompt = tuple(SYSTEM)
    cache = np.asarray(prefix.row.cache)
    prefix.row = replace(prefix.row, cache=(cache + 1) % 8)
    tailless = requests()[0]
    sharing.submit(**tailless)
    with pytest.raises(AssertionError):
        assert_same(gather(sharing.run())[0], solo(tailless))


def test_the_longest_one_counts_and_none_is_forgotten_unasked():
    sharing = engine("ngram-match", max_prefixes=2)
    short, long = sharing.add_prefix(SYSTEM[:5]), sharing.add_prefix(SYSTEM)
    with pytest.raises(ValueError, match="2 prefixes.*drop_prefix"):
        sharing.add_prefix([1])
    while not sharing.idle:
        assert sharing.step() == [], "a prefix is no request"

    def read_by(prompt):
        before = sharing.tokens_read
        sharing.submit(prompt, max_new_tokens=1)
        gather(sharing.run())
        return sharing.tokens_read - before

    assert sharing.tokens_read == len(SYSTEM) - 1, "the long one began with the short one"
    assert [read_by(prompt) for prompt in (SYSTEM, SYSTEM[:20], [7] * 9)] == [0, 15, 8]
    assert sharing.drop_prefix(long) and not sharing.drop_prefix(long)
    assert read_by(SYSTEM) == 16
    assert sharing.drop_prefix(short) and read_by(SYSTEM) == 20
    waiting = sharing.add_prefix(SYSTEM)
    assert sharing.drop_prefix(waiting) and sharing.idle
    with pytest.raises(ValueError, match="there is no prefix 3"):
        sharing.drop_prefix(3)
