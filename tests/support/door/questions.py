"""Rows of the door's table that are about what is asked: fields, bounds, names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from tests.support.door.exchange import Part
from tests.support.door.made import (
    LAYOUTS,
    MIB,
    SCALE,
    TUNE,
    Case,
    Row,
    ask,
    cases,
    layouts,
    model,
    post,
    send,
    tune,
    without,
)
from tests.support.door.wire import NOBODY

LARGEST: Final[dict[str, Any]] = {
    "model": "llama3-405b", "gpus": 55440, "global_batch_size": 55440, "overrides": [],
}  # fmt: skip
HEAVY: Final[dict[str, Any]] = {"model": "gpt3-175b", "overrides": []}
CONFIG: Final[dict[str, Any]] = {
    "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 16,
    "intermediate_size": 2816, "vocab_size": 32000,
}  # fmt: skip


def fields() -> dict[str, Case]:
    """Keys and values of tunes that a type refuses."""
    long = {f"a model {text}": tune(model=text) for text in ("a/b", "A", "x..y", "")}
    return cases(422, {
        "an unknown key": Row(tune(objective="measure"), "#/objective"),
        "the key of a file": Row(tune(evidence="/etc/passwd"), "#/evidence"),
        "__proto__": Row(tune(__proto__={"admin": True}), "#/__proto__"),
        "a key in capitals": Row(tune(TP=2), "#/TP"),
        "nothing that is needed": Row(
            post(b"{}"), "#/model #/profile #/tp #/seq_length #/micro_batch_size"
        ),
        "no tp": Row(without("tunes", TUNE, "tp"), "#/tp"),
        "a number among overrides": Row(tune(overrides=["a=1", 2]), "#/overrides/1"),
        "an override that is no number": Row(
            tune(overrides=["num_attention_heads=x"]), "#/overrides", "bad-input"
        ),
        "65 overrides": Row(tune(overrides=["a=1"] * 65), "#/overrides"),
        "10^12 sequences": Row(
            tune(micro_batch_size=10**9, grad_accumulation=10**9),
            "#/micro_batch_size #/grad_accumulation",
        ),
        "10^9 trials": Row(tune(search="random", trials=10**9), "#/trials"),
        "a seed too large": Row(tune(seed=2**40), "#/seed"),
        "an unknown search": Row(tune(search="__import__('os')"), "#/search"),
        "a path for a profile": Row(tune(profile="/etc/passwd"), "#/profile"),
        "SQL for a profile": Row(tune(profile="x'; DROP TABLE jobs; --"), "#/profile"),
        "GPUs of a tune": Row(tune(gpus=4), "#/gpus"),
        "the global batch of a tune": Row(tune(global_batch_size=4), "#/global_batch_size"),
        **long,
        "a megabyte of name": tune(model="m" * (MIB // 2)),
        "a path for a model": tune(model="../../etc/passwd"),
        "a URL for a model": tune(model="http://169.254.169.254/"),
        "a template for a model": tune(model="{{7*7}}"),
    }, at="#/model")  # fmt: skip


def bounds() -> dict[str, Case]:
    """Tunes and what is like them that could not be computed, or take too long."""
    tokens = {"order": {"forward": {"tokens": ["a:" + "9" * 5000 + "+0"]}}}
    sharp = {**TUNE, "change": ["tp=1000000000x"]}
    return cases(422, {
        "a model of 10^12": Row(tune(overrides=["hidden_size=1000000000000"]), "#/overrides/0"),
        "heads that take long to check": Row(
            tune(overrides=["hidden_size=999999937"]), "#/overrides/0"
        ),
        "4,096 layers cut most": Row(
            tune(overrides=["num_hidden_layers=4096"], micro_batch_size=16, grad_accumulation=8),
            "#/model",
        ),
        "a tune of a model that is not there": Row(tune(model="no-such-model"), "#", "bad-input"),
        "heads that 7 ranks cannot share": Row(tune(tp=7), "#", "bad-input"),
        "a pipeline for DeepSpeed": Row(
            tune(target="deepspeed", pp=2), "#/pp", "infeasible-plan", "pipeline"
        ),
        "a plan that is none": Row(
            post(b'{"plan": {"schema": 1e3}}', "/v1/simulations"), "#/plan", "bad-plan-file"
        ),
        "a plan that is empty": Row(
            ask("simulations", TUNE, plan={}), "#/plan", "bad-plan-file"
        ),
        "the name of a file for a plan": Row(ask("simulations", TUNE, plan="file.json"), "#/plan"),
        "a plan of 10^12": Row(
            ask("simulations", {}, plan={"model": {"hidden_size": 10**12}}),
            "#/plan/model/hidden_size",
        ),
        "a token of 5,000 digits": Row(
            ask("simulations", {}, plan=tokens), "#/plan/order/forward/tokens/0"
        ),
        "a simulation on 3 ranks": Row(ask("simulations", TUNE, tp=3), "#", "bad-input"),
        "a simulation on a profile that is not there": Row(
            ask("simulations", TUNE, profile="no-such-machine"), "#", "bad-input"
        ),
        "more row slices than sequences": Row(
            ask("simulations", TUNE, row_slices=16, micro_batch_size=1), "#/slice_dim",
            "infeasible-plan",
        ),
        "a what-if without a change": Row(ask("what-ifs", TUNE), "#/change #/sweep", "bad-input"),
        "a change without a value": Row(
            ask("what-ifs", TUNE, change=["link_bandwidth"]), "#/change", "bad-input"
        ),
        "a change of magic": Row(
            ask("what-ifs", TUNE, change=["magic=2x"]), "#/change", "bad-input"
        ),
        "a change that tunes again": Row(
            ask("what-ifs", TUNE, change=["tp=2"], retune=True), "#/retune"
        ),
        "a change of 10^9": Row(post(json.dumps(sharp).encode(), "/v1/what-ifs"), "#/change"),
        "a sweep of 10^9": Row(ask("sweeps", TUNE, sweep="tp=1000000000,2"), "#/sweep"),
        "a sweep without values": Row(ask("sweeps", TUNE, sweep="tp"), "#/sweep", "bad-input"),
        "a sweep over speed": Row(ask("sweeps", TUNE, sweep="speed=2x"), "#/sweep", "bad-input"),
        "a sweep of a change that is none": Row(
            ask("sweeps", TUNE, sweep="tp=2,4", change=["tp=x"]), "#", "bad-input"
        ),
    })  # fmt: skip


def searches() -> dict[str, Case]:
    """Searches of layouts, at one number of GPUs and at several."""
    deep = ["num_hidden_layers=4096", "hidden_size=256"]
    numbers = "rising whole numbers"
    return {
        **cases(422, {
            "layouts without GPUs": Row(without("layouts", LAYOUTS, "gpus"), "#/gpus"),
            "layouts without a batch": Row(
                without("layouts", LAYOUTS, "global_batch_size"), "#/global_batch_size"
            ),
            "layouts of a tune": Row(
                ask("layouts", {**TUNE, "search": "random"}), "#/gpus #/global_batch_size #/search"
            ),
            "layouts of null": Row(layouts(gpus=None), "#/gpus"),
            "layouts of a text": Row(layouts(gpus="4"), "#/gpus"),
            "layouts of 0 GPUs": Row(layouts(gpus=0), "#/gpus"),
            "layouts of 65,537 GPUs": Row(layouts(gpus=(1 << 16) + 1), "#/gpus"),
            "layouts of 10^9 GPUs": Row(layouts(gpus=10**9), "#/gpus"),
            "layouts of 10^12 sequences": Row(
                layouts(global_batch_size=10**12), "#/global_batch_size"
            ),
            "layouts of 2^20 sequences and one": Row(
                layouts(global_batch_size=(1 << 20) + 1), "#/global_batch_size"
            ),
            "layouts of half a day": Row(
                layouts(global_batch_size=1 << 20), "#/global_batch_size"
            ),
            "layouts without number": Row(layouts(**LARGEST, seq_length=1 << 24), "#/gpus"),
            "layouts without number, shorter": Row(
                layouts(**LARGEST, seq_length=1 << 17), "#/gpus"
            ),
            "layouts of 4,096 layers": Row(layouts(overrides=deep), "#/model"),
            "layouts of one search in another": Row(
                layouts(search="random", trials=1), "#/search #/trials"
            ),
            "layouts by another search": Row(layouts(search="bayes"), "#/search"),
            "layouts with a seed": Row(layouts(seed=1), "#/seed"),
            "layouts that are measured": Row(layouts(objective="measure"), "#/objective"),
            "layouts on 3 nodes": Row(layouts(nodes=3), "#/nodes", "bad-input"),
            "layouts of a given accumulation": Row(
                layouts(grad_accumulation=2), "#/grad_accumulation"
            ),
            "layouts of a large micro-batch": Row(
                layouts(micro_batch_size=1 << 20), "#/micro_batch_size"
            ),
            "layouts of a model that is not there": Row(
                layouts(model="no-such-model"), "#", "bad-input"
            ),
            "layouts that divide nothing": Row(
                layouts(tp=3), "#/micro_batch_size", "bad-input", "No layout divides 8 GPUs"
            ),
            "layouts that fit nowhere": Row(
                layouts(**HEAVY, global_batch_size=512), "#/gpus", "infeasible-plan", "gpus = "
            ),
            "a scale over tp": Row(
                ask("scales", SCALE, sweep="tp=2,4"), "#/sweep", "bad-input", numbers
            ),
            "a scale of one number": Row(
                ask("scales", SCALE, sweep="gpus=4"), "#/sweep", "bad-input", f"2 to 32 {numbers}"
            ),
            "a scale of 10^5 GPUs": Row(
                ask("scales", SCALE, sweep="gpus=2,100000"), "#/gpus", "bad-input", "65536"
            ),
            "a scale of 10^9 GPUs": Row(
                ask("scales", SCALE, sweep="gpus=8,1000000000"), "#/sweep", "bad-input"
            ),
            "a scale without a layout": Row(
                ask("scales", SCALE, tp=5), "#/sweep #/micro_batch_size", "bad-input",
                "No number of GPUs in sweep"
            ),
            "a scale of a model that is not there": Row(
                ask("scales", SCALE, model="gpt"), "#", "bad-input", "Unknown model 'gpt'"
            ),
            "a scale of GPUs": Row(ask("scales", SCALE, gpus=4), "#/gpus"),
            "a scale for DeepSpeed": Row(ask("scales", SCALE, target="deepspeed"), "#/target"),
            "a scale of 2^20 sequences": Row(
                ask("scales", SCALE, global_batch_size=1 << 20), "#/global_batch_size",
                said="at most",
            ),
            "a scale that fits nowhere": Row(
                ask("scales", SCALE, **HEAVY, sweep="gpus=2,4"), "#/sweep #/gpus", "infeasible-plan"
            ),
        }),
    }  # fmt: skip


def models_and_labels() -> dict[str, Case]:
    """Configs that are no models, and labels that are no words."""
    large = {**CONFIG, "num_hidden_layers": 10**9, "hidden_size": 10**9, "vocab_size": 10**9}
    labels: dict[str, Any] = {
        "an empty label": "", "a blank label": " ", "a label of two lines": "a\nb",
        "a label that rings": "\x07", "a label that titles a terminal": "\x1b]0;x",
        "a label read backwards": "a\u202eb", "a label of 101": "x" * 101,
        "a number for a label": 5, "a list for a label": ["a"], "NUL for a label": "\0",
    }  # fmt: skip
    return {
        **cases(422, {
            "a model that is empty": Row(model({}), "#", "bad-input"),
            "a model larger than any": Row(model(large), "#", said="num_hidden_layers may be"),
            "a model of 10^6 layers": Row(model({**CONFIG, "num_hidden_layers": 10**6}), "#"),
            "a size in words": Row(model({**CONFIG, "hidden_size": "large"}), "#", "bad-input"),
            "a model of experts": Row(model({**CONFIG, "model_type": "mixtral"}), "#", "bad-input"),
            "a llama of experts": Row(model({**CONFIG, "num_local_experts": 8}), "#", "bad-input"),
            **{name: Row(_label(value), "#/label") for name, value in labels.items()},
            "no label": Row(_patch(b"{}"), "#/label"),
        }),
        **cases(409, {"the name of a preset": Row(model(CONFIG, "gpt3-13b"))}),
    }  # fmt: skip


def _label(value: Any) -> list[Part]:
    return _patch(json.dumps({"label": value}).encode())


def _patch(body: bytes) -> list[Part]:
    return [send("PATCH", f"/v1/jobs/{NOBODY}", body)]


def asked() -> Sequence[dict[str, Case]]:
    """All of them."""
    return fields(), bounds(), searches(), models_and_labels()
