"""A table of measured runs as people write it: CSV with one line for each reading. Pure."""

import csv
from typing import Annotated, Any

from pydantic import Field, ValidationError

from kuangchao_contracts.base import Contract, ShortText
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import (
    Count,
    Experts,
    Optimizer,
    Precision,
    Recompute,
    Sharding,
    TransformerModel,
)
from kuangchao_operator.layers.strategy.bounds import nearest
from kuangchao_operator.layers.strategy.descriptor import fault
from kuangchao_operator.layers.strategy.fit.runs import FULLEST, Figure, Run
from kuangchao_operator.layers.strategy.footprint.layout import ImpossibleLayoutError, Layout, even, pieces
from kuangchao_operator.layers.strategy.footprint.setting import CORE, Loss, Recomputed, Setting
from kuangchao_operator.layers.strategy.legality import contradiction
from kuangchao_operator.layers.strategy.numbers import either, nearest_multiples

MAX_RUNS = 1000
_COLUMNS = {
    "tensor": "tp",
    "pipeline": "pp",
    "context": "cp",
    "expert": "ep",
    "data": "dp",
    "virtualStages": "vp",
    "sequence": "sp",
    "shardRanks": "shard_ranks",
}
"""Columns of what laws call by its name in a plan."""
GIB = 2**30


class Line(Contract):
    """One reading. Columns have the names of the fields; those of sizes are the ones that `bench.planner` reads too."""

    id: ShortText
    group: ShortText = ""
    """Runs that are held out together; the model's sizes where empty."""
    backend: ShortText = "kuangchao"
    descriptor: Annotated[str, Field(max_length=4096)] = ""
    """The model as `kuangchao describe-model -o json` writes it, in place of the columns of sizes."""
    layers: Count | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    ffn: Count | None = None
    vocab: Count | None = None
    gated: bool = True
    tied: bool = False
    experts: Count | None = None
    topk: Count = 2
    moe_ffn: Count | None = None
    seq: Count
    mbs: Count
    gbs: Count
    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    ep: Count = 1
    dp: Count = 1
    vp: Count = 1
    sp: bool = False
    shard_ranks: Annotated[int, Field(ge=0)] = 0
    sharding: Sharding = Sharding.NONE
    precision: Precision = Precision.BF16
    optimizer: Optimizer = Optimizer.ADAMW
    recompute: ShortText = "none"
    """none, full, selective, or the parts of a layer that are recomputed: "core_attn+mlp"."""
    loss: Loss = Loss.PLAIN
    allocator: ShortText = "default"
    unfused: bool = False
    dropout: bool = False
    figure: Figure = Figure.ALLOCATED
    stage: Annotated[str, Field(pattern="^(fullest|last|[0-9]{1,4})$")] = FULLEST
    peak_mem_gib: Annotated[float, Field(ge=1 / GIB, le=2**20)]


def runs_of(text: str) -> tuple[Run, ...]:
    """All runs of a table. Raises InvalidInputError naming line and column."""
    reader = csv.DictReader(text.splitlines())
    try:
        _check_columns(list(reader.fieldnames or ()))
        found = tuple(_run(reader.line_num, cells) for cells in reader)
    except csv.Error as error:
        raise InvalidInputError(f"line {reader.line_num + 1}", None, f"is no CSV: {error}") from None
    if not 0 < len(found) <= MAX_RUNS:
        raise InvalidInputError("runs", len(found), f"must be 1 to {MAX_RUNS}", MAX_RUNS if found else 1)
    twice = _twice([run.name for run in found])
    if twice is not None:
        raise InvalidInputError("id", twice, "stands in two lines")
    return found


def _check_columns(names: list[str]) -> None:
    unknown = sorted(set(names) - set(Line.model_fields))
    if unknown:
        raise InvalidInputError("column", unknown[0], "is not known", ", ".join(Line.model_fields))
    twice = _twice(names)
    if twice is not None:
        raise InvalidInputError("column", twice, "stands twice")


def _twice(names: list[str]) -> str | None:
    return next((name for number, name in enumerate(names) if name in names[:number]), None)


def _run(number: int, cells: dict[str | None, Any]) -> Run:
    beyond = cells.pop(None, [])
    if beyond:
        raise InvalidInputError(f"line {number}", beyond[0], f"stands beyond the {len(cells)} columns")
    given = {name: value.strip() for name, value in cells.items() if name and value and value.strip()}
    try:
        line = Line.model_validate(given)
        model = _model(line)
    except ValidationError as error:
        first = error.errors()[0]
        column = ".".join(str(part) for part in first["loc"])
        raise InvalidInputError(f"line {number}: {column}", given.get(column), first["msg"], nearest(first)) from None
    wrong = fault(model)
    if wrong is not None:
        raise InvalidInputError(f"line {number}: {wrong.field}", wrong.value, wrong.why, wrong.nearest)
    setting = _setting(number, line, model)
    broken = contradiction(setting)
    if broken is not None:
        column = _COLUMNS.get(broken.field, broken.field)
        why = broken.message.partition("; nearest legal ")[0]
        raise InvalidInputError(f"line {number}: {column}", broken.value, why, broken.nearest)
    try:
        pieces(model.layers, setting.layout)
    except ImpossibleLayoutError as error:
        raise InvalidInputError(
            f"line {number}: pp", line.pp, str(error), _most_stages(line.pp, model.layers)
        ) from None
    if line.stage.isdigit() and int(line.stage) >= line.pp:
        raise InvalidInputError(f"line {number}: stage", line.stage, f"pp={line.pp} has no such stage", line.pp - 1)
    group = line.group or f"{model.layers}x{model.hidden}"
    return Run(line.id, group, setting, int(line.peak_mem_gib * GIB), line.figure, line.stage)


def _most_stages(stages: int, layers: int) -> int:
    """The longest pipeline below one that the layers are too few for."""
    return next((n for n in range(min(stages - 1, layers), 1, -1) if _cut(layers, n)), 1)


def _cut(layers: int, stages: int) -> bool:
    try:
        return bool(even(layers, stages))
    except ImpossibleLayoutError:
        return False


def _model(line: Line) -> TransformerModel:
    if line.descriptor:
        return TransformerModel.model_validate_json(line.descriptor)
    experts = None
    if line.experts is not None:
        experts = Experts(count=line.experts, per_token=line.topk, ffn=line.moe_ffn or line.ffn or 1)
    sizes = {name: getattr(line, name) for name in ("layers", "hidden", "heads", "ffn", "vocab")}
    return TransformerModel.model_validate(
        {
            **{name: size for name, size in sizes.items() if size is not None},
            "kv_heads": line.kv_heads,
            "head_dim": line.head_dim,
            "gated_ffn": line.gated,
            "tied_embeddings": line.tied,
            "experts": experts,
        }
    )


def _setting(number: int, line: Line, model: TransformerModel) -> Setting:
    recompute, modules = _recompute(number, line.recompute)
    if line.gbs % (line.mbs * line.dp):
        near = either(nearest_multiples(line.gbs, line.mbs * line.dp))
        raise InvalidInputError(
            f"line {number}: gbs", line.gbs, f"is no multiple of mbs {line.mbs} x dp {line.dp}", near
        )
    return Setting(
        model=model,
        layout=_layout(line),
        sequence_length=line.seq,
        micro_batch=line.mbs,
        micro_batches=line.gbs // (line.mbs * line.dp),
        precision=line.precision,
        optimizer=line.optimizer,
        backend=line.backend,
        sharding=line.sharding,
        recompute=recompute,
        modules=modules,
        schedule=Schedule.INTERLEAVED if line.vp > 1 else Schedule.ONE_F_ONE_B,
        fused_attention=not line.unfused,
        dropout=line.dropout,
        loss=line.loss,
        allocator=line.allocator,
    )


def _layout(line: Line) -> Layout:
    return Layout(
        tensor=line.tp,
        pipeline=line.pp,
        context=line.cp,
        expert=line.ep,
        data=line.dp,
        virtual=line.vp,
        sequence=line.sp,
        shard_ranks=line.shard_ranks,
    )


def _recompute(number: int, text: str) -> tuple[Recompute, frozenset[Recomputed]]:
    if text in tuple(Recompute):
        return Recompute(text), CORE
    try:
        return Recompute.SELECTIVE, frozenset(Recomputed(part) for part in text.split("+"))
    except ValueError:
        legal = ", ".join([*Recompute, *Recomputed])
        raise InvalidInputError(f"line {number}: recompute", text, "is not known", legal) from None
