"""What the planner answers to a table of questions, as hashes: equal on every machine and Python, or something drifted.

Run as a script it prints them as JSON, with `--write` into `vectors.json`. While it computes nothing may be opened,
imported, connected or started, and clocks and chance raise.
"""

import hashlib
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from kuangchao_contracts.base import canonical_json
from kuangchao_contracts.fabric import Fabric
from kuangchao_contracts.plan import (
    Adapter,
    DeviceShape,
    Experts,
    LatentAttention,
    MeasuredModel,
    ModelDescriptor,
    Optimizer,
    Parallelism,
    PlanRequest,
    Precision,
    Recompute,
    Sharding,
    TrainingSpec,
    TransformerModel,
)
from kuangchao_operator.layers.strategy import shipped
from kuangchao_operator.layers.strategy.fit.decide import fit
from kuangchao_operator.layers.strategy.fit.report import fit_json
from kuangchao_operator.layers.strategy.fit.runs import Run, estimate
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.phases import footprint
from kuangchao_operator.layers.strategy.footprint.setting import Setting

STORED = Path(__file__).with_name("vectors.json")
GIB = 2**30
CPU = DeviceShape(kind="cpu", model="EPYC", memory_bytes=16 * GIB, per_node=4, nodes=4)
A100 = DeviceShape(kind="gpu", model="NVIDIA A100-SXM4-80GB", memory_bytes=80 * GIB, per_node=8, nodes=2)
H100 = A100.replace(model="NVIDIA H100 80GB HBM3", fabric=Fabric(island=8, island_bytes_per_second=450 * 10**9))
DIGITS = MeasuredModel(parameters=26_122, activation_bytes_per_sample=4096)
LLAMA = TransformerModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
MIXTRAL = LLAMA.replace(vocab=32000, experts=Experts(count=8, per_token=2, ffn=14336))
LATENT = LLAMA.replace(
    kv_heads=None,
    latent_attention=LatentAttention(query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
)


def asked(model: ModelDescriptor, devices: int, shape: DeviceShape, **training: Any) -> PlanRequest:
    """A request for so many devices of a class, all axes open."""
    wanted = TrainingSpec.model_validate({"global_batch": 64, "precision": "bf16", **training})
    return PlanRequest(
        devices=devices, per_pod=min(8, devices), shapes=(shape,), model=model, training=wanted, what_if=True
    )


PLANS: dict[str, PlanRequest] = {
    "digits": asked(DIGITS, 2, CPU).replace(what_if=False, per_pod=1),
    "digits again with a measured peak": asked(DIGITS, 2, CPU).replace(per_pod=1, measured_peak_bytes=GIB),
    "digits, pinned": asked(DIGITS, 4, CPU).replace(
        what_if=False, per_pod=2, parallelism=Parallelism(tensor=2, pipeline=2)
    ),
    "8B on one node": asked(LLAMA, 8, H100, sequence_length=8192),
    "8B on two nodes, pinned": asked(LLAMA, 16, A100, sequence_length=4096).replace(
        parallelism=Parallelism(tensor=4, pipeline=2, recompute=Recompute.FULL)
    ),
    "experts": asked(MIXTRAL, 16, H100, sequence_length=4096),
    "latent attention with Muon": asked(LATENT, 8, H100, sequence_length=4096, optimizer=Optimizer.MUON),
    "adapters": asked(LLAMA.replace(adapter=Adapter(rank=16)), 4, A100, sequence_length=4096),
    "does not fit": asked(LLAMA.replace(layers=128), 1, A100, sequence_length=8192),
    "breaks a law": asked(LLAMA, 6, A100, sequence_length=4096).replace(parallelism=Parallelism(tensor=6)),
}


def settings() -> dict[str, Setting]:
    """A setting for each framework and precision."""
    calibration = shipped.knowledge().calibration
    return {
        f"{backend} {precision.value}": Setting(
            model=MIXTRAL,
            layout=Layout(tensor=2, pipeline=2, data=8, expert=4, sequence=True, shard_ranks=4),
            sequence_length=4096,
            micro_batch=1,
            micro_batches=8,
            precision=precision,
            optimizer=Optimizer.ADAMW,
            backend=backend,
            sharding=Sharding.FULL,
        )
        for backend in sorted(calibration.backends)
        for precision in Precision
    }


def plan_hash(request: PlanRequest) -> str:
    """Of the whole outcome, refusal or plan."""
    return shipped.plan(request).content_hash()


def footprint_hash(setting: Setting) -> str:
    """Of every stage with its arithmetic."""
    stages = footprint(setting, shipped.knowledge().calibration)
    return canonical_hash([stage.wire() for stage in stages])


def fit_hash() -> str:
    """Of a fit to readings with made-up noise."""
    base = shipped.knowledge().calibration
    runs = tuple(
        Run(f"{layers}-{batch}", f"{layers}", _fitted(layers, batch), 1) for layers in (4, 8, 16) for batch in (1, 2, 4)
    )
    noisy = tuple(
        Run(run.name, run.group, run.setting, estimate(run, base) * (120 + number % 5) // 100)
        for number, run in enumerate(runs)
    )
    return canonical_hash(fit_json(fit(noisy, base, "0" * 64)))


def canonical_hash(value: Any) -> str:
    """SHA-256 of canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def vectors() -> dict[str, str]:
    """All of them by name."""
    return {
        **{f"plan: {name}": plan_hash(request) for name, request in PLANS.items()},
        **{f"footprint: {name}": footprint_hash(setting) for name, setting in settings().items()},
        "fit": fit_hash(),
    }


def seal() -> None:
    """From now on nothing is read, started or connected, and neither time nor chance is to be had."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("the planner asked for a clock or for chance")

    def hook(event: str, _: tuple[Any, ...]) -> None:
        if event in ("open", "import", "os.listdir", "subprocess.Popen") or event.startswith("socket."):
            raise AssertionError(f"the planner caused {event}")

    clocks: list[tuple[Any, tuple[str, ...]]] = [
        (time, ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "localtime")),
        (random, ("random", "choice", "randint", "randrange", "shuffle", "sample", "getrandbits")),
    ]
    for module, names in clocks:
        for name in names:
            setattr(module, name, refuse)
    sys.addaudithook(hook)


def _fitted(layers: int, batch: int) -> Setting:
    return Setting(
        model=LLAMA.replace(layers=layers),
        layout=Layout(data=8),
        sequence_length=2048,
        micro_batch=batch,
        micro_batches=1,
        precision=Precision.BF16,
        optimizer=Optimizer.ADAMW,
        backend="torchtitan",
        sharding=Sharding.FULL,
    )


def main(arguments: list[str]) -> None:
    """Print, or write anew."""
    write: Callable[[str], object] = STORED.write_text if "--write" in arguments else sys.stdout.write
    shipped.knowledge()
    if "--write" not in arguments:
        seal()
    write(json.dumps(vectors(), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
