"""From a row to what the memory model takes: one setting, or several where the row leaves the choice open. Pure."""

import re
from dataclasses import replace

from bench.planner.models import UnsupportedRowError, fuses_attention, groups_experts, has_dropout, model_of
from bench.planner.rows import Row
from bench.planner.sources import Source, Split, source_of
from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Optimizer, Precision, Recompute, Sharding, TransformerModel
from kuangchao_operator.layers.strategy.footprint.layout import ImpossibleLayoutError, Layout, outer
from kuangchao_operator.layers.strategy.footprint.setting import CORE, Loss, Offload, Recomputed, Setting

_SHARDING = {
    "zero1": Sharding.OPTIMIZER,
    "zero2": Sharding.GRADIENTS,
    "fsdp_grad_op": Sharding.GRADIENTS,
    "zero3": Sharding.FULL,
    "fsdp": Sharding.FULL,
    "fsdp1": Sharding.FULL,
    "fsdp2": Sharding.FULL,
    "fsdp_full": Sharding.FULL,
    "none": Sharding.NONE,
    "": Sharding.NONE,
}
_POSITIVE = ("seq", "tp", "pp", "cp", "ep", "dp", "vp", "mbs", "gbs")
_OFFLOAD = {"cpu_offload(opt)": Offload.OPTIMIZER, "cpu_offload(param,opt)": Offload.PARAMETERS}
_SELECTIVE = {"selective": CORE, "selective_op": frozenset({Recomputed.OPERATORS})}
_MOST = frozenset(Recomputed) - {Recomputed.OPERATORS}
_SEQUENCES = {"llama2": 4096, "llama3": 8192}
"""Training length of a family, where a report states none."""
_HALF_MOMENTS = ("deepseek", "moonlight", "kimi")
"""Megatron-Bridge's recipes of these families use the precision-aware optimizer with bf16 moments."""


def settings_of(row: Row) -> tuple[Setting, ...]:
    """Settings to try, the one that the row means first. Raises UnsupportedRowError."""
    for name in _POSITIVE:
        value = row.whole(name)
        if value is not None and value < 1:
            raise UnsupportedRowError(f"{name}={value} is no size")
    source, model = source_of(row), model_of(row)
    first = _setting(row, source, model)
    text = row.text("recompute").lower()
    if not (source.open_recompute and (not text or text.endswith("?"))):
        return (first,)
    return (
        first,
        replace(first, recompute=Recompute.SELECTIVE, modules=_MOST),
        replace(first, recompute=Recompute.FULL),
    )


def _setting(row: Row, source: Source, model: TransformerModel) -> Setting:
    layout = _layout(row, model)
    micro, micro_batches = _batch(row, source, layout)
    sharding, offload = _sharding(row)
    recompute, modules = _recompute(row.text("recompute") or source.recompute)
    return Setting(
        model=model,
        layout=layout,
        sequence_length=_sequence(row),
        micro_batch=micro,
        micro_batches=micro_batches,
        precision=_precision(row),
        optimizer=_optimizer(row, source),
        backend=_backend(row, source),
        sharding=sharding,
        offload=offload,
        recompute=recompute,
        modules=modules,
        schedule=Schedule.INTERLEAVED if layout.virtual > 1 else Schedule.ONE_F_ONE_B,
        fused_attention=fuses_attention(row),
        dropout=has_dropout(row),
        loss=_loss(row, source, layout),
        grouped_experts=groups_experts(row),
        allocator="expandable" if "expandable" in row.notes else source.allocator,
    )


def _backend(row: Row, source: Source) -> str:
    """The source's framework; early torchtitan could still run FSDP1, and its rows say where they did."""
    early = source.backend.startswith("torchtitan") and row.text("shard").lower() == "fsdp1"
    return "fsdp1" if early else source.backend


def _layout(row: Row, model: TransformerModel) -> Layout:
    sizes = {name: row.whole(name) for name in ("tp", "pp", "dp")}
    absent = [name for name, size in sizes.items() if size is None]
    if absent:
        raise UnsupportedRowError(f"not stated: {', '.join(absent)}")
    tensor, pipeline, data = (size or 1 for size in sizes.values())
    context, expert = row.whole("cp") or 1, row.whole("ep") or 1
    virtual = _virtual(row) if pipeline > 1 else 1
    layout = Layout(
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert,
        expert_tensor=_expert_tensor(row, tensor, expert, tensor * context * data),
        data=data,
        virtual=virtual,
        sequence=row.text("sp") == "1" and tensor > 1,
        vocab_whole="galvatron" in row.text("source").lower() and "vtp" not in row.notes,
    )
    instances = row.flag("num-distributed-optimizer-instances") or 1
    return replace(
        layout,
        stage_layers=_stage_layers(row, model, layout),
        shard_ranks=max(1, layout.replicas // instances) if instances > 1 else 0,
    )


def _virtual(row: Row) -> int:
    """Chunks of a stage. Golden tests that count the embedding as a layer state them in their name only."""
    stated = row.whole("vp") or 1
    named = re.search(r"_vp(\d+)_account_for_embedding", row.text("model"))
    return int(named.group(1)) if named and stated == 1 else stated


def _expert_tensor(row: Row, tensor: int, expert: int, ranks: int) -> int:
    """Megatron-LM's default is the tensor size; where the ranks do not suffice for that, experts are whole."""
    given = row.flag("expert-tensor-parallel-size")
    if given:
        return given
    return tensor if row.whole("experts") and ranks % (expert * tensor) == 0 else 1


def _stage_layers(row: Row, model: TransformerModel, layout: Layout) -> tuple[int, ...] | None:
    first, last = row.flag("decoder-first-pipeline-num-layers"), row.flag("decoder-last-pipeline-num-layers")
    if layout.virtual > 1 or not (first or last):
        return None
    try:
        return outer(model.layers, layout.pipeline, first, last)
    except ImpossibleLayoutError as error:
        raise UnsupportedRowError(str(error)) from error


def _batch(row: Row, source: Source, layout: Layout) -> tuple[int, int]:
    micro, batch = row.whole("mbs"), row.whole("gbs")
    if micro is None:
        if not source.open_micro_batch and source.micro_batch is None:
            raise UnsupportedRowError("not stated: mbs")
        micro = source.micro_batch or 1
    if batch is None:
        return micro, layout.pipeline
    if source.split is not Split.NOT and layout.pipeline > 1:
        parts = min(micro, layout.pipeline if source.split is Split.STAGES else 2)
        return micro // parts, max(1, parts * batch // (micro * layout.data))
    return micro, max(1, batch // (micro * layout.data))


def _sequence(row: Row) -> int:
    stated = row.whole("seq")
    if stated is not None:
        return stated
    name = row.text("model").lower()
    for family, length in _SEQUENCES.items():
        if name.startswith(family):
            return length
    raise UnsupportedRowError("not stated: seq")


def _precision(row: Row) -> Precision:
    text = row.text("precision").lower()
    if "fp8" in text or "nvfp4" in text:
        return Precision.FP8
    if text == "pure_bf16":
        return Precision.BF16_PURE
    if "fp32" in text:
        return Precision.FP32
    return Precision.FP16 if "fp16" in text else Precision.BF16


def _optimizer(row: Row, source: Source) -> Optimizer:
    name = row.text("model").lower()
    if source.backend == "megatron-bridge" and any(word in name for word in _HALF_MOMENTS):
        return Optimizer.ADAMW_BF16
    return Optimizer.ADAMW


def _sharding(row: Row) -> tuple[Sharding, Offload]:
    text, _, offload = row.text("shard").lower().rstrip("?").partition("+")
    if text not in _SHARDING or (offload and offload not in _OFFLOAD):
        raise UnsupportedRowError(f"sharding {row.text('shard')} is not built")
    return _SHARDING[text], _OFFLOAD.get(offload, Offload.NONE)


def _recompute(stated: str) -> tuple[Recompute, frozenset[Recomputed]]:
    text = stated.lower().rstrip("?")
    if text in ("", "none"):
        return Recompute.NONE, CORE
    if text == "full":
        return Recompute.FULL, CORE
    if text in _SELECTIVE:
        return Recompute.SELECTIVE, _SELECTIVE[text]
    try:
        return Recompute.SELECTIVE, frozenset(Recomputed(part) for part in text.split("+"))
    except ValueError as error:
        raise UnsupportedRowError(f"recompute {stated} is not built") from error


def _loss(row: Row, source: Source, layout: Layout) -> Loss:
    if source.fused_loss or "cross-entropy-loss-fusion=true" in row.notes:
        return Loss.FUSED
    return Loss.SHARDED if layout.tensor > 1 else Loss.PLAIN
