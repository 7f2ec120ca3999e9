"""Names that options take, and the options that several commands share."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class DrafterName(enum.StrEnum):
    """Who proposes."""

    MODEL = "model"
    NGRAM = "ngram"
    NONE = "none"


class VerifierName(enum.StrEnum):
    """Which rule keeps the proposals; `auto` is block verification for a draft model, match for look-up."""

    AUTO = "auto"
    MATCH = "match"
    REJECTION = "rejection"
    BLOCK = "block"


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
    str | None, typer.Option(help="Draft model: a name or a folder. Default: the one made for the target.")
]
DrafterOption = Annotated[
    DrafterName, typer.Option(help="Who proposes: a draft model, look-up in the text so far, or nobody (plain).")
]
VerifierOption = Annotated[VerifierName, typer.Option(help="Which rule keeps the proposals; all of them are exact.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="The most tokens to write.")]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token.")]
TopP = Annotated[float, typer.Option(help="Keep the smallest set of tokens of this mass.")]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers; used where temperature > 0.")]
