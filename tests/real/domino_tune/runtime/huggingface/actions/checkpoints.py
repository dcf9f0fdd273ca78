"""How users save and load."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tests.real.domino_tune.runtime.huggingface.actions.given import (
    Given,
    action,
    applied,
    loss_of,
    stepped,
)
from tests.real.domino_tune.runtime.huggingface.models import (
    model_of,
)


@action("checkpoint")
def state_loaded_again(given: Given) -> None:
    model = applied()
    model.load_state_dict(model.state_dict())
    loss_of(model).backward()


@action("checkpoint")
def whole_state_loaded(given: Given) -> None:
    """Of the unsharded model, as from a file; GPT-2's c_attn is one tensor in it."""
    for name in ("llama", "gpt2"):
        model, theirs = applied(name), model_of(name)
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.mul_(1.5)
        model.load_state_dict(theirs.state_dict())
        assert abs(float(loss_of(model)) / float(loss_of(theirs)) - 1) < 1e-4


@action("checkpoint")
def whole_state_by_torch(given: Given) -> None:
    found: Any = get_model_state_dict(
        applied(), options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    assert given.rank or found["model.norm.weight"].shape == (32,)


@action("checkpoint")
def distributed_checkpoint(given: Given) -> None:
    model = applied()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    stepped(model, optimizer, 1)
    state, moments = get_state_dict(model, optimizer)
    save({"model": state, "optimizer": moments}, checkpoint_id=given.folder / "dcp")
    load({"model": state, "optimizer": moments}, checkpoint_id=given.folder / "dcp")
    set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=moments)
    stepped(model, optimizer, 1)


@action("checkpoint")
def saved_by_name(given: Given) -> None:
    applied().save_pretrained(save_directory=given.folder / "by-name")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(given.folder / "by-name")
    assert loaded.config.model_type == "llama"


@action("checkpoint")
def whole_moments_loaded(given: Given) -> None:
    """Of an unsharded run's optimizer: they are cut at the next step."""
    model, theirs = applied(), model_of("llama")
    ours, other = (
        torch.optim.AdamW(one.parameters(), lr=1e-2, fused=True) for one in (model, theirs)
    )
    stepped(theirs, other)
    model.load_state_dict(theirs.state_dict())
    ours.load_state_dict(copy.deepcopy(other.state_dict()))
    found = [stepped(one, by) for one, by in ((model, ours), (theirs, other))]
    assert abs(found[0] / found[1] - 1) < 1e-3


@action("checkpoint", "leave state_dict out")
def saved_with_a_state(given: Given) -> None:
    model = applied()
    model.save_pretrained(given.folder / "never", state_dict=model.state_dict())


@action("checkpoint", "save_pretrained")
def pickled_state(given: Given) -> None:
    torch.save({"model": applied().state_dict()}, given.folder / f"state{given.rank}")


@action("checkpoint", "torch.distributed.checkpoint")
def pickled_moments(given: Given) -> None:
    model = applied()
    optimizer = torch.optim.AdamW(model.parameters())
    stepped(model, optimizer, 1)
    torch.save(optimizer.state_dict(), given.folder / f"moments{given.rank}")


@action("checkpoint", "is not copied")
def pickled_model(given: Given) -> None:
    torch.save(applied(), given.folder / f"model{given.rank}")


@action("checkpoint", "is not copied")
def copied(given: Given) -> None:
    copy.deepcopy(applied())


@action("checkpoint", "is not copied")
def averaged_model(given: Given) -> None:
    torch.optim.swa_utils.AveragedModel(applied())
