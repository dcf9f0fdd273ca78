"""What users do around ``apply``, group by group; importing it registers all in ``ACTIONS``."""

from tests.real.domino_tune.runtime.huggingface.actions import (
    around,
    before,
    checkpoints,
    given,
    loops,
)

ACTIONS = given.ACTIONS
Given = given.Given
as_by_torchrun = given.as_by_torchrun

__all__ = ["ACTIONS", "Given", "around", "as_by_torchrun", "before", "checkpoints", "loops"]
