"""Names of fields in the last release, which keep working for one release."""

from typing import Any

FIELDS = {
    "server_steps": "algorithm.server_steps",
    "eval_block": "eval_batch_size",
    "eval_clients": "clients_per_eval",
    "novel_fraction": "new_clients.fraction",
    "novel.rounds": "new_clients.rounds",
    "novel.graph": "new_clients.graph",
    "novel.code": "algorithm.new_client_embedding",
    "algorithm.profile": "algorithm.output",
    "hparams.novel_lr": "hparams.new_client_lr",
    "hparams.code_dropout": "hparams.embedding_dropout",
}
VALUES = {
    "algorithm.output": {"whole": "direct", "full": "residual", "lowrank": "lora"},
    "model.lowering": {"patches": "rows", "grouped": "xla"},
}


def current(name: str, value: Any) -> tuple[str, Any]:
    """Today's name of a field, and today's name of its value."""
    name = FIELDS.get(name, name)
    values = VALUES.get(name, {})
    return name, values.get(value, value) if isinstance(value, str) else value
