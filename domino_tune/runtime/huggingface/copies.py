"""What cannot be copied, and says so."""

from __future__ import annotations

from typing import Any, ClassVar

from simulator.errors import InputError


class NotCopied:
    """A part of a model that plays a plan, at which ``deepcopy`` and ``pickle`` end."""

    def __reduce_ex__(self, _: Any) -> Any:
        raise InputError(
            "A model that plays a plan is not copied: its layers are one with process groups. For "
            "an average of weights, keep clones of its parameters; for a second model, load it "
            "again and apply the plan; for a file, save_pretrained."
        )


class InParts(dict[str, Any]):
    """A state of which this rank has its part: a file of it would be loaded as that of all, so
    ``pickle`` ends with ``refusal``."""

    refusal: ClassVar[str]

    def __reduce_ex__(self, _: Any) -> Any:
        raise InputError(self.refusal)
