"""Settings that the tests of the footprint vary."""

from typing import Any

from kuangchao_contracts.plan import Bias, Norm, Optimizer, Precision, TransformerModel
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.footprint.shipped import load

GIB = 2**30
CALIBRATION = load()
LLAMA_8B = TransformerModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
LLAMA_70B = TransformerModel(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)


def gpt(layers: int, hidden: int, heads: int, vocab: int = 51200) -> TransformerModel:
    """A GPT as Korthikanti et al. mean it; without biases, which their formula leaves out."""
    return TransformerModel(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=4 * hidden,
        vocab=vocab,
        gated_ffn=False,
        tied_embeddings=True,
        norm=Norm.LAYER,
        bias=Bias.NONE,
    )


def setting(model: TransformerModel = LLAMA_8B, **changes: Any) -> Setting:
    """A setting in which only `changes` matter."""
    base: dict[str, Any] = {
        "layout": Layout(),
        "sequence_length": 2048,
        "micro_batch": 1,
        "micro_batches": 1,
        "precision": Precision.BF16,
        "optimizer": Optimizer.ADAMW,
        "backend": "megatron",
    }
    return Setting(model=model, **{**base, **changes})
