"""Names that options take, and the options that several commands share."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class DrafterName(enum.StrEnum):
    """Who proposes."""

    MODEL = "model"
    NGRAM = "ngram"
    MEDUSA = "medusa"
    EAGLE = "eagle"
    EAGLE2 = "eagle2"
    EAGLE3 = "eagle3"
    SELF = "self"
    NONE = "none"


class VerifierName(enum.StrEnum):
    """Which rule keeps the proposals; `auto` is what `specjax.generate` chooses for the drafter."""

    AUTO = "auto"
    MATCH = "match"
    REJECTION = "rejection"
    BLOCK = "block"
    SPECINFER = "specinfer"
    WITHOUT_REPLACEMENT = "without_replacement"
    HYBRID = "hybrid"
    TRAVERSAL = "traversal"


class SiblingsName(enum.StrEnum):
    """How the children of a node of a tree come about when a row samples."""

    CHOSEN = "chosen"
    HYBRID = "hybrid"
    WITHOUT_REPLACEMENT = "without_replacement"
    INDEPENDENT = "independent"


class PeerName(enum.StrEnum):
    """Another library to measure beside."""

    TRANSFORMERS = "transformers"


class TrainKind(enum.StrEnum):
    """What can be trained."""

    MEDUSA = "medusa"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    DRAFT = "draft"


Target = Annotated[str, typer.Option(help="Target model: a name or a checkpoint folder.")]
Draft = Annotated[
    str | None, typer.Option(help="Draft model or head: a name or a folder. Default: the one made for the target.")
]
DrafterOption = Annotated[
    DrafterName,
    typer.Option(help="Who proposes: a draft model, look-up in the text so far, heads on the target's features "
                      "(medusa, eagle, eagle2, eagle3), the first two thirds of the target's own layers (self), or "
                      "nobody (none)."),
]
VerifierOption = Annotated[VerifierName, typer.Option(help="Which rule keeps the proposals; all of them are exact.")]
NumNodes = Annotated[
    int | None,
    typer.Option(min=2, help="Nodes of a tree, the root included; k + 1 of them are a chain, which is drawn. Default: "
                 "the drafter's usual tree."),
]
SiblingsOption = Annotated[
    SiblingsName | None,
    typer.Option(help="How the children of a node of a tree come about when temperature > 0. Default: the drafter's."),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="The most tokens to write.")]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token.")]
TopP = Annotated[float, typer.Option(help="Keep the smallest set of tokens of this mass.")]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers; used where temperature > 0.")]
