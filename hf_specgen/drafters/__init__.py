"""Where candidates come from."""

from .base import Drafter
from .generator import GeneratorDrafter
from .model import ModelDrafter

__all__ = ["Drafter", "GeneratorDrafter", "ModelDrafter"]
