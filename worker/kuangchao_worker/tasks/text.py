"""Language models on the text of Python's own manual, which every Python has: small, offline, and they learn.

A token is a byte. `transformer` is a decoder as Llama's (rotary positions, grouped queries, gated ffn, RMS norms);
`moe` has a mixture of experts in place of its ffn.
"""

from collections.abc import Iterable
from functools import lru_cache
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import TensorDataset

from kuangchao_contracts.plan import Experts, TransformerModel
from kuangchao_contracts.rules import ParallelRules, TensorStyle
from kuangchao_worker.tasks import Batch, Task
from kuangchao_worker.tasks.decoder import BYTES, Decoder, Sizes
from kuangchao_worker.tasks.options import Options

HELD_OUT = 32
"""Windows that are not trained on."""
RULES = ParallelRules(
    chain=("embedding", "blocks.*", "norm", "head"),
    tensor={
        "embedding": TensorStyle.EMBEDDING,
        "blocks.*.attention_norm": TensorStyle.SEQUENCE,
        "blocks.*.attention": TensorStyle.WHOLE,
        "blocks.*.attention.query": TensorStyle.COLUMNS,
        "blocks.*.attention.key": TensorStyle.COLUMNS,
        "blocks.*.attention.value": TensorStyle.COLUMNS,
        "blocks.*.attention.output": TensorStyle.ROWS,
        "blocks.*.ffn_norm": TensorStyle.SEQUENCE,
        "blocks.*.ffn": TensorStyle.WHOLE,
        "blocks.*.ffn.gate": TensorStyle.COLUMNS,
        "blocks.*.ffn.up": TensorStyle.COLUMNS,
        "blocks.*.ffn.down": TensorStyle.ROWS,
        "norm": TensorStyle.SEQUENCE,
        "head": TensorStyle.HEAD,
    },
    tokens={"0": 1, "1": 1},
)
DENSE_FFN = ("blocks.*.ffn.gate", "blocks.*.ffn.up", "blocks.*.ffn.down")
MOE_RULES = RULES.replace(
    # router and experts take each token alone, so each tensor rank sends on the tokens that it has
    tensor={name: style for name, style in RULES.tensor.items() if name not in DENSE_FFN}
    | {"blocks.*.ffn": TensorStyle.SEQUENCE},
    experts=("blocks.*.ffn.experts",),
)


def transformer(args: dict[str, str]) -> Task:
    """A dense decoder. Arguments: layers, hidden, heads, kvHeads, ffn, sequence, windows, dropout, learningRate."""
    options = Options(args)
    return _task(options, _sizes(options), RULES)


def moe(args: dict[str, str]) -> Task:
    """A decoder with experts. Arguments as for `transformer`, and experts, perToken."""
    options = Options(args)
    experts = options.integer("experts", 4)
    return _task(options, _sizes(options, experts, options.integer("perToken", 2)), MOE_RULES)


def _sizes(options: Options, experts: int = 0, per_token: int = 0) -> Sizes:
    heads = options.integer("heads", 4)
    return Sizes(
        layers=options.integer("layers", 2),
        hidden=options.integer("hidden", 64),
        heads=heads,
        kv_heads=options.integer("kvHeads", max(1, heads // 2)),
        ffn=options.integer("ffn", 128),
        experts=experts,
        per_token=per_token,
        dropout=options.real("dropout", 0.0),
    )


def _task(options: Options, sizes: Sizes, rules: ParallelRules) -> Task:
    sequence = options.integer("sequence", 64)
    count = options.integer("windows", 1024)
    rate = options.real("learningRate", 3e-3)
    options.done()
    sizes.check()
    windows = _windows(sequence, count + HELD_OUT)
    test = windows[count:]

    def optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return AdamW(parameters, lr=rate)

    def evaluate(module: nn.Module) -> dict[str, float]:
        held = test.to(next(module.parameters()).device)
        return {"testLoss": _loss(module, (held[:, :-1], held[:, 1:])).item()}

    return Task(
        model=lambda: Decoder(sizes),
        dataset=TensorDataset(windows[:count, :-1], windows[:count, 1:]),
        loss=_loss,
        optimizer=optimizer,
        evaluate=evaluate,
        rules=rules,
        describes=_described(sizes),
    )


def _described(sizes: Sizes) -> TransformerModel:
    experts = Experts(count=sizes.experts, per_token=sizes.per_token, ffn=sizes.ffn) if sizes.experts else None
    return TransformerModel(
        layers=sizes.layers,
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        ffn=sizes.ffn,
        vocab=BYTES,
        experts=experts,
    )


@lru_cache(maxsize=1)
def _text() -> bytes:
    return "\n".join(topics[name] for name in sorted(topics)).encode()


def _windows(length: int, count: int) -> torch.Tensor:
    """Runs of `length` + 1 bytes, spread evenly over the text; shape (count, length + 1)."""
    text = torch.frombuffer(bytearray(_text()), dtype=torch.uint8).to(torch.int64)
    starts = torch.linspace(0, len(text) - length - 1, count).to(torch.int64)
    return torch.stack([text[start : start + length + 1] for start in starts.tolist()])


def _loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    tokens, following = batch
    return nn.functional.cross_entropy(module(tokens).reshape(-1, BYTES), following.reshape(-1))
