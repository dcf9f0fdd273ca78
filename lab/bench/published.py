"""Published runs of whole jobs beside predictions. Nothing is fitted to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import geometric_mean, mean, median, stdev
from typing import Final

from domino_tune.base.cores import on_all_cores
from domino_tune.base.memory import rare_collections
from domino_tune.base.tables import Table
from domino_tune.search.calibration import MeasuredRun, fit_runs, predicted_ms
from domino_tune.verbs.machines import machines_of
from domino_tune.verbs.resolve import Chosen
from lab.bench import common
from lab.bench.common import TABLES, Run, mean_off, rows, runs, shown
from lab.verdict import Check, at_least, at_most, check_table, equal, reported, verdict
from simulator.dtypes import GIB, MS_PER_NS
from simulator.memory import peak_bytes
from simulator.plan import MEGATRON
from simulator.predict import predict, simulate
from simulator.usable import FRAGMENTS, PREDICTED_SD, SURE, percent

DENSE: Final = ("simumax", "ci", "korthikanti-full", "korthikanti-selective")
VTRAIN: Final = ("vtrain-single", "vtrain-multi")
QUANTIZED: Final = ("dgxc", "mbridge")
LARGE: Final = 3072  # Models of this hidden size and more are large
HALF_WIDTH: Final = {"machine": 0.15, "b200-sxm": 0.25, "quantized": 0.25}
"""Largest half-width of an interval that is still useful; sources of a B200's GEMMs differ."""
SHARES: Final = {8: 0.16, 16: 0.29, 32: 0.43}  # Published by TP degree
POINTS: Final = 0.05


@dataclass(frozen=True)
class Held:
    """A run beside its prediction; ``low``, ``high``: its interval over ``ms``; ``plain``: the
    upper end without what the profile does not know."""

    run: Run
    ms: float
    low: float
    plain: float
    high: float

    @classmethod
    def of(cls, run: Run) -> Held:
        """Return a run's prediction and its interval."""
        machines = machines_of(run.case, {"": Chosen.of(run.case, run.plan)})
        ns = machines.nominal_ns[""]
        _, plain_ns = machines.interval_ns("", with_unknown=False)
        low_ns, high_ns = machines.interval_ns("")
        return cls(run, ns * MS_PER_NS, low_ns / ns, plain_ns / ns, high_ns / ns)

    error = property(lambda self: self.run.error(self.ms))
    low_ms = property(lambda self: self.low * self.ms)
    high_ms = property(lambda self: self.high * self.ms)
    ratio = property(lambda self: self.run.measured_ms / self.ms)
    inside = property(lambda self: self.low <= self.ratio <= self.high)
    peak_gib = property(lambda self: peak_bytes(self.run.case, self.run.plan) / GIB)
    memory_error = property(lambda self: self.peak_gib / self.run.gib - 1)
    group = property(lambda self: f"{self.run.table.partition('-')[0]}, {self.kind}")

    @property
    def kind(self) -> str:
        """Where the run belongs in its table."""
        case, row = self.run.case, self.run.row
        if self.run.table in VTRAIN:
            return "large models" if case.model.hidden_size >= LARGE else "small models"
        if case.cluster.pp * case.cluster.cp > 1 and self.run.table == "simumax":
            return "PP or CP"
        return row.get("precision") or (row["gpu"] if self.run.table == "ci" else "plain")


def published() -> list[Table]:
    """Return each run, the runs by group, their checks, and what no whole job tells."""
    found = [Held.of(run) for run in runs(*DENSE, *VTRAIN, "nemo", "torchtitan", *QUANTIZED)]
    some = [one for one in found if one.kind != "small models"]
    return [
        _each(some), _groups(found), limits(found), _coverage(found), *_fp8(found), _forward(),
        _domino(),
    ]  # fmt: skip


def _each(found: Sequence[Held]) -> Table:
    peers = ((one.run.error(ms) if (ms := one.run.peer_ms) else None) for one in found)
    told = ("" if error is None else f"{error:+.1%}" for error in peers)
    return shown("published", zip(found, told, strict=True))


def _groups(found: Sequence[Held]) -> Table:
    lines = []
    for name, some in _by_group(found).items():
        errors, ratios = [one.error for one in some], [one.ratio for one in some]
        ends = zip(*((one.plain, one.high, one.low) for one in some), strict=True)
        lines.append((
            name, len(some), f"{mean_off(errors):.1%}",
            *(f"{of(errors):+.1%}" for of in (mean, median, min, max)),
            sum(one.low <= one.ratio <= one.plain for one in some),
            sum(one.inside for one in some), sum(one.ratio > one.high for one in some),
            f"{min(ratios):.2f}–{max(ratios):.2f}", *(f"{mean(each) - 1:+.1%}" for each in ends),
        ))  # fmt: skip
    return shown("groups", lines)


LIMITED: Final[dict[str, tuple[str, Callable[[Sequence[Held]], float]]]] = {
    "mean": ("mean error", lambda some: mean_off(one.error for one in some)),
    "worst": ("worst error", lambda some: max(abs(one.error) for one in some)),
    "memory": ("mean error of memory", lambda some: mean_off(one.memory_error for one in some)),
}


def limits(found: Sequence[Held]) -> Table:
    """Return the groups that have limits beside these."""
    checks = []
    for name, some in _by_group(found).items():
        every = TABLES[some[0].run.table].get("limits", {})
        wanted: Mapping[str, float] = every.get(some[0].kind, {})
        checks += [
            at_most(f"{name}: {words}", wanted[key], value(some))
            for key, (words, value) in LIMITED.items() if key in wanted
        ]  # fmt: skip
    return check_table("Published runs against their limits", checks)


def _coverage(found: Sequence[Held]) -> Table:
    """Return whether each machine's mean factor lies in its stated interval, as all rows of a table
    come from one machine; and whether only what is not known widens intervals."""
    checks, dense = [], [one for one in found if one.run.table in DENSE]
    for name in dict.fromkeys(one.run.case.profile.name for one in dense):
        some = [one for one in dense if one.run.case.profile.name == name]
        factor = geometric_mean(one.ratio for one in some)
        low, high = mean(one.low for one in some), mean(one.high for one in some)
        what, target = f"{name}, {len(some)} rows: measured / predicted", f"{low:.2f}–{high:.2f}"
        most = HALF_WIDTH.get(name, HALF_WIDTH["machine"])
        checks += [
            Check(what, target, f"{factor:.3f}", low <= factor <= high),
            at_most(f"{name}: half-width", most, (high - low) / 2),
        ]
    pipelines = [one.error for one in found if one.run.table in VTRAIN]
    old, today = (
        [one for one in found if TABLES[one.run.table]["era"] == era] for era in ("2022", "today")
    )
    held = mean(one.inside for one in old)
    checks += [
        at_most(f"vTrain, {len(pipelines)} runs: mean error", 0.18, mean_off(pipelines)),
        at_least(f"of {len(old)} runs of 2022, in their interval", 0.8, held),
        equal(f"of {len(today)} runs of today, widened", 0, sum(o.high != o.plain for o in today)),
    ]
    return check_table("Coverage: one factor a machine; what is not known widens", checks)


def _fp8(found: Sequence[Held]) -> list[Table]:
    every = [one for one in found if one.run.table in QUANTIZED]
    racks = [one.error for one in every if one.run.table == "mbridge"]
    mine = [one for one in every if one.run.table == "dgxc"]
    halves = {one.run.label: one for one in mine if one.kind == "bf16"}
    pairs = [
        (one.run.label, half.run.measured_ms / one.run.measured_ms, half.ms / one.ms)
        for one in mine if one.kind == "fp8" and (half := halves.get(one.run.label))
    ]  # fmt: skip
    off = max(abs(told - measured) for _, measured, told in pairs)
    widest = max((one.high - one.low) / 2 for one in every)
    checks = [
        at_most("largest difference of a ratio", 0.10, off, unit="", digits=3),
        at_most("mean error of steps on GB200 and GB300", 0.12, mean_off(racks)),
        equal("steps inside their interval", len(every), sum(one.inside for one in every)),
        at_most("largest half-width of an interval", HALF_WIDTH["quantized"], widest),
    ]
    lines = [(name, f"{measured:.2f}", f"{told:.2f}") for name, measured, told in pairs]
    return [shown("ratios", lines), check_table("FP8: checks", checks)]


def _forward() -> Table:
    """Return forwards of Llama 70B on eight H100s by vLLM, whose Python nobody timed: no hosts."""
    lines = []
    for run in runs("tokenweave"):
        case = replace(run.case, cluster=replace(run.case.cluster, cuda_graph=True))
        timeline = simulate(case, run.plan)
        ops = zip(timeline.ops, timeline.start_ns, strict=True)
        ms = next(start for op, start in ops if op.role.startswith("head.")) * MS_PER_NS
        lines.append((int(run.label), run.measured_ms, ms, run.error(ms)))
    return shown("forward", lines)


def _domino() -> Table:
    """Return communication's share under Megatron-LM by TP degree, beside Domino's paper."""
    lines = []
    for tp, target in SHARES.items():
        found = predict(common.paper_case(common.GPT3_13B, tp), MEGATRON)
        share = found.exposed_ns / found.makespan_ns
        lines.append((
            tp, f"{100 * target:.0f}%", f"{100 * share:.1f}%",
            f"{100 * (share - target):+.1f} points", verdict(abs(share - target) <= POINTS),
        ))  # fmt: skip
    return shown("shares", lines)


def _by_group(found: Iterable[Held]) -> dict[str, list[Held]]:
    groups: dict[str, list[Held]] = {}
    for one in found:
        groups.setdefault(one.group, []).append(one)
    return groups


# Memory: peaks, what allocators reserve for them, and chances to fit ------------------------------

STATED: Final = {"megatron": "megatron-te", "torch": "torch"}
"""Family of jobs in the table of reserved memory -> an implementation of that family."""


def memory() -> list[Table]:
    """Return published peaks and their chances, their checks, and torchtitan's figures."""
    ran = runs("simumax", "ci")
    return [shown("peaks", map(_peak, ran)), _checks(ran), _torchtitan()]


def _peak(run: Run) -> tuple[object, ...]:
    assert run.gib is not None
    known, peak = run.case.memory, peak_bytes(run.case, run.plan)
    held = known.reserved_bytes(peak) / GIB, known.usable_bytes / GIB, percent(known.chance(peak))
    return run, peak / GIB, peak / GIB / run.gib - 1, *held


def _checks(ran: Sequence[Run]) -> Table:
    """Return whether stated distributions are those of the tables, and chances of jobs that ran."""
    checks, reserved = [], rows("reserved_memory.csv")
    for family, name in STATED.items():
        logs = [
            math.log(float(one["reserved_gib"]) / float(one["allocated_gib"]))
            for one in reserved if one["family"] == family and one["when"] in ("free", "full")
        ]  # fmt: skip
        told, found = (FRAGMENTS[name].mean, FRAGMENTS[name].sd), (mean(logs), stdev(logs))
        near = all(abs(a - b) < 0.001 for a, b in zip(told, found, strict=True))
        what = f"{family}: mean and deviation of log(reserved / allocated)"
        stated, measured = ("{:.3f} ± {:.3f}".format(*one) for one in (told, found))
        checks.append(Check(what, stated, measured, near))
    peaks = [(run, peak_bytes(run.case, run.plan)) for run in ran]
    off = {round(math.log(run.gib * GIB / peak), 4) for run, peak in peaks if run.gib}
    spread = math.sqrt(mean(one * one for one in sorted(off)))
    what = f"log(published / predicted peak), {len(off)} layouts: root mean square"
    near = abs(spread - PREDICTED_SD) < 0.001
    least = min(run.case.memory.chance(peak) for run, peak in peaks)
    flaky = next(common.run_of("flaky", one) for one in reserved if one["when"] == "fails")
    said = flaky.case.memory.chance(round(float(flaky.row["allocated_gib"]) * GIB))
    checks += [
        Check(what, f"{PREDICTED_SD:.4f}", f"{spread:.4f}", near),
        at_least("runs that ran: least chance to fit", SURE, least),
        reported("a recipe that runs in 40 to 70 % of tries", percent(said)),
    ]
    return shown("chances", checks)


def _torchtitan() -> Table:
    lines = []
    for run in runs("torchtitan-memory"):
        assert run.gib is not None
        peak = peak_bytes(run.case, run.plan)
        reserved = run.case.memory.reserved_bytes(peak) / GIB
        more = ", AsyncTP" * (run.row["async_tp"] == "yes")
        lines.append((run, more, peak / GIB, reserved, reserved / run.gib - 1))
    return shown("torchtitan", lines)


def calibrate() -> list[Table]:
    """Return the errors of runs on a B200 that a fit to three others predicts."""
    told = ("label", "case", "plan", "measured_ms")
    some = [run for run in runs("simumax") if run.case.cluster.cp == 1]
    ran = [MeasuredRun(**{name: getattr(run, name) for name in told}) for run in some]
    found, triples = [], list(combinations(ran, 3))
    with rare_collections():
        for picked in triples:
            others = [run for run in ran if run not in picked]
            times = predicted_ms(others, fit_runs(picked, on_all_cores), on_all_cores)
            ratios = (ms / one.measured_ms for ms, one in zip(times, others, strict=True))
            found.append(mean_off(ratio - 1 for ratio in ratios))
    worst = reported("mean error, worst triple", f"{max(found):.1%}")
    checks = at_most("mean error, median triple", 0.025, median(found)), worst
    return [shown("triples", checks, triples=len(triples), runs=len(ran))]
