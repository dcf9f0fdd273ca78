"""Rows of the door's table that are about what is asked: fields, bounds, names."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.support.door.exchange import Part
from tests.support.door.made import (
    LAYOUTS,
    MIB,
    SCALE,
    TUNE,
    Case,
    Row,
    cases,
    model,
    post,
    refused,
    send,
    without,
)
from tests.support.door.wire import NOBODY

LARGEST: Final = {"model": "llama3-405b", "gpus": 55440, "global_batch_size": 55440}
HEAVY: Final = {"model": "gpt3-175b"}
DEEP: Final = ["num_hidden_layers=4096", "hidden_size=256"]
CONFIG: Final[dict[str, Any]] = {
    "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 16,
    "intermediate_size": 2816, "vocab_size": 32000,
}  # fmt: skip
NEEDED: Final = "#/model #/profile #/tp #/seq_length #/micro_batch_size"


def tunes() -> dict[str, Case]:
    """Fields that a type refuses, and tunes that nobody can run, or wait for."""
    return refused("tunes", TUNE, {
        "an unknown key": ({"objective": "measure"}, "#/objective"),
        "the key of a file": ({"evidence": "/etc/passwd"}, "#/evidence"),
        "__proto__": ({"__proto__": {"admin": True}}, "#/__proto__"),
        "a key in capitals": ({"TP": 2}, "#/TP"),
        "a number among overrides": ({"overrides": ["a=1", 2]}, "#/overrides/1"),
        "an override of no number": (
            {"overrides": ["num_attention_heads=x"]}, "#/overrides bad-input"
        ),
        "65 overrides": ({"overrides": ["a=1"] * 65}, "#/overrides"),
        "10^12 sequences": (
            {"micro_batch_size": 10**9, "grad_accumulation": 10**9},
            "#/micro_batch_size #/grad_accumulation",
        ),
        "10^9 trials": ({"search": "random", "trials": 10**9}, "#/trials"),
        "a seed too large": ({"seed": 2**40}, "#/seed"),
        "an unknown search": ({"search": "__import__('os')"}, "#/search"),
        "a path for a profile": ({"profile": "/etc/passwd"}, "#/profile"),
        "SQL for a profile": ({"profile": "x'; DROP TABLE jobs; --"}, "#/profile"),
        "GPUs of a tune": ({"gpus": 4}, "#/gpus"),
        "the global batch of a tune": ({"global_batch_size": 4}, "#/global_batch_size"),
        **{f"a model {text}": ({"model": text}, "#/model") for text in ("a/b", "A", "x..y", "")},
        "a megabyte of name": ({"model": "m" * (MIB // 2)}, "#/model"),
        "a path for a model": ({"model": "../../etc/passwd"}, "#/model"),
        "a URL for a model": ({"model": "http://169.254.169.254/"}, "#/model"),
        "a template for a model": ({"model": "{{7*7}}"}, "#/model"),
        "a model of 10^12": ({"overrides": ["hidden_size=1000000000000"]}, "#/overrides/0"),
        "heads that are slow to check": ({"overrides": ["hidden_size=999999937"]}, "#/overrides/0"),
        "a size of 10^9 in parts": ({"overrides": ["hidden_size=1_000_000_000"]}, "#/overrides/0"),
        "a second override of 10^12": (
            {"overrides": ["vocab_size=1000", "n_embd=1000000000000"]}, "#/overrides/1"
        ),
        "4,096 by 4,096 ranks": ({"tp": 4096, "dp": 4096}, "#/dp"),
        "4,096 layers cut most": (
            {"overrides": DEEP[:1], "micro_batch_size": 16, "grad_accumulation": 8},
            "#/model",
        ),
        "a tune of a model that is not there": ({"model": "no-such-model"}, "# bad-input"),
        "heads that 7 ranks cannot share": ({"tp": 7}, "# bad-input"),
        "a pipeline for DeepSpeed": (
            {"target": "deepspeed", "pp": 2}, "#/pp infeasible-plan", "pipeline"
        ),
    }) | cases(422, {
        "nothing that is needed": Row(post(b"{}"), NEEDED),
        "no tp": Row(without("tunes", TUNE, "tp"), "#/tp"),
    })  # fmt: skip


def plans() -> dict[str, Case]:
    """Simulations, what-ifs and sweeps."""
    forward = {"tokens": ["a:" + "9" * 5000 + "+0"]}
    return refused("simulations", TUNE, {
        "a plan that is empty": ({"plan": {}}, "#/plan bad-plan-file"),
        "a plan that is none": ({"plan": {"schema": 1e3}}, "#/plan bad-plan-file"),
        "the name of a file for a plan": ({"plan": "file.json"}, "#/plan"),
        "a simulation on 3 ranks": ({"tp": 3}, "# bad-input"),
        "a simulation on a profile that is not there": ({"profile": "nobodys"}, "# bad-input"),
        "more row slices than sequences": (
            {"row_slices": 16, "micro_batch_size": 1}, "#/slice_dim infeasible-plan"
        ),
    }) | refused("simulations", {}, {
        "a plan of 10^12": (
            {"plan": {"model": {"hidden_size": 10**12}}}, "#/plan/model/hidden_size"
        ),
        "a plan of 10^12 ranks": ({"plan": {"cluster": {"tp": 10**12}}}, "#/plan/cluster/tp"),
        "a stride of 10^6": (
            {"plan": {"order": {"forward": {"stride": 10**6}}}}, "#/plan/order/forward/stride"
        ),
        "20,001 tokens": (
            {"plan": {"order": {"backward": {"tokens": ["a:0+0"] * 20_001}}}},
            "#/plan/order/backward/tokens",
        ),
        "a token of 5,000 digits": (
            {"plan": {"order": {"forward": forward}}}, "#/plan/order/forward/tokens/0"
        ),
    }) | refused("what-ifs", TUNE, {
        "a what-if without a change": ({}, "#/change #/sweep bad-input"),
        "a change without a value": ({"change": ["link_bandwidth"]}, "#/change bad-input"),
        "a change of magic": ({"change": ["magic=2x"]}, "#/change bad-input"),
        "a change that tunes again": ({"change": ["tp=2"], "retune": True}, "#/retune"),
        "a change of 10^9": ({"change": ["tp=999999999"]}, "#/change"),
        "a change by 10^9": ({"change": ["tp=1000000000x"]}, "#/change"),
        "a change by 10^6 tokens": ({"change": ["seq_length=1e6x"]}, "#/change"),
    }) | refused("sweeps", TUNE, {
        "a sweep of 10^9": ({"sweep": "tp=1000000000,2"}, "#/sweep"),
        "a sweep that ends large": ({"sweep": "micro_batch_size=1,2,99999999"}, "#/sweep"),
        "a sweep of 399 values": ({"sweep": "tp=" + ",".join(map(str, range(1, 400)))}, "#/sweep"),
        "a sweep without values": ({"sweep": "tp"}, "#/sweep bad-input"),
        "a sweep over speed": ({"sweep": "speed=2x"}, "#/sweep bad-input"),
        "a sweep of a bad change": ({"sweep": "tp=2,4", "change": ["tp=x"]}, "# bad-input"),
    })  # fmt: skip


def searches() -> dict[str, Case]:
    """Searches of layouts, at one number of GPUs and at several."""
    numbers = "rising whole numbers"
    return refused("layouts", LAYOUTS, {
        "layouts of null": ({"gpus": None}, "#/gpus"),
        "layouts of a text": ({"gpus": "4"}, "#/gpus"),
        "layouts of 0 GPUs": ({"gpus": 0}, "#/gpus"),
        "layouts of 65,537 GPUs": ({"gpus": (1 << 16) + 1}, "#/gpus"),
        "layouts of 10^9 GPUs": ({"gpus": 10**9}, "#/gpus"),
        "layouts of 10^12 sequences": ({"global_batch_size": 10**12}, "#/global_batch_size"),
        "layouts of 2^20 + 1": ({"global_batch_size": (1 << 20) + 1}, "#/global_batch_size"),
        "layouts of half a day": ({"global_batch_size": 1 << 20}, "#/global_batch_size"),
        "layouts without number": ({**LARGEST, "seq_length": 1 << 24}, "#/gpus"),
        "layouts without number, shorter": ({**LARGEST, "seq_length": 1 << 17}, "#/gpus"),
        "layouts of 4,096 layers": ({"overrides": DEEP}, "#/model"),
        "layouts of two searches": ({"search": "random", "trials": 1}, "#/search #/trials"),
        "layouts by another search": ({"search": "bayes"}, "#/search"),
        "layouts with a seed": ({"seed": 1}, "#/seed"),
        "layouts that are measured": ({"objective": "measure"}, "#/objective"),
        "layouts on 3 nodes": ({"nodes": 3}, "#/nodes bad-input"),
        "layouts of a given accumulation": ({"grad_accumulation": 2}, "#/grad_accumulation"),
        "layouts of a large micro-batch": ({"micro_batch_size": 1 << 20}, "#/micro_batch_size"),
        "layouts of a model that is not there": ({"model": "no-such-model"}, "# bad-input"),
        "layouts that divide nothing": (
            {"tp": 3}, "#/micro_batch_size bad-input", "No layout divides 8 GPUs"
        ),
        "layouts that fit nowhere": (
            {**HEAVY, "global_batch_size": 512}, "#/gpus infeasible-plan", "gpus = "
        ),
    }) | refused("scales", SCALE, {
        "a scale over tp": ({"sweep": "tp=2,4"}, "#/sweep bad-input", numbers),
        "a scale of one number": ({"sweep": "gpus=4"}, "#/sweep bad-input", f"2 to 32 {numbers}"),
        "a scale of 10^5 GPUs": ({"sweep": "gpus=2,100000"}, "#/gpus bad-input", "65536"),
        "a scale of 10^9 GPUs": ({"sweep": "gpus=8,1000000000"}, "#/sweep bad-input"),
        "a scale without a layout": (
            {"tp": 5}, "#/sweep #/micro_batch_size bad-input", "No number of GPUs in sweep"
        ),
        "a scale of a model that is not there": (
            {"model": "gpt"}, "# bad-input", "Unknown model 'gpt'"
        ),
        "a scale of GPUs": ({"gpus": 4}, "#/gpus"),
        "a scale for DeepSpeed": ({"target": "deepspeed"}, "#/target"),
        "a scale of 2^20": ({"global_batch_size": 1 << 20}, "#/global_batch_size", "at most"),
        "a scale that fits nowhere": (
            {**HEAVY, "sweep": "gpus=2,4"}, "#/sweep #/gpus infeasible-plan"
        ),
    }) | cases(422, {
        "layouts without GPUs": Row(without("layouts", LAYOUTS, "gpus"), "#/gpus"),
        "layouts without a batch": Row(
            without("layouts", LAYOUTS, "global_batch_size"), "#/global_batch_size"
        ),
        "layouts of a tune": Row(
            without("layouts", {**TUNE, "trials": 4}), "#/gpus #/global_batch_size #/trials"
        ),
    })  # fmt: skip


def models_and_labels() -> dict[str, Case]:
    """Configs that are no models, and labels that are no words."""
    large = {**CONFIG, "num_hidden_layers": 10**9, "hidden_size": 10**9, "vocab_size": 10**9}
    labels: dict[str, Any] = {
        "an empty label": "", "a blank label": " ", "a label of two lines": "a\nb",
        "a label that rings": "\x07", "a label that titles a terminal": "\x1b]0;x",
        "a label read backwards": "a\u202eb", "a label of 101": "x" * 101,
        "a number for a label": 5, "a list for a label": ["a"], "NUL for a label": "\0",
    }  # fmt: skip
    return cases(422, {
        "a model that is empty": Row(model({}), "# bad-input"),
        "a model larger than any": Row(model(large), "#", "num_hidden_layers may be"),
        "a model of 10^6 layers": Row(model({**CONFIG, "num_hidden_layers": 10**6}), "#"),
        "a size in words": Row(model({**CONFIG, "hidden_size": "large"}), "# bad-input"),
        "a model of experts": Row(model({**CONFIG, "model_type": "mixtral"}), "# bad-input"),
        "a llama of experts": Row(model({**CONFIG, "num_local_experts": 8}), "# bad-input"),
        **{name: Row(_label({"label": value}), "#/label") for name, value in labels.items()},
        "no label": Row(_label({}), "#/label"),
    }) | cases(409, {"the name of a preset": model(CONFIG, "gpt3-13b")})  # fmt: skip


def _label(body: Any) -> list[Part]:
    return [send("PATCH", f"/v1/jobs/{NOBODY}", json.dumps(body).encode())]
