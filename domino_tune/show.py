"""Results as tables, for people."""

from __future__ import annotations

from domino_tune.results import ModelsResult
from domino_tune.tables import Table, print_table


def models(result: ModelsResult) -> None:
    """One row a preset."""
    rows = [
        (
            model.name, f"{model.parameters / 1e9:.1f} B", str(model.num_hidden_layers),
            str(model.hidden_size), str(model.num_attention_heads), str(model.num_key_value_heads),
            str(model.intermediate_size), str(model.vocab_size),
            str(model.max_position_embeddings), _kind(model.gated_mlp, model.norm),
        )
        for model in result.models
    ]  # fmt: skip
    print_table(
        Table(
            columns=(
                "model", ">parameters", ">layers", ">hidden", ">heads", ">kv heads", ">ffn",
                ">vocabulary", ">positions", "kind",
            ),
            rows=rows,
        )
    )  # fmt: skip


def _kind(gated: bool, norm: str) -> str:
    return f"{'SwiGLU' if gated else 'GeLU'}, {'RMSNorm' if norm == 'rmsnorm' else 'LayerNorm'}"
