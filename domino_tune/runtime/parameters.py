"""A rank's parameters: shards of full matrices in one flat tensor, with their Adam state."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final, Literal

import torch

from simulator.issue_order import COLUMN_PARALLEL, ROW_PARALLEL
from simulator.sharding import padded_vocab_size
from simulator.specs import ClusterSpec, ModelSpec

# A rank's shards of full matrices -----------------------------------------------------------------
# Views into one flat tensor of weights and one of gradients.
#
# The flat order is that of the parameters' specs. Those that are summed over replicas together
# stand side by side, so that a data-parallel bucket needs no copy.

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

    @property
    def is_matrix(self) -> bool:
        """Return whether its gradient is a GEMM's."""
        return self.cut != "none" and len(self.shape) > 1

    def local_size(self, tp: int) -> int:
        """Return the elements of one rank's shard."""
        return math.prod(self.local_shape(tp))

    def local_shape(self, tp: int) -> tuple[int, ...]:
        """Return the shape of one rank's shard."""
        if self.cut == "rows":
            return (self.shape[0] // tp, *self.shape[1:])
        if self.cut == "columns":
            return (self.shape[0], self.shape[1] // tp)
        return self.shape


EDGES: Final = -1
_NORMS: Final = (".norm", ".norm.bias")
_ROW_PARALLEL_BIASES: Final = tuple(f".{linear}.bias" for linear in ROW_PARALLEL.values())
_ADDED: Final = (".bias", "norm", "w.positions")


def main_dtype_of(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of main gradients where ``dtype`` is computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Shards:
    """Weights and gradients by name: views of ``model_copy`` and of ``grad``, flat tensors; without
    ``grad`` there are weights alone.

    ``weights[name]`` has the compute dtype, ``grads[name]`` is fp32 (fp64 when computing in fp64).
    ``ranges``: (start, end) of each parameter; ``whole``: of replicated ones, neighbours joined.
    """

    steps = 0
    step_count: torch.Tensor

    def __init__(
        self,
        specs: Sequence[ParameterSpec],
        tp: int,
        weights: torch.Tensor,
        grad: torch.Tensor | None = None,
    ) -> None:
        self.specs = specs
        self.tp = tp
        self.ranges: list[tuple[int, int]] = []
        self.whole: list[tuple[int, int]] = []
        start = 0
        for spec in specs:
            end = start + spec.local_size(tp)
            self.ranges.append((start, end))
            if spec.cut == "none":
                self._add_whole(start, end)
            start = end
        self.model_copy = weights
        self.weights = self._views(weights)
        self.grad = weights.new_empty(0) if grad is None else grad
        self.grads = {} if grad is None else self._views(grad)

    def _views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            spec.name: flat[start:end].view(spec.local_shape(self.tp))
            for spec, (start, end) in zip(self.specs, self.ranges, strict=True)
        }

    def with_weights(self, weights: torch.Tensor) -> Shards:
        """Return the same with other weights."""
        found = copy(self)
        found.model_copy, found.weights = weights, self._views(weights)
        return found

    def added(self, name: str) -> None:
        """Hear that a product was added to the gradient of a matrix."""

    @property
    def device(self) -> torch.device:
        """Return the device of weights and gradients."""
        return self.model_copy.device

    def _add_whole(self, start: int, end: int) -> None:
        if self.whole and self.whole[-1][1] == start:
            start = self.whole.pop()[0]
        self.whole.append((start, end))

    def partial_grads(self, *, shards_tokens: bool) -> list[torch.Tensor]:
        """Return the gradients that are only partial sums on each rank: those of queries' and keys'
        norms, summed over its heads; if ranks shard the tokens, also those of all norms and
        row-parallel biases."""
        by_tokens = (*_NORMS, *_ROW_PARALLEL_BIASES) if shards_tokens else ()
        partial = (".qk_norm", *by_tokens)
        return [grad for name, grad in self.grads.items() if name.endswith(partial)]

    def clear_added(self) -> None:
        """Zero the gradients that ops only add to: those of norms, biases and positions. The first
        weight gradient of a step overwrites those of matrices."""
        added = [grad for name, grad in self.grads.items() if name.endswith(_ADDED)]
        torch._foreach_zero_(added)


def parameter_specs(model: ModelSpec, cluster: ClusterSpec) -> list[ParameterSpec]:
    """Return all parameters in the order of the runtime's own loop: edges, layer 0, layer 1, …
    Within each, those that tensor parallelism cuts come before replicated ones, which the gradient
    norm must count only once."""
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
    blocks = (("attn", (queries, keys, keys), queries), ("mlp", stacked, ffn))
    for block, groups, inner in blocks:
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
        if model.has_bias(COLUMN_PARALLEL[block]):
            yield ParameterSpec(
                name=f"{first}.bias", owner=layer, shape=(height,), cut="rows", groups=groups
            )
        if model.has_bias(ROW_PARALLEL[block]):
            yield ParameterSpec(name=f"{last}.bias", owner=layer, shape=(hidden,))
        yield from _norm(model, f"{prefix}{block}.norm", layer)
    if model.qk_norm:
        shape = (2, model.head_dim)
        name = f"{prefix}attn.qk_norm"
        yield ParameterSpec(name=name, owner=layer, shape=shape, constant=1.0)


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


class Parameters(Shards):
    """A rank's weights, main gradients and Adam state, all views of flat buffers.

    ``steps`` counts the optimizer steps of all plans; ``step_count`` is the same number on the
    device, where captured graphs read it. ``owner_end``: where the parameters of the edges, or of a
    layer, end. With ``exact`` off, weights are drawn on the device, fast
    but different for each TP degree: for timing only. Replicated ones are equal on all ranks.
    ``beat`` is called for every parameter: drawing all of them can outlast the watchdog.
    """

    def __init__(
        self, model: ModelSpec, cluster: ClusterSpec, tp_rank: int, *,
        dtype: torch.dtype, device: torch.device, seed: int = 0, exact: bool = True,
        beat: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        specs, tp = parameter_specs(model, cluster), cluster.tp
        total = sum(spec.local_size(tp) for spec in specs)
        main_dtype = main_dtype_of(dtype)
        self.main = torch.empty(total, dtype=main_dtype, device=device)
        same = dtype == main_dtype
        copy = self.main if same else torch.empty(total, dtype=dtype, device=device)
        super().__init__(specs, tp, copy, torch.zeros_like(self.main))
        self.owner_end = {
            spec.owner: end for spec, (_, end) in zip(specs, self.ranges, strict=True)
        }
        self.moment1 = torch.zeros_like(self.main)
        self.moment2 = torch.zeros_like(self.main)
        self.step_count = torch.zeros(1, device=device)
        self.steps = 0
        for spec, (start, end) in zip(specs, self.ranges, strict=True):
            beat()
            if exact:
                full = full_tensor(spec, seed, model.vocab_size)
                shard = cut_shard(full, spec, tp, tp_rank)
                self.main[start:end].copy_(shard.reshape(-1))
            else:
                place = tp_rank if spec.cut != "none" else -1
                _draw_fast(self.main[start:end], spec, f"{seed}/{spec.name}/{place}")
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

    def squared_norm(self) -> torch.Tensor:
        """Return this rank's share of the squared gradient norm; replicated ones count 1/tp."""
        total = _square(self.grad)
        if self.tp > 1:
            for start, end in self.whole:
                total = total - _square(self.grad[start:end]) * (1 - 1 / self.tp)
        return total.reshape(1)

    def gradient_range(self, first: int, last: int) -> torch.Tensor:
        """Return the flat main gradients of owners ``first`` … ``last``; EDGES is −1."""
        start = 0 if first == EDGES else self.owner_end[first - 1]
        return self.grad[start : self.owner_end[last]]

    def by_layer(self) -> torch.Tensor:
        """Return [owners, 2] of this rank's gradients: each layer's norm, and sum."""
        each = [self.gradient_range(owner, owner) for owner in sorted(self.owner_end)]
        pairs = [(_square(flat).sqrt().double(), flat.sum(dtype=torch.float64)) for flat in each]
        return torch.stack([torch.stack(pair) for pair in pairs])


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
