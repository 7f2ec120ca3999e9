"""Verifiers: what is kept. All of these leave the target's law as it is."""

from specjax._src.verify.block import block as block
from specjax._src.verify.law import Plan as Plan
from specjax._src.verify.match import match as match
from specjax._src.verify.rejection import rejection as rejection

__all__ = ["Plan", "block", "match", "rejection"]
