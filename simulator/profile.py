"""Profile: the costs of ops on one machine, and the source of each number.

Pure data: frozen, validated on construction. ``domino_tune.store.profiles`` reads and writes the
files; the tables in ``simulator.lookup`` do the look-ups.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, Literal

from simulator.contention import ContentionFit
from simulator.cpu_hosts import IdleLane, ResumeFit, SkewFit
from simulator.draws import Calibration
from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup import (
    ABSENT_IF_EMPTY,
    NO_ROOF,
    Provenance,
    Roof,
    check_values,
    require_choice,
    require_count,
    require_number,
    require_positive,
    require_sorted,
)
from simulator.lookup.attention import AttentionFit, AttentionRow, AttentionTable
from simulator.lookup.collective_law import CollectiveFit
from simulator.lookup.collectives import CollectiveRow, CollectiveTable
from simulator.lookup.expected import COLLECTIVE_TABLE, POINTWISE_TABLE
from simulator.lookup.experts import GroupedFit, GroupedRow, GroupedTable
from simulator.lookup.gemm import GemmFit, GemmRow, GemmTable
from simulator.lookup.pointwise import (
    DEFAULT,
    PointwiseFit,
    PointwiseRow,
    PointwiseTable,
    with_sums,
)
from simulator.ops import MULTIMEM, TpCollectives
from simulator.power import PowerSection

SCHEMA: Final = 3
LaunchMode = Literal["async", "inline", "none"]
LAUNCH_MODES: Final = ("async", "inline", "none")
LAUNCH_KINDS: Final = ("gemm", "attention", "pointwise", "collective")
SECTIONS: Final = (
    "gemm", "attention", "pointwise", "collectives", "contention", "launch", "skew", "resume",
    "power",
)  # fmt: skip
NEVER: Final = {"gloo": ("power",), "nccl": ("resume",)}
"""Sections that no machine of a back end has: laws of power are of GPUs, streams do not sleep."""
TF32_SHARE: Final = 0.5
"""TF32's dense peak over bf16's: 156 of 312 TFLOP/s on A100, 494.7 of 989.4 on H100 and H200, 1,125
of 2,250 on B200 (NVIDIA's data sheets)."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}:\d{2}Z)?")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The measured machine: data of one GPU, and ``details`` (driver, NCCL, topology …) as text.

    ``peak_tflops`` is dense, by dtype; ``memory_bandwidth_gb_s`` in 1e9 bytes per second.
    ``l2_mb``: size of the L2 cache where a data sheet gives the peaks; 0 where they were measured.
    ``memory_reported``: whether ``gpu_memory_gib`` is what the driver reports, not the label's.
    ``gpus_per_domain``: GPUs that NVLink connects where that are those of several nodes, else 0.
    ``fp8_any_layout``: FP8 GEMMs with a scale a tensor take operands as they lie, transposed or not
    (compute capability 10.0 and later; Hopper's want the summed dimension last in both).
    """

    gpu: str
    gpus_per_node: int
    gpu_memory_gib: float
    sm_count: int
    peak_tflops: dict[str, float]
    memory_bandwidth_gb_s: float
    backend: str
    l2_mb: float = field(default=0.0, metadata=ABSENT_IF_EMPTY)
    memory_reported: bool = field(default=False, metadata=ABSENT_IF_EMPTY)
    gpus_per_domain: int = field(default=0, metadata=ABSENT_IF_EMPTY)
    fp8_any_layout: bool = field(default=False, metadata=ABSENT_IF_EMPTY)
    details: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("gpus_per_node", "sm_count"):
            require_count("machine", name, getattr(self, name))
        for name in ("gpu_memory_gib", "memory_bandwidth_gb_s"):
            require_positive("machine", name, getattr(self, name))
        require_number("machine", "l2_mb", self.l2_mb)
        require_count("machine", "gpus_per_domain", self.gpus_per_domain, low=0)
        if self.gpus_per_domain % self.gpus_per_node:
            raise ProfileError(
                f"machine: gpus_per_domain must be 0 or whole nodes of {self.gpus_per_node} GPUs, "
                f"got {self.gpus_per_domain}."
            )
        for dtype, tflops in self.peak_tflops.items():
            require_positive("machine", f"peak_tflops[{dtype}]", tflops)
        check_values("machine", "machine", self)

    @property
    def domain(self) -> int:
        """GPUs that NVLink connects."""
        return self.gpus_per_domain or self.gpus_per_node

    @cached_property
    def peaks(self) -> dict[str, float]:
        """Dense TFLOP/s by what is multiplied: of a GPU also TF32's."""
        known = self.peak_tflops
        if self.backend == "nccl" and "bf16" in known:
            return {"tf32": TF32_SHARE * known["bf16"], **known}
        return known

    @cached_property
    def times_bf16(self) -> dict[str, float]:
        """How many times as long as in bf16 the multiplications of a GPU take, by their peaks."""
        peaks = self.peaks
        if self.backend != "nccl" or "bf16" not in peaks:
            return {}
        return {math: peaks["bf16"] / peak for math, peak in peaks.items()}

    @cached_property
    def roof(self) -> Roof:
        """What no look-up may beat; nothing where the peaks are of the machine's own timings."""
        if not self.l2_mb:
            return NO_ROOF
        return Roof(
            flops_per_us={dtype: 1e6 * rate for dtype, rate in self.peaks.items()},
            bytes_per_us=1e3 * self.memory_bandwidth_gb_s,
            l2_bytes=round(1e6 * self.l2_mb),
        )


def gemm_key(row: GemmRow) -> tuple[int | str | bool | tuple[int, int, int], ...]:
    """Return the sort key of a GEMM row: its signature."""
    return row.signature


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """By how much sources of the same timings differ, relative, and which these are."""

    error: float
    between: str

    def __post_init__(self) -> None:
        require_number("gemm", "disagreement.error", self.error)


@dataclass(frozen=True, kw_only=True)
class GroupedGemms:
    """Rows of grouped GEMMs, sorted by signature, and a law a dtype, sorted by it."""

    rows: tuple[GroupedRow, ...] = ()
    fits: tuple[GroupedFit, ...] = ()
    provenance: Provenance

    def __post_init__(self) -> None:
        for index, row in enumerate(self.rows):
            owner = f"gemm.grouped.rows[{index}]"
            for name in ("groups", "m", "n", "k", "samples"):
                require_count(owner, name, getattr(row, name))
            require_positive(owner, "median_us", row.median_us)
            require_number(owner, "spread_us", row.spread_us)
        require_sorted("gemm.grouped", [row.signature for row in self.rows])
        dtypes = [fit.dtype for fit in self.fits]
        if dtypes != sorted(set(dtypes)):
            raise ProfileError("gemm.grouped.fits must be sorted by dtype, each once.")


@dataclass(frozen=True, kw_only=True)
class GemmSection:
    """GEMM rows, sorted by signature, and laws by (layout, dtype, accumulate).

    ``disagreement``: no look-up is surer than that. ``looped``: rows are of loops over one GEMM,
    which find in the L2 what fits. ``grouped``: products of several experts in one call.
    """

    rows: tuple[GemmRow, ...] = ()
    fits: tuple[GemmFit, ...] = ()
    disagreement: Disagreement | None = field(default=None, metadata=ABSENT_IF_EMPTY)
    looped: bool = field(default=False, metadata=ABSENT_IF_EMPTY)
    grouped: GroupedGemms | None = field(default=None, metadata=ABSENT_IF_EMPTY)
    provenance: Provenance

    def __post_init__(self) -> None:
        for index, row in enumerate(self.rows):
            owner = f"gemm.rows[{index}]"
            for name in ("m", "n", "k", "samples"):
                require_count(owner, name, getattr(row, name))
            require_positive(owner, "median_us", row.median_us)
            require_number(owner, "spread_us", row.spread_us)
        require_sorted("gemm", [gemm_key(row) for row in self.rows])
        keys = [(fit.layout, fit.dtype, fit.accumulate) for fit in self.fits]
        if keys != sorted(set(keys)):
            raise ProfileError(
                "gemm.fits must be sorted by (layout, dtype, accumulate), each once."
            )
        check_values("gemm", "gemm", self)


@dataclass(frozen=True, kw_only=True)
class AttentionSection:
    """Attention rows, sorted by signature, and the law between them.

    ``others``: laws of other head sizes, sorted by them, with where they come from.
    """

    rows: tuple[AttentionRow, ...] = ()
    fit: AttentionFit | None = None
    others: tuple[AttentionFit, ...] = field(default=(), metadata=ABSENT_IF_EMPTY)
    provenance: Provenance

    def __post_init__(self) -> None:
        require_sorted("attention", [row.key for row in self.rows])
        dims = [fit.dims for fit in self.others]
        if dims != sorted(set(dims)) or (self.fit is not None and self.fit.dims in dims):
            raise ProfileError("attention.others must be sorted by head sizes, each law's own.")
        check_values("attention", "attention", self)


@dataclass(frozen=True, kw_only=True)
class PointwiseSection:
    """Pointwise rows, sorted by signature, and laws by name."""

    rows: tuple[PointwiseRow, ...] = ()
    fits: tuple[PointwiseFit, ...] = ()
    provenance: Provenance

    def __post_init__(self) -> None:
        require_sorted("pointwise", [row.key for row in self.rows])
        names = [name for fit in self.fits for name in fit.names]
        for name in names:
            if names.count(name) > 1:
                raise ProfileError(f"pointwise.fits: {name!r} is listed twice.")
        check_values("pointwise", "pointwise", self)


@dataclass(frozen=True, kw_only=True)
class CollectiveSection:
    """Collective rows and laws, both sorted, and assumptions for groups that were not timed.

    ``nic_gb_s`` (1e9 bytes per second per rank, one way) and ``nic_latency_us`` serve groups over
    several nodes that have neither rows nor fits; without them such groups are refused.
    ``idle_lane``: how the rows differ right after another collective; None if they do not.
    """

    rows: tuple[CollectiveRow, ...] = ()
    fits: tuple[CollectiveFit, ...] = ()
    nic_gb_s: float | None = None
    nic_latency_us: float | None = None
    idle_lane: IdleLane | None = field(default=None, metadata=ABSENT_IF_EMPTY)
    provenance: Provenance

    def __post_init__(self) -> None:
        require_sorted("collectives", [row.key for row in self.rows])
        groups = [fit.group for fit in self.fits]
        if groups != sorted(set(groups)):
            raise ProfileError("collectives.fits must be sorted by group, each group once.")
        for name in ("nic_gb_s", "nic_latency_us"):
            if getattr(self, name) is not None:
                require_positive("collectives", name, getattr(self, name))
        check_values("collectives", "collectives", self)


@dataclass(frozen=True, kw_only=True)
class ContentionSection:
    """The law of how ops slow each other down."""

    fit: ContentionFit
    provenance: Provenance

    def __post_init__(self) -> None:
        check_values("contention", "contention", self)


@dataclass(frozen=True, kw_only=True)
class LaunchSection:
    """Host cost of issuing an op, µs by kind; ``queue_depth`` ops may wait on the device.

    ``samples``: number of steps behind the cost of compute ops, 0 if unknown. ``assumed``: kinds
    whose cost nobody measured, in a section that is not assumed as a whole.
    """

    mode: LaunchMode
    cost_us: dict[str, float]
    queue_depth: int = 1024
    samples: int = field(default=0, metadata=ABSENT_IF_EMPTY)
    assumed: tuple[str, ...] = field(default=(), metadata=ABSENT_IF_EMPTY)
    provenance: Provenance

    def __post_init__(self) -> None:
        for kind in self.assumed:
            require_choice("launch", "assumed kind", kind, LAUNCH_KINDS)
        require_choice("launch", "mode", self.mode, LAUNCH_MODES)
        require_count("launch", "queue_depth", self.queue_depth)
        require_count("launch", "samples", self.samples, low=0)
        for kind, cost in self.cost_us.items():
            require_choice("launch", "cost_us kind", kind, LAUNCH_KINDS)
            require_number("launch", f"cost_us[{kind}]", cost)
        check_values("launch", "launch", self)


@dataclass(frozen=True, kw_only=True)
class SkewSection:
    """Differences in speed between the ranks of one group."""

    fit: SkewFit
    provenance: Provenance

    def __post_init__(self) -> None:
        check_values("skew", "skew", self)


@dataclass(frozen=True, kw_only=True)
class ResumeSection:
    """What compute loses after a wait."""

    fit: ResumeFit
    provenance: Provenance

    def __post_init__(self) -> None:
        check_values("resume", "resume", self)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Profile of a machine. A look-up that needs a missing section raises MissingSectionError."""

    schema: int = SCHEMA
    name: str
    created: str
    machine: Machine
    gemm: GemmSection | None = None
    attention: AttentionSection | None = None
    pointwise: PointwiseSection | None = None
    collectives: CollectiveSection | None = None
    contention: ContentionSection | None = None
    launch: LaunchSection | None = None
    skew: SkewSection | None = field(default=None, metadata=ABSENT_IF_EMPTY)
    resume: ResumeSection | None = field(default=None, metadata=ABSENT_IF_EMPTY)
    power: PowerSection | None = field(default=None, metadata=ABSENT_IF_EMPTY)
    calibration: Calibration | None = field(default=None, metadata=ABSENT_IF_EMPTY)

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            newer = (
                " It is newer than this program: upgrade domino_tune."
                if (isinstance(self.schema, int) and self.schema > SCHEMA)
                else ""
            )
            raise ProfileError(f"Profile schema {self.schema!r} is not {SCHEMA}.{newer}")
        if not _NAME.fullmatch(self.name):
            raise ProfileError(
                f"Profile name {self.name!r} must be 1–64 letters, digits, '.', '_' or '-'."
            )
        if not _DATE.fullmatch(self.created):
            raise ProfileError(
                f"created must be YYYY-MM-DD or YYYY-MM-DDThh:mm:ssZ, got {self.created!r}."
            )

    @cached_property
    def content_id(self) -> str:
        """``sha256:…`` of the canonical JSON: it does not depend on the file's layout."""
        text = json.dumps(
            to_plain(self),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=True,
            allow_nan=False,
        )
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def section(self, name: str) -> Any:
        """Return the named section; raise MissingSectionError if the profile lacks it."""
        found = getattr(self, name)
        if found is None:
            has = [s for s in SECTIONS if getattr(self, s) is not None]
            raise MissingSectionError(
                f"Profile {self.name!r} has no {name!r} section (it has "
                f"{', '.join(has) or 'none'}); import or measure one, or use a profile that has it."
            )
        return found

    def gemm_table(self) -> GemmTable:
        """Return the look-up of GEMMs. It is cached: building it takes some tenths of a second."""
        return self._gemm_table

    @cached_property
    def _gemm_table(self) -> GemmTable:
        section: GemmSection = self.section("gemm")
        machine = self.machine
        return GemmTable(
            section.rows,
            fits=section.fits,
            peak_flops={dtype: 1e12 * rate for dtype, rate in machine.peaks.items()},
            times_bf16=machine.times_bf16,
            disagreement=section.disagreement.error if section.disagreement else 0.0,
            looped=section.looped,
            grouped=(
                GroupedTable(section.grouped.rows, section.grouped.fits, machine.sm_count)
                if section.grouped
                else None
            ),
            memory_bandwidth=1e9 * machine.memory_bandwidth_gb_s,
            sm_count=machine.sm_count,
            roof=machine.roof,
        )

    def attention_table(self) -> AttentionTable:
        """Return the look-up of attention cores."""
        section: AttentionSection = self.section("attention")
        machine = self.machine
        return AttentionTable(
            section.rows, section.fit, others=section.others, roof=machine.roof,
            times_bf16=machine.times_bf16,
        )  # fmt: skip

    def pointwise_table(self) -> PointwiseTable:
        """Return the look-up of pointwise ops."""
        section: PointwiseSection = self.section("pointwise")
        machine, fits = self.machine, section.fits
        if machine.backend == "nccl":
            boost_mhz = self.power.boost_mhz if self.power else None
            fits = with_sums(fits, machine.sm_count, boost_mhz)
        error = _error(section.provenance, POINTWISE_TABLE.error)
        return PointwiseTable(section.rows, fits, table_error=error, roof=machine.roof)

    def collective_table(self) -> CollectiveTable:
        """Return the look-up of collectives."""
        section: CollectiveSection = self.section("collectives")
        return CollectiveTable(
            section.rows,
            section.fits,
            table_error=_error(section.provenance, COLLECTIVE_TABLE.error),
            nic_gb_s=section.nic_gb_s,
            nic_latency_us=section.nic_latency_us,
        )

    @property
    def times_gathers(self) -> bool:
        """Whether the profile times all-gathers and reduce-scatters, not only all-reduces."""
        return {"all_gather", "reduce_scatter"} <= self._timed_collectives

    @property
    def times_other_kernels(self) -> bool:
        """Whether it has a law for pointwise ops of any name, not only for those of our runtime."""
        section = self.pointwise
        return section is not None and any(DEFAULT in fit.names for fit in section.fits)

    @property
    def times_multimem(self) -> bool:
        """Whether the profile times multimem all-reduces."""
        return MULTIMEM["all_reduce"] in self._timed_collectives

    @property
    def _timed_collectives(self) -> set[str]:
        section = self.collectives
        if section is None:
            return set()
        return {row.op for row in section.rows} | {fit.op for fit in section.fits}

    def comm_ctas_choices(
        self, nodes: int, per_node: int, collectives: TpCollectives = "nccl"
    ) -> tuple[int, ...]:
        """Return the CTA counts of timed all-reduces on this group, and 0: the library's choice."""
        if self.collectives is None:
            return (0,)
        groups = [row.group for row in self.collectives.rows]
        groups += [fit.group for fit in self.collectives.fits]
        reduce = "all_reduce" if collectives == "nccl" else MULTIMEM["all_reduce"]
        counts = {c for op, n, p, c in groups if (op, n, p) == (reduce, nodes, per_node)}
        return tuple(sorted({0, *counts}))


def _error(provenance: Provenance, default: float) -> float:
    return default if provenance.error is None else provenance.error


def to_plain(value: Any) -> Any:
    """Return ``value`` as JSON types; whole floats become ints, so equal content is equal JSON."""
    if hasattr(value, "__dataclass_fields__"):
        present = (
            item for item in fields(value)
            if not (item.metadata.get("absent_if_empty") and not getattr(value, item.name))
        )  # fmt: skip
        return {item.name: to_plain(getattr(value, item.name)) for item in present}
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
