"""The unsliced single-process model, trained by autograd and a textbook Adam."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from domino_tune.runtime.ops.pointwise import keep_mask
from domino_tune.runtime.parameters import full_tensor, parameter_specs
from tests.real.domino_tune.runtime.jobs import Job, batch
from tests.support.plain_torch import PlainModel, no_dropout

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Per step: loss, gradient norm, gradients before clipping; the parameters at the end."""

    losses: list[float]
    norms: list[float]
    gradients: list[Tensors]
    parameters: Tensors


def full_weights(job: Job) -> Tensors:
    """Every parameter, whole, fp64, tables without the rows that pad the vocabulary."""
    return {
        spec.name: _without_padding(spec.name, full_tensor(spec, job.training.seed, vocab), vocab)
        for vocab in (job.model.vocab_size,)
        for spec in parameter_specs(job.model, job.cluster)
    }


def _without_padding(name: str, full: torch.Tensor, vocab: int) -> torch.Tensor:
    return full[:vocab].clone() if name in ("w.embed", "w.head.logits") else full


@cache
def trained(job: Job, masks: str = "cpu") -> Reference:
    """Train ``job``, which must be unsliced, in fp64; ``masks`` are drawn on that device."""
    assert job == job.unsliced
    weights = {name: w.requires_grad_() for name, w in full_weights(job).items()}
    moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in weights.items()}
    losses, norms, gradients = [], [], []
    for step in range(job.steps):
        model = PlainModel(model=job.model, weights=weights, dropout=_Dropout(job, step, masks))
        loss = model.loss(*batch(job, step))
        grads = torch.autograd.grad(loss, list(weights.values()))
        norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt().item()
        clip = _clip_factor(job, norm)
        for (name, w), gradient in zip(weights.items(), grads, strict=True):
            with torch.no_grad():
                moments[name] = _adam(job, step, w, clip * gradient, *moments[name])
        losses.append(loss.item())
        norms.append(norm)
        gradients.append(dict(zip(weights, grads, strict=True)))
    final = {name: w.detach() for name, w in weights.items()}
    return Reference(losses=losses, norms=norms, gradients=gradients, parameters=final)


def _clip_factor(job: Job, norm: float) -> float:
    clip = job.training.clip_norm
    return min(1.0, clip / (norm + 1e-6)) if clip else 1.0


def _adam(
    job: Job, step: int, w: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adam as Kingma and Ba write it; updates ``w`` and returns the moments."""
    t = job.training
    m = t.beta1 * m + (1 - t.beta1) * g
    v = t.beta2 * v + (1 - t.beta2) * g**2
    m_hat = m / (1 - t.beta1 ** (step + 1))
    v_hat = v / (1 - t.beta2 ** (step + 1))
    w -= t.learning_rate * m_hat / (v_hat.sqrt() + t.adam_eps)
    return m, v


class _Dropout:
    """The runtime's masks, drawn for the whole batch at once."""

    def __init__(self, job: Job, step: int, device: str) -> None:
        self.job, self.step, self.device = job, step, torch.device(device)

    def __call__(self, x: torch.Tensor, site: str) -> torch.Tensor:
        job, rate = self.job, self.job.model.hidden_dropout
        if not (job.train and rate):
            return no_dropout(x, site)
        mask = keep_mask(
            range(job.global_sequences), (job.seq_length, job.model.hidden_size), rate,
            seed=job.training.seed, step=self.step, site=site, device=self.device,
        )  # fmt: skip
        return x * mask.to(x.device) / (1 - rate)
