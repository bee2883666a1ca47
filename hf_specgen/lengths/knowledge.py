"""What one call can tell the next: costs and acceptance. A session keeps it, a tuned configuration carries it."""

from __future__ import annotations

from dataclasses import dataclass, field

from .acceptance import Acceptance
from .costs import Costs


@dataclass
class Knowledge:
    """Attributes:
    costs: `Costs.to_dict()` of the last call that measured any, or None.
    acceptance: of all calls, newer ones counting more.
    """

    costs: dict | None = None
    acceptance: Acceptance = field(default_factory=Acceptance)

    def to_dict(self) -> dict:
        return {"costs": self.costs, "acceptance": self.acceptance.to_dict()}

    @classmethod
    def from_dict(cls, data: dict) -> Knowledge:
        """Raises ValueError for anything but what `to_dict` has written."""
        try:
            found = cls(data["costs"], Acceptance.from_dict(data["acceptance"]))
            if found.costs is not None:
                Costs(1.0, None, 0.0).take(found.costs)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"This is no saved knowledge of costs and acceptance ({error!r}).") from None
        return found
