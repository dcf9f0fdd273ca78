"""Power sections of the bundled profiles: few points of record bound the law; the rest is assumed.

One state is known of each GPU: GEMMs without end, at the cap. Our H200 was seen in it: 1,470 MHz,
690 W (data/measured/power_points.csv); of an A100 the clock is published; H100 and B200 are assumed
to be like the H200. From that state follow what GEMMs draw and at what clock timings were taken:
the same GEMM that ran at 666 TFLOP/s in it had run at 790 in the first 20 ms after rest, as our
bursts do. Where a table has many GEMMs, long ones, which heat the GPU while they are timed, say how
far its clock had fallen.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from lab.fits.common import rounded
from lab.fits.parts import ASSUMED_ERROR
from simulator.lookup.gemm import GemmRow
from simulator.power import FamilyPower, PowerSection, RowClock
from simulator.provenance import Provenance, ProvenanceKind

H200_BOOST_MHZ: Final = 1980
B200_BOOST_MHZ: Final = 1965
B200_CAP_W: Final = 1000.0
A100_CAP_W: Final = 400.0
A100_BOOST_MHZ: Final = 1410
A100_LASTING_MHZ: Final = (1200, 1350)
"""Clocks of large GEMMs at the cap, 1,410 MHz requested (data/measured/power_points.csv)."""
EXPONENT: Final = 2.0
"""Dynamic power goes with the clock and the square of the voltage. The voltage follows the clock in
part: between 1 (a constant one, as far below boost) and 3 (a proportional one)."""
CLOCK_SPREAD: Final = 0.03
DRAWS: Final = {"attention": (1.0, 0.2), "pointwise": (0.3, 0.3), "collective": (0.15, 0.5)}
"""What others draw, as a share of GEMMs' watts above idle, and its error: attention keeps the same
tensor cores busy; copies the memory; a collective some SMs and the links. Nobody measured them."""
GEMM_ERROR: Final = 0.1
"""Of our H200's, which was seen at one clock; ASSUMED_ERROR where it stands for another GPU."""
ELASTICITIES: Final = {"gemm": 1.0, "attention": 1.0, "pointwise": 0.0, "collective": 0.2}
"""897 TFLOP/s, our H200's fastest GEMM, is 666 × 1,980 / 1,470: a GEMM goes with the clock."""
FASTEST: Final = 0.9
"""Quantile of GEMMs' FLOP/s that is taken for what the clock allows."""


def power_points(data: Path) -> list[Mapping[str, str]]:
    """Return the published points and our own."""
    with (data / "measured" / "power_points.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


class Lasting:
    """GEMMs without end on an H200: clock, watts, FLOP/s in that state and in the first 20 ms."""

    def __init__(self, data: Path) -> None:
        ours = [point for point in power_points(data) if point["gpu"] == "H200 SXM"]
        lasting, burst, rest = ours
        self.clock_mhz = int(lasting["clock_mhz"])
        self.watts = float(_number_before(lasting["what"], " W"))
        self.cap_w = float(lasting["cap_w"])
        self.idle_w = float(_number_before(rest["what"], " W"))
        self.burst_mhz = self.clock_mhz * float(burst["tflops"]) / float(lasting["tflops"])


def _number_before(text: str, unit: str) -> str:
    return text.split(unit)[0].split()[-1]


def hopper_power(data: Path, *, measured: bool, rows: Sequence[GemmRow] = ()) -> PowerSection:
    """Return the section of an H200, whose state was ``measured``, or of an H100.

    ``rows``: the table whose long GEMMs ran at a lower clock than its middle ones.
    """
    lasting = Lasting(data)
    known: ProvenanceKind = "measured" if measured else "assumed"
    return _section(
        boost_mhz=H200_BOOST_MHZ,
        cap_w=lasting.cap_w,
        idle_w=lasting.idle_w,
        lasting_mhz=lasting.clock_mhz,
        lasting_w=lasting.watts,
        gemm_kind="fitted" if measured else "assumed",
        clocks=_from_short(rows, lasting.burst_mhz, (700.0, 1500.0, 8000.0)),
        kinds={"boost_mhz": known, "cap_w": "imported", "idle_w": known},
        provenance=Provenance(
            kind="fitted" if measured else "assumed",
            source="our H200's record: 1,470 MHz, 690 of 700 W and 666 TFLOP/s after a long run, "
            "790 in the first 20 ms, 134 W at rest"
            + ("" if measured else "; an H100 SXM is assumed to be alike"),
            note="A timing's clock is that at which GEMMs that last would run at its FLOP/s; of an "
            "H100, long ones by the table itself.",
        ),
    )


def b200_power(data: Path, rows: Sequence[GemmRow]) -> PowerSection:
    """Return the section of a B200; its long GEMMs are those of a lasting load."""
    lasting = Lasting(data)
    share = lasting.clock_mhz / H200_BOOST_MHZ
    return _section(
        boost_mhz=B200_BOOST_MHZ,
        cap_w=B200_CAP_W,
        idle_w=rounded(lasting.idle_w * B200_CAP_W / lasting.cap_w, 3),
        lasting_mhz=round(share * B200_BOOST_MHZ),
        lasting_w=B200_CAP_W,
        gemm_kind="assumed",
        clocks=_from_long(rows, round(share * B200_BOOST_MHZ), (100.0, 1200.0)),
        kinds={"boost_mhz": "assumed", "cap_w": "imported", "idle_w": "assumed"},
        provenance=Provenance(
            kind="assumed",
            source="1,000 W by NVIDIA's data sheet; as our H200 in proportion to the cap",
            note="SimuMax times a GEMM in a hundred runs one after the other: those that last "
            "1.2 ms or more have nearly one rate at all shapes, a fourth below that of short ones. "
            "They are taken for timed at the cap, and short ones for faster by their rate.",
        ),
    )


def a100_power(data: Path, rows: Sequence[GemmRow]) -> PowerSection:
    """Return the section of an A100; its long GEMMs are those of a lasting load."""
    lasting = Lasting(data)
    clock_mhz = round(statistics.fmean(A100_LASTING_MHZ))
    return _section(
        boost_mhz=A100_BOOST_MHZ,
        cap_w=A100_CAP_W,
        idle_w=rounded(lasting.idle_w * A100_CAP_W / lasting.cap_w, 3),
        lasting_mhz=clock_mhz,
        lasting_w=A100_CAP_W,
        gemm_kind="assumed",
        clocks=_from_long(rows, clock_mhz, (700.0, 1500.0)),
        kinds={"boost_mhz": "imported", "cap_w": "imported", "idle_w": "assumed"},
        provenance=Provenance(
            kind="assumed",
            source="large GEMMs at 1,200 to 1,350 MHz and 400 W "
            "(Evansika959/aiconfigurator_overlap_exp); else as our H200 in proportion to the cap",
            note="Long GEMMs of the table run at the rate that is published for normal random "
            "inputs after a long run, 257 TFLOP/s: they are taken for timed at the cap.",
        ),
    )


def _section(
    *,
    boost_mhz: int,
    cap_w: float,
    idle_w: float,
    lasting_mhz: int,
    lasting_w: float,
    gemm_kind: ProvenanceKind,
    clocks: Sequence[tuple[float, float]],
    kinds: dict[str, ProvenanceKind],
    provenance: Provenance,
) -> PowerSection:
    gemm_w = (lasting_w - idle_w) * (boost_mhz / lasting_mhz) ** EXPONENT
    families = [
        FamilyPower(
            family="gemm", draw_w=rounded(gemm_w, 4), elasticity=ELASTICITIES["gemm"],
            kind=gemm_kind, error=ASSUMED_ERROR if gemm_kind == "assumed" else GEMM_ERROR,
        ),
        *(
            FamilyPower(
                family=name, draw_w=rounded(share * gemm_w, 4), elasticity=ELASTICITIES[name],
                kind="assumed", error=error,
            )
            for name, (share, error) in DRAWS.items()
        ),
    ]  # fmt: skip
    gemms = [RowClock("gemm", from_us, rounded(mhz, 4)) for from_us, mhz in clocks]
    short = RowClock("attention", 0.0, gemms[0].clock_mhz)
    return PowerSection(
        boost_mhz=boost_mhz,
        cap_w=cap_w,
        idle_w=idle_w,
        exponent=EXPONENT,
        clock_spread=CLOCK_SPREAD,
        families=tuple(families),
        row_clocks=(short, RowClock("collective", 0.0, float(boost_mhz)), *gemms),
        kinds={**kinds, "exponent": "assumed", "clock_spread": "assumed"},
        provenance=provenance,
    )


def _from_short(
    rows: Sequence[GemmRow], clock_mhz: float, from_us: Sequence[float]
) -> list[tuple[float, float]]:
    """Return (duration, clock) of timings, of which short ones ran at ``clock_mhz``."""
    if not rows:
        return [(0.0, clock_mhz)]
    rates = _rates(rows, from_us)
    return [(0.0, clock_mhz), (from_us[0], clock_mhz), *(
        (at, clock_mhz * rate / rates[0]) for at, rate in zip(from_us[1:], rates[1:], strict=True)
    )]  # fmt: skip


def _from_long(
    rows: Sequence[GemmRow], clock_mhz: float, from_us: Sequence[float]
) -> list[tuple[float, float]]:
    """Return (duration, clock) of timings, of which the longest ran at ``clock_mhz``."""
    rates = _rates(rows, from_us)
    short_mhz = clock_mhz * rates[0] / rates[-1]
    return [(0.0, short_mhz), (from_us[0], short_mhz), (from_us[-1], clock_mhz)]


def _rates(rows: Iterable[GemmRow], from_us: Sequence[float]) -> list[float]:
    """Return what the fastest GEMMs reach: those below ``from_us[0]`` that fill the GPU, and those
    from each other duration on, up to the next."""
    bounds = [*from_us[1:], float("inf")]
    spans = [(from_us[0] / 4, from_us[0]), *zip(from_us[1:], bounds[1:], strict=True)]
    rates = []
    for low, high in spans:
        found = [2 * row.m * row.n * row.k / row.median_us for row in rows
                 if low <= row.median_us < high]  # fmt: skip
        rates.append(statistics.quantiles(found, n=10)[round(FASTEST * 10) - 1])
    return rates
