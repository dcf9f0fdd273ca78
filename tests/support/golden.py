"""Golden predictions: answers of all verbs, to be equal to the byte after a change of the core.

    python -m tests.support.golden            print what differs from the file in results/
    python -m tests.support.golden --write    write them into the file

Each case is drawn from a seed. Of its answer the file holds the numbers that tell most, and the
digest of its whole JSON. Refusals are answers too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import domino_tune
from domino_tune.base.tables import print_line
from domino_tune.results import to_json
from simulator.errors import DominoTuneError
from simulator.implementation import IMPLEMENTATIONS

FILE: Final = Path(__file__).resolve().parents[2] / "results" / "golden_predictions.json"
PROFILES: Final = ("h100-dgx", "a100-sxm", "h200-sxm", "b200-sxm")
LONGEST: Final = {
    "gpt3-1.3b": 2048, "gpt3-6.7b": 2048, "gpt3-13b": 2048, "llama2-7b": 4096, "llama3-8b": 8192,
    "llama3-70b": 8192,
}  # fmt: skip
"""Model -> tokens of its longest sequence here."""
FEW: Final = ("num_hidden_layers=8",)
RECIPES: Final[dict[str, tuple[str, ...]]] = {
    "llama3-8b": (), "qwen3-8b": (), "qwen3-30b-a3b": FEW, "mixtral-8x7b": FEW, "deepseek-v3": FEW,
    "gpt-oss-20b": FEW, "llama4-scout": FEW,
}  # fmt: skip
"""Model -> what is changed of it; nothing of those without experts."""
RECIPE: Final = "recipe"
"""Simulated jobs in FP8 and with experts."""
COUNTS: Final = {
    "simulate": 222, "whatif": 40, "tune": 24, "layout": 10, "scale": 4, RECIPE: 60
}  # fmt: skip
SEEDS: Final = {"layout": "tune_layouts", "scale": "tune_scale"}
"""Words of seeds that are not the verb's: its name when the cases were drawn."""
LATER: Final[dict[str, object]] = {
    "fp8_recipe": "none", "fp8_param_gather": False, "num_layers_at_start_in_bf16": 0,
    "num_layers_at_end_in_bf16": 0, "ranks_per_domain": 0, "num_experts": 0,
    "num_experts_per_tok": 0, "moe_intermediate_size": 0, "shared_expert_intermediate_size": 0,
    "first_k_dense_replace": 0, "q_lora_rank": 0, "kv_lora_rank": 0, "qk_rope_head_dim": 0,
    "v_head_dim": 0, "num_nextn_predict_layers": 0, "ep": 1, "etp": 0,
    "moe_dispatcher": "alltoall", "moe_imbalance": 1.0, "moe_shared_expert_overlap": False,
    "cuda_graph_scope": [], "cost": None, "moments_dtype": "fp32", "recompute_modules": [],
    "moe_dispatcher_sms": 0, "swiglu_limit": 0.0,
}  # fmt: skip
"""Fields of a job that came after the file was written -> what they are where nobody asks."""
LOOKED_AT: Final = ("evaluations", "pruned")
"""How many plans a search looked at, which the last digit of a bound decides: processors add up
differently, and find the same. Of its trials, the fastest counts."""
FUSED_ROWS: Final = "moe_permute_fusion"
"""A key of an implementation that came later still."""
NUMBERS: Final = ("iteration_ms", "speedup", "mfu", "peak_memory_gib", "clock_mhz")
"""Fields of an answer that the file holds beside its digest; of a search's also those of the best,
with its plan."""


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, or write. Return 1 where an answer differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write them into the file")
    parser.add_argument("--only", metavar="VERB", choices=COUNTS, help="a verb's cases, or recipe")
    options = parser.parse_args(argv)
    found = {}
    for name, verb, arguments in cases():
        if options.only in (None, name.partition("-")[0]):
            asked = json.loads(json.dumps({"verb": verb, **arguments}))
            found[name] = {"ask": asked, **answer(verb, arguments)}
            print(name, file=sys.stderr, flush=True)
    known = json.loads(FILE.read_text("utf-8"))
    if options.write:
        FILE.write_text(json.dumps(known | found, indent=1) + "\n", "utf-8")
        return 0
    differ = [name for name, one in found.items() if known.get(name) != one]
    for name in differ:
        print_line(f"{name}: {known.get(name)}\n  now: {found[name]}")
    print_line(f"{len(found)} cases, {len(differ)} differ")
    return int(bool(differ))


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield name, verb and arguments of each case."""
    for group, count in COUNTS.items():
        for number in range(count):
            rng = random.Random(f"{SEEDS.get(group, group)} {number}")
            if group == RECIPE:
                yield f"{group}-{number}", "simulate", _recipe(rng)
            else:
                yield f"{group}-{number}", group, drawn(group, rng)


def answer(verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the digest of an answer, less its seconds, and what tells most of it, or the text of a
    refusal."""
    try:
        result = getattr(domino_tune, verb)(**arguments)
    except DominoTuneError as refused:
        return {"refused": str(refused)}
    whole = json.loads(json.dumps(to_json(result)), object_hook=_without_seconds)
    digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
    found = {"digest": digest, **_told(whole, NUMBERS)}
    return {**found, "best": _told(whole["best"], (*NUMBERS, "plan"))} if "best" in whole else found


def _told(whole: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: whole[name] for name in names if name in whole}


def _without_seconds(told: dict[str, Any]) -> dict[str, Any]:
    """Return an object without the time that its answer took and how many plans were looked at, and
    without what was not asked in words that came after the file was written."""
    if "trials" in told:
        told["trials"] = min(told["trials"], key=lambda one: one["iteration_ms"])
    if FUSED_ROWS in told and told[FUSED_ROWS] == IMPLEMENTATIONS[told["name"]].moe_permute_fusion:
        del told[FUSED_ROWS]
    return {
        name: value
        for name, value in told.items()
        if name not in ("seconds", *LOOKED_AT) and not (name in LATER and value == LATER[name])
    }


def drawn(verb: str, rng: random.Random) -> dict[str, Any]:
    """Return the arguments of a case."""
    whole = verb in ("layout", "scale")
    model = rng.choice(list(LONGEST)[: 5 if whole else 6])
    lengths = [length for length in (1024, 2048, 4096, 8192) if length <= LONGEST[model]]
    job: dict[str, Any] = {
        "model": model, "profile": rng.choice(PROFILES), "seq_length": rng.choice(lengths),
    }  # fmt: skip
    if whole:
        job["global_batch_size"] = rng.choice((32, 64))
        return job | {"gpus": 8 if verb == "layout" else (8, 16)}
    job |= {"tp": rng.choice((2, 4, 8)), "micro_batch_size": rng.choice((1, 2, 4, 8))}
    if verb == "tune":
        return job | {"overrides": ("num_hidden_layers=4",)} | _options(rng)
    job |= _layout(rng) | _options(rng) | _plan(rng, job["micro_batch_size"])
    if verb == "whatif":
        job["change"] = (
            rng.choice((
                "link_bandwidth=2x", "link_bandwidth=0.5x", "gpu_flops=1.5x", "contention=off",
                "memory_bandwidth=0.7x", "link_latency=3x",
            )),
        )  # fmt: skip
    return job


def _layout(rng: random.Random) -> dict[str, Any]:
    return rng.choice((
        {}, {}, {"grad_accumulation": 3}, {"dp": 2, "grad_accumulation": 2},
        {"dp": 4, "data_parallel": "fsdp"}, {"dp": 2, "data_parallel": "replicas"},
        {"pp": 2, "grad_accumulation": 8}, {"pp": 4, "vpp": 2, "grad_accumulation": 8},
        {"pp": 2, "grad_accumulation": 4, "pp_schedule": "zero-bubble"}, {"cp": 2},
    ))  # fmt: skip


def _options(rng: random.Random) -> dict[str, Any]:
    return rng.choice((
        {}, {}, {}, {"recompute": "selective"}, {"recompute": "full"},
        {"recompute": "full", "recompute_layers": 2}, {"recompute": "per-op"},
        {"cuda_graph": True}, {"power_cap": "500W"}, {"clock_mhz": 1200},
        {"implementation": "megatron-2022"}, {"implementation": "torch"},
        {"sequence_parallel": False},
    ))  # fmt: skip


def _plan(rng: random.Random, batch: int) -> dict[str, Any]:
    strategy = rng.choice(("domino", "domino", "domino", "megatron", "userbuffers", "async-tp"))
    if strategy != "domino":
        return {"strategy": strategy}
    rows = rng.choice([n for n in (1, 2, 3, 4) if n <= batch])
    plan: dict[str, Any] = {"row_slices": rows, "merge_wgrad": rng.random() < 0.3}
    if batch == 1 and rng.random() < 0.5:
        return {"row_slices": 2, "slice_dim": "sequence"}
    if rows == 2 and rng.random() < 0.3:
        return {"row_slices": 2, "order": rng.choice(("inter", "intra", "paper"))}
    return plan | {"col_slices": rng.choice((1, 2, 4))}


def _recipe(rng: random.Random) -> dict[str, Any]:
    model, profile = rng.choice(list(RECIPES)), rng.choice(("h100-dgx", "b200-sxm"))
    recipes = ("none", "delayed", "tensorwise", "mxfp8" if profile == "b200-sxm" else "blockwise")
    job: dict[str, Any] = {
        "model": model, "profile": profile, "seq_length": rng.choice((2048, 4096)),
        "tp": rng.choice((1, 2, 4)), "micro_batch_size": rng.choice((1, 2, 4)),
        "fp8_recipe": rng.choice(recipes), "dp": 8,
    }  # fmt: skip
    if job["fp8_recipe"] != "none":
        job["fp8_param_gather"] = rng.random() < 0.3
    if RECIPES[model]:
        job |= {
            "ep": rng.choice((2, 4, 8)), "etp": rng.choice((1, job["tp"])),
            "moe_dispatcher": rng.choice(("alltoall", "allgather", "deepep", "hybridep")),
            "moe_imbalance": rng.choice(("1", "1", "1.5")), "overrides": RECIPES[model],
        }  # fmt: skip
    else:
        job["data_parallel"] = rng.choice(("distributed-optimizer", "fsdp"))
    job |= rng.choice(({}, {"grad_accumulation": 4}, {"pp": 2, "grad_accumulation": 8}))
    job |= rng.choice((
        {}, {}, {"recompute": "selective"}, {"recompute": "full"}, {"cuda_graph": True},
        {"sequence_parallel": False},
    ))  # fmt: skip
    hidden = "ep-overlap" if RECIPES[model] and "grad_accumulation" in job else "megatron"
    return job | rng.choice((
        {"row_slices": min(2, job["micro_batch_size"])}, {"strategy": hidden}, {"col_slices": 2},
        {"row_slices": 1},
    ))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
