"""What cannot be copied, and says so."""

from __future__ import annotations

from typing import Any, ClassVar

from simulator.errors import InputError


class NotCopied:
    """A part of a model that plays a plan; ``deepcopy`` and ``pickle`` raise InputError."""

    def __reduce_ex__(self, _: Any) -> Any:
        raise InputError(
            "A model that plays a plan is not copied: its layers are one with process groups. For "
            "an average of weights, keep clones of its parameters; for a second model, load it "
            "again and apply the plan; for a file, save_pretrained."
        )


class InParts(dict[str, Any]):
    """A state dict with this rank's part only. A file of it would be loaded as if it were whole, so
    ``pickle`` raises InputError with ``refusal``."""

    refusal: ClassVar[str]

    def __reduce_ex__(self, _: Any) -> Any:
        raise InputError(self.refusal)
