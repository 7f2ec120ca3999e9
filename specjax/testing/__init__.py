"""The test kit: toy models, slow references, the exact law, statistics, mistakes that must be caught.

Start with `check_model(model, params)` for a model of your own. The rest is what specjax's own tests are made of and
serves those who write a drafter or a verifier (CONTRIBUTING.md shows how).
"""

from specjax.testing import broken as broken
from specjax.testing import controls as controls
from specjax.testing import exact as exact
from specjax.testing import reference as reference
from specjax.testing import statistics as statistics
from specjax.testing import trees as trees
from specjax.testing.check_model import Report as Report
from specjax.testing.check_model import check_model as check_model
from specjax.testing.stateful import recurrent as recurrent
from specjax.testing.stateful import ring as ring
from specjax.testing.toys import bigram as bigram
from specjax.testing.toys import blend as blend
from specjax.testing.toys import random_trigram as random_trigram
from specjax.testing.toys import script as script
from specjax.testing.toys import table as table
from specjax.testing.toys import trigram as trigram
from specjax.testing.traces import assert_no_compilation as assert_no_compilation
from specjax.testing.traces import count_traces as count_traces
from specjax.testing.transformer import tiny_transformer as tiny_transformer

__all__ = [
    "Report",
    "assert_no_compilation",
    "bigram",
    "blend",
    "broken",
    "check_model",
    "controls",
    "count_traces",
    "exact",
    "random_trigram",
    "recurrent",
    "reference",
    "ring",
    "script",
    "statistics",
    "table",
    "tiny_transformer",
    "trees",
    "trigram",
]
