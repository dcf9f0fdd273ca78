"""A rank's parameters: shards of full matrices, views into one flat buffer.

The flat order is edges, layer 0, layer 1, … So the gradients of neighbouring layers are one
contiguous range, and a data-parallel bucket needs no copy. Within an owner, parameters that tensor
parallelism cuts come before replicated ones, which the gradient norm must count only once.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch

from simulator.issue_order import COLUMN_PARALLEL, ROW_PARALLEL
from simulator.specs import ClusterSpec, ModelSpec, padded_vocab_size

Cut = Literal["rows", "columns", "none"]
INIT_STD: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """One parameter. ``shape`` is the full shape. ``groups`` are the heights of stacked matrices
    that are cut separately (q, k and v; gate and up)."""

    name: str
    owner: int
    shape: tuple[int, ...]
    cut: Cut = "none"
    groups: tuple[int, ...] = ()
    init: float = INIT_STD
    constant: float | None = None

    def local_shape(self, tp: int) -> tuple[int, ...]:
        """Return the shape of one rank's shard."""
        if self.cut == "rows":
            return (self.shape[0] // tp, *self.shape[1:])
        if self.cut == "columns":
            return (self.shape[0], self.shape[1] // tp)
        return self.shape


EDGES: Final = -1


def parameter_specs(model: ModelSpec, cluster: ClusterSpec) -> list[ParameterSpec]:
    """Return all parameters in flat order: edges, then each layer; cut before replicated ones."""
    specs = list(_edges(model, cluster))
    for layer in range(model.num_hidden_layers):
        specs += _layer(model, layer)
    return sorted(specs, key=lambda s: (s.owner, s.cut == "none"))


def _edges(model: ModelSpec, cluster: ClusterSpec) -> Iterator[ParameterSpec]:
    vocab, hidden = padded_vocab_size(model, cluster), model.hidden_size
    yield ParameterSpec(name="w.embed", owner=EDGES, shape=(vocab, hidden), cut="rows")
    if not model.tie_word_embeddings:
        yield ParameterSpec(name="w.head.logits", owner=EDGES, shape=(vocab, hidden), cut="rows")
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
        first = f"{prefix}{block}.{COLUMN_PARALLEL[block]}"
        last = f"{prefix}{block}.{ROW_PARALLEL[block]}"
        height = sum(groups)
        scaled = INIT_STD / math.sqrt(2 * model.num_hidden_layers)
        yield ParameterSpec(
            name=first, owner=layer, shape=(height, hidden), cut="rows", groups=groups
        )
        yield ParameterSpec(
            name=last, owner=layer, shape=(hidden, inner), cut="columns", init=scaled
        )
        if bias:
            yield ParameterSpec(
                name=f"{first}.bias", owner=layer, shape=(height,), cut="rows", groups=groups
            )
            yield ParameterSpec(name=f"{last}.bias", owner=layer, shape=(hidden,))
        yield from _norm(model, f"{prefix}{block}.norm", layer)


def full_tensor(spec: ParameterSpec, seed: int, vocab_size: int) -> torch.Tensor:
    """Return the full matrix, fp64, the same on every rank and for every TP degree.

    Rows of a table from ``vocab_size`` on are padding and 0. So padding to a multiple of 128 · tp
    does not change the random values.
    """
    if spec.constant is not None:
        return torch.full(spec.shape, spec.constant, dtype=torch.float64)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{spec.name}".encode()))
    if spec.name in ("w.embed", "w.head.logits"):
        drawn = torch.randn(vocab_size, spec.shape[1], generator=generator, dtype=torch.float64)
        table = torch.zeros(spec.shape, dtype=torch.float64)
        table[:vocab_size] = drawn * spec.init
        return table
    return torch.randn(spec.shape, generator=generator, dtype=torch.float64) * spec.init


def cut_shard(full: torch.Tensor, spec: ParameterSpec, tp: int, tp_rank: int) -> torch.Tensor:
    """Return the part of a full matrix that rank ``tp_rank`` holds."""
    if spec.cut == "none":
        return full
    if spec.cut == "columns":
        return full.chunk(tp, dim=1)[tp_rank]
    heights = spec.groups or (spec.shape[0],)
    return torch.cat([part.chunk(tp)[tp_rank] for part in torch.split(full, list(heights))])


class Parameters:
    """A rank's weights, main gradients and Adam state, all views of flat buffers.

    ``weights[name]`` has the compute dtype, ``grads[name]`` is fp32 (fp64 when computing in fp64).
    ``steps`` counts the optimizer steps of all plans; ``step_count`` is the same number on the
    device, where captured graphs read it. With ``exact`` off, weights are drawn on the device, fast
    but different for each TP degree: for timing only. Replicated ones are equal on all ranks.
    ``beat`` is called for every parameter: drawing all of them can outlast the watchdog.
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
        """Return the number of optimizer steps taken."""
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
        """Zero the gradients that ops only add to: those of norms, biases and positions. The first
        weight gradient of a step overwrites those of matrices."""
        torch._foreach_zero_(self._added)

    def gradient_range(self, first: int, last: int) -> torch.Tensor:
        """Return the flat main gradients of owners ``first`` … ``last``; EDGES is −1."""
        start = 0 if first == EDGES else self.owner_end[first - 1]
        return self.grad[start : self.owner_end[last]]

    def squared_norm(self) -> torch.Tensor:
        """Return this rank's share of the squared gradient norm; replicated ones count 1/tp."""
        total = _square(self.grad)
        if self.tp > 1:
            for start, end in self.whole:
                total = total - _square(self.grad[start:end]) * (1 - 1 / self.tp)
        return total.reshape(1)


def _square(flat: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares, in one pass without a copy; cuBLAS' dot is limited to 2³¹."""
    if flat.is_cuda:
        norm: torch.Tensor = torch.linalg.vector_norm(flat)
        return norm.square()
    return torch.dot(flat, flat)


def _draw_fast(flat: torch.Tensor, spec: ParameterSpec, key: str) -> None:
    """Fill ``flat`` with random values on its device; ranks with equal ``key`` draw the same."""
    if spec.constant is not None:
        flat.fill_(spec.constant)
    else:
        generator = torch.Generator(flat.device).manual_seed(zlib.crc32(key.encode()))
        flat.normal_(0.0, spec.init, generator=generator)
