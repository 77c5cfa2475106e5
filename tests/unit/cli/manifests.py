"""Manifests for tests: a good job and ways to spoil it."""

from typing import Any

import yaml

GOOD: dict[str, Any] = {
    "apiVersion": "kuangchao.io/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "digits"},
    "spec": {
        "pool": "cpu",
        "task": "kuangchao_worker.tasks.digits:digits",
        "model": {"kind": "measured", "parameters": 26122, "activationBytesPerSample": 4096},
        "training": {"globalBatch": 64, "steps": 300, "seed": 7},
        "devices": {"count": 2, "perPod": 1},
    },
}


def changed(path: str, value: Any) -> str:
    """YAML of the good job with one field set (or removed when the value is `...`)."""
    data = yaml.safe_load(yaml.safe_dump(GOOD))
    target: Any = data
    *parents, last = path.split(".")
    for part in parents:
        target = target.setdefault(part, {})
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return yaml.safe_dump(data, sort_keys=False)
