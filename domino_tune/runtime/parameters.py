"""A rank's parameters: shards of full matrices, views into one flat buffer.

The flat order is edges, layer 0, layer 1, …, so that the gradients of neighbouring layers are one
contiguous range: a data-parallel bucket needs no copy. Inside an owner, parameters that are cut by
tensor parallelism come first, replicated ones last: the gradient norm counts the latter once.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch

from simulator.specs import ClusterSpec, ModelSpec, padded_vocab_size

Cut = Literal["rows", "columns", "none"]
INIT_STD: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """One parameter. ``shape`` is the full one; ``groups`` are the heights of stacked matrices
    that are each cut on their own (q, k and v; gate and up)."""

    name: str
    owner: int
    shape: tuple[int, ...]
    cut: Cut = "none"
    groups: tuple[int, ...] = ()
    init: float = INIT_STD
    constant: float | None = None

    def local_shape(self, tp: int) -> tuple[int, ...]:
        """Shape of one rank's shard."""
        if self.cut == "rows":
            return (self.shape[0] // tp, *self.shape[1:])
        if self.cut == "columns":
            return (self.shape[0], self.shape[1] // tp)
        return self.shape


EDGES: Final = -1


def parameter_specs(model: ModelSpec, cluster: ClusterSpec) -> list[ParameterSpec]:
    """Every parameter, in flat order: edges first, then layer by layer, cut ones before whole."""
    specs = list(_edges(model, cluster))
    for layer in range(model.num_hidden_layers):
        specs += _layer(model, layer)
    return sorted(specs, key=lambda s: (s.owner, s.cut == "none"))


def _edges(model: ModelSpec, cluster: ClusterSpec) -> Iterator[ParameterSpec]:
    vocab, hidden = padded_vocab_size(model, cluster), model.hidden_size
    yield ParameterSpec(name="w.embed", owner=EDGES, shape=(vocab, hidden), cut="rows")
    if not model.tie_word_embeddings:
        yield ParameterSpec(name="w.head.a", owner=EDGES, shape=(vocab, hidden), cut="rows")
    if model.position_embedding == "learned":
        shape = (model.max_position_embeddings, hidden)
        yield ParameterSpec(name="w.positions", owner=EDGES, shape=shape)
    yield from _norm(model, "w.head.norm", EDGES)


def _norm(model: ModelSpec, name: str, owner: int) -> Iterator[ParameterSpec]:
    yield ParameterSpec(name=name, owner=owner, shape=(model.hidden_size,), constant=1.0)
    if model.norm == "layernorm":
        shape = (model.hidden_size,)
        yield ParameterSpec(name=f"{name}.bias", owner=owner, shape=shape, constant=0.0)


def _layer(model: ModelSpec, layer: int) -> Iterator[ParameterSpec]:
    hidden, prefix = model.hidden_size, f"l{layer}.w."
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    ffn = model.intermediate_size
    stacked = (ffn, ffn) if model.gated_mlp else (ffn,)
    blocks = (
        ("attn", (queries, keys, keys), queries, model.attention_bias),
        ("mlp", stacked, ffn, model.mlp_bias),
    )
    for block, groups, inner, bias in blocks:
        a, b = f"{prefix}{block}.a", f"{prefix}{block}.b"
        height = sum(groups)
        scaled = INIT_STD / math.sqrt(2 * model.num_hidden_layers)
        yield ParameterSpec(name=a, owner=layer, shape=(height, hidden), cut="rows", groups=groups)
        yield ParameterSpec(name=b, owner=layer, shape=(hidden, inner), cut="columns", init=scaled)
        if bias:
            yield ParameterSpec(
                name=f"{a}.bias", owner=layer, shape=(height,), cut="rows", groups=groups
            )
            yield ParameterSpec(name=f"{b}.bias", owner=layer, shape=(hidden,))
        yield from _norm(model, f"{prefix}{block}.norm", layer)


def full_tensor(spec: ParameterSpec, seed: int, vocab_size: int) -> torch.Tensor:
    """The full matrix, the same on every rank and for every TP degree.

    Rows of a table beyond ``vocab_size`` are padding and zero, so that padding to a multiple of
    128 × tp does not change what is drawn.
    """
    if spec.constant is not None:
        return torch.full(spec.shape, spec.constant, dtype=torch.float64)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{spec.name}".encode()))
    if spec.name in ("w.embed", "w.head.a"):
        drawn = torch.randn(vocab_size, spec.shape[1], generator=generator, dtype=torch.float64)
        table = torch.zeros(spec.shape, dtype=torch.float64)
        table[:vocab_size] = drawn * spec.init
        return table
    return torch.randn(spec.shape, generator=generator, dtype=torch.float64) * spec.init


def cut_shard(full: torch.Tensor, spec: ParameterSpec, tp: int, tp_rank: int) -> torch.Tensor:
    """Rank ``tp_rank``'s part of a full matrix."""
    if spec.cut == "none":
        return full
    if spec.cut == "columns":
        return full.chunk(tp, dim=1)[tp_rank]
    heights = spec.groups or (spec.shape[0],)
    return torch.cat([part.chunk(tp)[tp_rank] for part in torch.split(full, list(heights))])


class Parameters:
    """A rank's weights, main gradients and Adam state, all views of flat buffers.

    ``weights[name]`` in the compute dtype, ``grads[name]`` in fp32 (fp64 when computing in fp64).
    ``steps`` counts optimizer steps, whatever plans took them; ``step_count`` is the same on the
    device, where captured graphs find it. With ``exact`` off, weights are drawn on the device,
    fast, and differ by TP degree: for timing only. Replicated ones are alike on all ranks. ``beat``
    is called for every parameter: those of a large model take longer than a watchdog is patient.
    """

    def __init__(
        self, model: ModelSpec, cluster: ClusterSpec, tp_rank: int, *,
        dtype: torch.dtype, device: torch.device, seed: int = 0, exact: bool = True,
        beat: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.specs = parameter_specs(model, cluster)
        self.tp = cluster.tp
        self.step_count = torch.zeros(1, device=device)
        self.steps = 0
        main_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        sizes = [math.prod(s.local_shape(cluster.tp)) for s in self.specs]
        total = sum(sizes)
        self.main = torch.empty(total, dtype=main_dtype, device=device)
        self.grad = torch.zeros(total, dtype=main_dtype, device=device)
        self.moment1 = torch.zeros_like(self.main)
        self.moment2 = torch.zeros_like(self.main)
        same = dtype == main_dtype
        self.model_copy = self.main if same else torch.empty(total, dtype=dtype, device=device)
        self.weights: dict[str, torch.Tensor] = {}
        self.grads: dict[str, torch.Tensor] = {}
        self.owner_end: dict[int, int] = {}
        self.whole: list[tuple[int, int]] = []
        start = 0
        for spec, size in zip(self.specs, sizes, strict=True):
            beat()
            shape, end = spec.local_shape(cluster.tp), start + size
            self.weights[spec.name] = self.model_copy[start:end].view(shape)
            self.grads[spec.name] = self.grad[start:end].view(shape)
            if exact:
                full = full_tensor(spec, seed, model.vocab_size)
                shard = cut_shard(full, spec, cluster.tp, tp_rank)
                self.main[start:end].copy_(shard.reshape(-1))
            else:
                place = tp_rank if spec.cut != "none" else -1
                _draw_fast(self.main[start:end], spec, f"{seed}/{spec.name}/{place}")
            if spec.cut == "none":
                self._add_whole(start, end)
            self.owner_end[spec.owner] = start = end
        added = (".bias", ".norm", "w.positions")
        self._added = [grad for name, grad in self.grads.items() if name.endswith(added)]
        if not same:
            self.model_copy.copy_(self.main)

    @property
    def steps(self) -> int:
        """Optimizer steps taken."""
        return self._steps

    @steps.setter
    def steps(self, count: int) -> None:
        self._steps = count
        self.step_count.fill_(count)

    def _add_whole(self, start: int, end: int) -> None:
        if self.whole and self.whole[-1][1] == start:
            start = self.whole.pop()[0]
        self.whole.append((start, end))

    def clear_added(self) -> None:
        """Zero what is only ever added to: gradients of norms, biases and positions. Those of
        matrices are overwritten by the first weight gradient of a step."""
        torch._foreach_zero_(self._added)

    def gradient_range(self, first: int, last: int) -> torch.Tensor:
        """Flat main gradients of owners ``first`` … ``last`` (EDGES is −1), contiguous."""
        start = 0 if first == EDGES else self.owner_end[first - 1]
        return self.grad[start : self.owner_end[last]]

    def squared_norm(self) -> torch.Tensor:
        """This rank's share of the squared gradient norm; replicated parameters count 1/tp."""
        total = _square(self.grad)
        if self.tp > 1:
            for start, end in self.whole:
                total = total - _square(self.grad[start:end]) * (1 - 1 / self.tp)
        return total.reshape(1)


def _square(flat: torch.Tensor) -> torch.Tensor:
    """Sum of squares in one pass, no copy; cuBLAS' dot takes no more than 2³¹ elements."""
    if flat.is_cuda:
        norm: torch.Tensor = torch.linalg.vector_norm(flat)
        return norm.square()
    return torch.dot(flat, flat)


def _draw_fast(flat: torch.Tensor, spec: ParameterSpec, key: str) -> None:
    """On the device; ranks whose ``key`` is one draw the same."""
    if spec.constant is not None:
        flat.fill_(spec.constant)
    else:
        generator = torch.Generator(flat.device).manual_seed(zlib.crc32(key.encode()))
        flat.normal_(0.0, spec.init, generator=generator)
