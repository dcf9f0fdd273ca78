"""Values: what ops write and read.

A value is made once, by the op that writes it; who reads it names it by the same fields. Printed,
``s0.attn.qkv`` is the output of that GEMM of slice 0, ``s0.attn.proj.1`` a column piece, and
``….ar`` the same piece after its all-reduce. ``d.…`` are gradients, ``again.…`` what backward
recomputed, ``grad.attn.qkv.s1`` the main gradient of a weight after slice 1 was added to it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["forward", "again", "gradient", "main_gradient"]
_MARKS: Final[dict[Kind, str]] = {"forward": "", "again": "again.", "gradient": "d."}
IN_PLACE: Final = frozenset({"ar", "rope", "qk_norm", "own"})
"""Forms that are in their predecessor's memory, or it in theirs."""
OF_BACKWARD: Final = frozenset({"ag_bwd", "across"})
"""Forms that backward makes of a forward value."""
LOGITS: Final = frozenset({"logits", "uncapped", "fp32.logits"})
"""What logits are called; their gradients overwrite them."""


class Ref(NamedTuple):
    """A value, as an op of a layer refers to it.

    ``what`` it is, mostly the role of the op that makes it; ``slice`` and ``piece``: its row slice
    and column piece, −1 where it is of all; ``forms``: what became of it since, in order (``ag``:
    gathered); ``earlier``: it is of the micro-batch before; ``layer``: relative to the op's.
    """

    what: str
    slice: int = -1
    piece: int = -1
    kind: Kind = "forward"
    forms: tuple[str | int, ...] = ()
    earlier: bool = False
    layer: int = 0

    @property
    def grad(self) -> Ref:
        """The gradient of an activation."""
        return Ref(self.what, self.slice, self.piece, "gradient", *self[4:])

    @property
    def again(self) -> Ref:
        """The value as backward recomputes it."""
        return self._replace(kind="again")

    def at(self, layer: int) -> Ref:
        """Return the value of that name in another layer, relative to the op's."""
        return self._replace(layer=layer)

    def form(self, *forms: str | int) -> Ref:
        """Return what becomes of the value."""
        what, row, piece, kind, before, earlier, layer = self
        return Ref(what, row, piece, kind, (*before, *forms), earlier, layer)

    @property
    def bare(self) -> str:
        """Its name without kind and slice."""
        return _dotted(self.what, self.piece, self.forms)

    @property
    def is_forward(self) -> bool:
        """Whether forward made it, of a slice."""
        made_back = bool(self.forms) and self.forms[-1] in OF_BACKWARD
        return self.kind == "forward" and self.slice >= 0 and not made_back

    @property
    def is_logits(self) -> bool:
        """Whether it is logits, or their gradient."""
        return self.what in LOGITS and not self.forms

    @property
    def storage(self) -> Ref:
        """The value whose memory it uses."""
        found = self
        if self.kind == "gradient" and self.is_logits:
            what = "logits" if self.what == "uncapped" else self.what
            found = self._replace(kind="forward", what=what)
        count = len(found.forms)
        while count and found.forms[count - 1] in IN_PLACE:
            count -= 1
        return found if count == len(found.forms) else found._replace(forms=found.forms[:count])

    def __str__(self) -> str:
        earlier = "earlier." if self.earlier else ""
        if self.kind == "main_gradient":
            rows = (f"s{self.slice}",) if self.slice >= 0 else ()
            return f"{earlier}grad.{_dotted(self.what, self.piece, (*rows, *self.forms))}"
        row = f"s{self.slice}." if self.slice >= 0 else ""
        return f"{earlier}{_MARKS[self.kind]}{row}{self.bare}"


def main_gradient(weight: str, row: int = -1) -> Ref:
    """Return the main gradient of a weight after slice ``row``, or all slices, were added."""
    return Ref(weight, row, kind="main_gradient")


def _dotted(what: str, piece: int, forms: tuple[str | int, ...]) -> str:
    number = (piece,) if piece >= 0 else ()
    return ".".join(map(str, (what, *number, *forms)))
