"""What is asked of a benchmark."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is asked for.

    Attributes:
      depths: k, the numbers of speculative tokens to try.
      temperature, top_p, seed: how the texts are drawn; the cost of sampling is measured in any case.
      max_new_tokens: budget of a text.
      loop_tokens: budget of the loops that are timed without prompt; None is that of a text.
      repeats: times each step and round is measured.
      text_repeats: times each text is written; None is `repeats`.
      peer: another library that writes the same texts, or "".
    """

    depths: list[int]
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    max_new_tokens: int = 128
    loop_tokens: int | None = None
    repeats: int = 11
    text_repeats: int | None = None
    peer: str = ""

    def resolved(self) -> Settings:
        """The same with every default spelled out."""
        return dataclasses.replace(
            self, loop_tokens=self.loop_budget, text_repeats=self.repeats_of_texts)

    @property
    def loop_budget(self) -> int:
        """Tokens a timed loop writes."""
        return self.max_new_tokens if self.loop_tokens is None else self.loop_tokens

    @property
    def repeats_of_texts(self) -> int:
        """Times each text is written."""
        return self.repeats if self.text_repeats is None else self.text_repeats
