"""Multi-token prediction: what each of its layers adds to the end of the stack.

A layer of multi-token prediction (Megatron-LM's core/transformer/multi_token_prediction.py) is one
more layer of the last kind, which the stack has; before it the norms of the layers' output and of
the next token's embedding, and a product of both, [tokens, 2 · hidden] by [2 · hidden, hidden],
which tensor-parallel ranks divide by columns (the gather of its output is left out); and after it
the norm, the head and the loss once more, with the same table. Here these are beside the main head,
whose ops they repeat under other names: ``mtp1.head.logits``. A head's number is the piece of its
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from simulator.schedule import OpTemplate
from simulator.templates import Templates
from simulator.values import LOGITS, Ref

_OF_HEAD: Final = LOGITS | {"head.norm", "loss.max", "loss.sum"}
"""Values that each head has; and the gradients that it makes."""


def repeated(t: Templates, ops: Iterable[OpTemplate]) -> list[OpTemplate]:
    """Return ops of the head, and each once more for every layer of multi-token prediction."""
    once, again = list(ops), range(1, t.shapes.model.num_nextn_predict_layers + 1)
    return once + [_of_head(op, k) for k in again for op in once]


def projections(t: Templates, row: int) -> list[OpTemplate]:
    """Return the norms and the product before each layer of multi-token prediction."""
    s, size, ops = t.shapes, t.shapes.hidden_bytes(row), list[OpTemplate]()
    tokens, hidden = s.tokens(row), s.model.hidden_size
    for k in range(s.model.num_nextn_predict_layers):
        name, source = f"mtp{k + 1}", Ref("x", row)
        norms = s.pointwise(s.model.norm, 2 * size, 2 * size)
        norm = t.op(f"{name}.norms", row, norms, (source,), Ref(f"{name}.norms", row), 2 * size)
        product = s.gemm(tokens, hidden // s.cluster.tp, 2 * hidden, "forward")
        made = t.op(f"{name}.proj", row, product, norm.writes, Ref(f"{name}.proj", row), size)
        ops += [norm, made]
    return ops


def projections_bwd(
    t: Templates, row: int, grad: tuple[Ref, ...], adding: Sequence[tuple[Ref, tuple[Ref, ...]]]
) -> list[OpTemplate]:
    """Return the backward of ``projections`` from the gradient of the stack's output. ``adding``:
    each product's main gradient, and the one that it adds to."""
    s, size, ops = t.shapes, t.shapes.hidden_bytes(row), list[OpTemplate]()
    tokens, hidden = s.tokens(row), s.model.hidden_size
    width = hidden // s.cluster.tp
    for k, (gradient, before) in enumerate(adding):
        name = f"mtp{k + 1}"
        kept = Ref(f"{name}.norms", row)
        dgrad = t.op(
            f"{name}.proj_dgrad", row, s.gemm(tokens, 2 * hidden, width, "dgrad"), grad,
            Ref(f"{name}.norms", row).grad, 2 * size,
        )  # fmt: skip
        wgrad = t.accumulated(
            f"{name}.proj_wgrad", row, s.gemm(width, 2 * hidden, tokens, "wgrad"), (*grad, kept),
            gradient, before,
        )  # fmt: skip
        norms = s.pointwise(f"{s.model.norm}_bwd", 4 * size, 2 * size)
        reads = (*dgrad.writes, kept)
        ops += [dgrad, *wgrad, t.op(f"{name}.norms_bwd", row, norms, reads, Ref(name, row).grad, 0)]
    return ops


def _of_head(op: OpTemplate, head: int) -> OpTemplate:
    """Return an op of the main head as that of a further one."""
    reads, writes = (
        tuple(ref._replace(piece=head) if _differs(ref) else ref for ref in refs)
        for refs in (op.reads, op.writes)
    )
    return op._replace(role=f"mtp{head}.{op.role}", reads=reads, writes=writes)


def _differs(ref: Ref) -> bool:
    """Return whether each head has such a value of its own."""
    made = ref.kind == "main_gradient" or (ref.kind == "gradient" and ref.what == "x")
    return made or ref.what in _OF_HEAD
