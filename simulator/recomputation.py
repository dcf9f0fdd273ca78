"""Recomputation: which values backward computes again, and who reads them.

``full`` is each layer's whole forward pass, ``selective`` modules of it (Megatron-LM's words,
``simulator/modules.py``), the attention core where nothing else is asked for.
``per-op`` is torchtitan's choice, ``selective_ac_option = "op"`` under ``torch.compile``: it keeps
attention's output, what reduce-scatters give and every second matmul, counted over wq, wk, wv, wo,
w1, w3, w2; so norms, gathers, keys, half of a gated fc1 and activations are computed again, and a
gather's value serves the wgrad, too. Sums other than reduce-scatters are not kept, so it is
simulated with sequence parallelism (torchtitan/models/llama3/infra/parallelize.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

from simulator.attention import SCORES
from simulator.issue_order import COLUMN_PARALLEL
from simulator.modules import OUTPUTS, REPLAYS, Replay, fitting, plays
from simulator.schedule import RECOMPUTED_SUFFIX, OpTemplate
from simulator.shapes import Shapes
from simulator.values import Ref

DROPPED: Final = "dropped"
"""Form of the part of a GEMM's output that forward does not keep."""
_PER_OP: Final = frozenset(
    {
        "attn.norm", "attn.norm.ag", "attn.qk", "attn.qk.rope", "attn.qkv.rope", "attn.post_norm",
        "y", "mlp.norm", "mlp.norm.ag", "mlp.act",
    }
)  # fmt: skip
"""Values of which ``per-op`` keeps nothing."""
_PER_OP_CORE: Final = ("attn.qk_norm", "attn.rope")
"""Ops between the GEMM of qkv and the attention kernel, whose output is kept."""


class Recomputation:
    """What backward computes again in the layers of ``shapes``."""

    def __init__(self, shapes: Shapes, plain: Callable[[str, str], list[OpTemplate]]) -> None:
        self.kind = shapes.workload.recompute
        self._shapes, self._plain = shapes, plain
        modules = shapes.workload.modules
        self._modules = fitting(modules, experts=shapes.model.num_experts > 0)

    def sources(self, block: str, fragment: str) -> tuple[str, ...]:
        """Return the fragments whose forward ops the token of ``fragment`` may repeat."""
        found = [
            name for replay in self._replays(block) for name in replay.tokens.get(fragment, ())
        ]
        return tuple(dict.fromkeys(found)) or (fragment,)

    def ops(self, block: str, fragment: str, ops: list[OpTemplate]) -> list[OpTemplate]:
        """Return those of a token's forward ops that backward repeats."""
        if self.kind == "selective":
            replays = [one for one in self._replays(block) if fragment in one.tokens]
            return [op for op in ops if any(self._plays(one, op.role) for one in replays)]
        if self.per_op and fragment == "core_attn":
            return [op for op in ops if op.role in _PER_OP_CORE]
        return ops

    def again(self, op: OpTemplate) -> OpTemplate:
        """Return the op that repeats ``op``."""
        reads = tuple(one for ref in op.reads for one in self.read(ref))
        writes = tuple(ref.again for ref in op.writes)
        return op._replace(role=f"{op.role}{RECOMPUTED_SUFFIX}", reads=reads, writes=writes)

    def reading(self, op: OpTemplate, fragment: str) -> OpTemplate:
        """Return a backward op of ``fragment`` that reads recomputed values instead of those that
        forward wrote."""
        if self.kind == "none":
            return op
        if self.kind == "selective":
            core = self._core_roles if fragment == "core_attn_bwd" else ()
            made = {name for name, output in self._made.items() if not output}.union(core)
            reads = dict.fromkeys(
                ref.again if ref.is_forward and ref.bare in made else ref for ref in op.reads
            )
            return op._replace(reads=tuple(reads))
        reads = dict.fromkeys(one for ref in op.reads for one in self.read(ref))
        return op._replace(reads=tuple(reads))

    def read(self, ref: Ref) -> tuple[Ref, ...]:
        """Return the values that an op which plays again reads in the place of ``ref``."""
        if not ref.is_forward:
            return (ref,)
        if self.kind == "full":
            kept = ref.layer == 0 and ref.bare == "x"
            return (ref,) if kept else (ref.again,)
        value = ref.bare
        if self.kind == "selective":
            played = value in self._made or value in self._core_roles
            return (ref.again,) if played else (ref,)
        if value in self.parts:
            return ref, ref.again
        return (ref.again,) if value in _PER_OP else (ref,)

    @property
    def _core_roles(self) -> tuple[str, ...]:
        """Roles of a core that is recomputed; their values have the same names."""
        if "core_attn" not in self._modules:
            return ()
        fused = self._shapes.workload.flash_attention
        return ("attn.core_attn",) if fused else SCORES

    def _replays(self, block: str) -> list[Replay]:
        return [one for name in self._modules for one in REPLAYS[name] if one.block == block]

    def _plays(self, replay: Replay, role: str) -> bool:
        if not replay.roles:
            return role in self._core_roles
        gathers = role == "attn.norm.ag" and not self._shapes.model.q_lora_rank
        return plays(replay, role) or (gathers and "core_attn" in replay.tokens.get("qkv", ()))

    @cached_property
    def _made(self) -> Mapping[str, bool]:
        """Values that modules but the core make again -> whether they are a checkpoint's output, of
        which backward reads what forward wrote."""
        return {
            ref.bare: fragment in OUTPUTS
            for block in COLUMN_PARALLEL
            for replay in self._replays(block)
            for fragment, sources in replay.tokens.items()
            for source in sources
            for op in (self._plain(block, source) if replay.roles else ())
            if self._plays(replay, op.role)
            for ref in op.writes
        }

    # Per op -------------------------------------------------------------------------------------

    @property
    def per_op(self) -> bool:
        """Whether single ops are chosen; what a recomputed gather gave then serves the wgrad."""
        return self.kind == "per-op"

    @cached_property
    def parts(self) -> Mapping[str, int]:
        """GEMMs that ``per-op`` recomputes in part -> the recomputed columns on this rank: those of
        the keys, and of w3."""
        s = self._shapes
        if not self.per_op:
            return {}
        keys = {"attn.qkv": s.kv_heads * s.model.head_dim}
        return {**keys, "mlp.fc1": s.width("fc1") // 2} if s.model.gated_mlp else keys

    def part(self, block: str) -> int:
        """Return the recomputed columns of a block's column-parallel GEMM."""
        return self.parts.get(f"{block}.{COLUMN_PARALLEL[block]}", 0)

    def dropping(self, op: OpTemplate) -> OpTemplate:
        """Return a forward op with the parts of GEMMs' outputs that nobody keeps as values of
        their own."""
        if not self.per_op:
            return op
        writes, sizes, reads = list(op.writes), list(op.sizes), list(op.reads)
        for role, columns in self.parts.items():
            whole = Ref(role, op.slice)
            size = self._shapes.tokens(op.slice) * columns * self._shapes.element
            if op.role == role and whole in op.writes:
                sizes[op.writes.index(whole)] -= size
                writes.append(whole.form(DROPPED))
                sizes.append(size)
            reads += [
                ref._replace(forms=(DROPPED,))
                for ref in op.reads
                if ref.what == role and ref.forms in ((), ("rope",))
            ]
        reads = list(dict.fromkeys(reads))
        return op._replace(reads=tuple(reads), writes=tuple(writes), sizes=tuple(sizes))
