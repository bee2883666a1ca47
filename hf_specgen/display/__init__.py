"""What a person sees, in terminals and in notebooks. Colours of where tokens come from are defined in `origins`."""

from .origins import DRAFT, LOOKUP, TARGET, Origin, origin
from .text import OriginText, OriginTexts, coloured

__all__ = ["DRAFT", "LOOKUP", "TARGET", "Origin", "OriginText", "OriginTexts", "coloured", "origin"]
