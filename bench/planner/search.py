"""How long a search over every axis takes and how much memory: `python -m bench.planner.search [--json]`.

Each case is planned in a process of its own on one core: seconds of its CPU clock for the plan alone, and the most
memory that the process ever had, interpreter and libraries included.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any, Final

from rich.console import Console

from bench.figures import Bound, Figure
from bench.report import show
from kuangchao_contracts.plan import DeviceShape, Experts, LatentAttention, PlanRequest, TrainingSpec, TransformerModel
from kuangchao_operator.layers.strategy.shipped import knowledge, plan

GROUP: Final = "search"
LIMIT_MIB: Final = 300
TIMEOUT: Final = 300.0
LLAMA_70B = TransformerModel(name="Llama-3-70B", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)
LLAMA_405B = TransformerModel(
    name="Llama-3-405B", layers=126, hidden=16384, heads=128, kv_heads=8, ffn=53248, vocab=128256
)
MIXTRAL = TransformerModel(
    name="Mixtral-8x7B",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn=14336,
    vocab=32000,
    experts=Experts(count=8, per_token=2, ffn=14336),
)
DEEPSEEK = TransformerModel(
    name="DeepSeek-V3",
    layers=61,
    hidden=7168,
    heads=128,
    ffn=18432,
    vocab=129280,
    latent_attention=LatentAttention(query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
    experts=Experts(count=256, per_token=8, ffn=2048, shared_ffn=2048, dense_layers=3),
)
CASES: Final[dict[str, tuple[TransformerModel, int, int, int, float]]] = {
    "70B-1024": (LLAMA_70B, 1_024, 1_024, 8_192, 2),
    "70B-1008": (LLAMA_70B, 1_008, 1_008, 8_192, 2),
    "8x7B-1024": (MIXTRAL, 1_024, 4_096, 4_096, 2),
    "405B-16384": (LLAMA_405B, 16_384, 2_048, 8_192, 10),
    "405B-16384-long": (LLAMA_405B, 16_384, 512, 131_072, 10),
    "671B-16384": (DEEPSEEK, 16_384, 16_384, 4_096, 10),
}
"""By name: model, H100 GPUs, global batch, sequence length, and the seconds that the plan may take."""


def request(name: str) -> PlanRequest:
    """What a case asks for: every axis open, nodes of eight GPUs."""
    model, devices, batch, sequence, _ = CASES[name]
    shape = DeviceShape(
        kind="gpu", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30, per_node=8, nodes=devices // 8
    )
    training = TrainingSpec.model_validate({"globalBatch": batch, "sequenceLength": sequence, "precision": "bf16"})
    return PlanRequest(devices=devices, per_pod=8, shapes=(shape,), model=model, training=training, what_if=True)


def measure(name: str) -> dict[str, Any]:
    """One case, here and now; for a process that has done nothing else."""
    wish = request(name)
    knowledge()
    before = time.process_time()
    outcome = plan(wish)
    seconds = time.process_time() - before
    made = outcome.plan
    return {
        "seconds": round(seconds, 3),
        "peakMiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "bytes": len(outcome.canonical()),
        "plan": made.summary() if made is not None else None,
    }


def figures() -> list[Figure]:
    """Every case, one after the other."""
    found = []
    for name, (model, devices, _, _, limit) in CASES.items():
        command = [sys.executable, "-m", "bench.planner.search", "--case", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT)
        case = json.loads(done.stdout)
        what = f"{model.name} on {devices:,} GPUs"
        found += [
            Figure(GROUP, what, case["seconds"], "CPU s", Bound.AT_MOST, limit, f"{case['plan']}, {case['bytes']:,} B"),
            Figure(GROUP, f"{what}, memory", case["peakMiB"], "MiB", Bound.AT_MOST, LIMIT_MIB),
        ]
    return found


def main(arguments: list[str]) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.planner.search", description=__doc__)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--case", choices=CASES, help="one case in this process, as JSON")
    options = parser.parse_args(arguments)
    if options.case is not None:
        print(json.dumps(measure(options.case)))
        return 0
    found = figures()
    if options.json:
        print(json.dumps([figure.record() for figure in found], indent=1))
    else:
        show(found, Console(width=None if sys.stdout.isatty() else 160))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
