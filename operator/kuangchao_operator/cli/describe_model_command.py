"""`kuangchao describe-model`: what belongs under `spec.model` and `spec.parallelism.taskRules`. Offline.

From code, or of a model alone from a published config.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kuangchao_contracts.errors import InvalidInputError, UnavailableError
from kuangchao_operator.cli.output import Format, Output, emit_json, writes_unicode
from kuangchao_operator.cli.workermodule import last_words, run_module

if TYPE_CHECKING:
    from kuangchao_contracts.plan import ModelDescriptor

MEASURE = "kuangchao_worker.tasks.measure"
TIMEOUT_SECONDS = 600
NO_LAYERS = (
    "taskRules wait for a model of kind transformer (Task.describes): of this one the planner knows no layers, and"
    " divides it as parallelism.{} pinned"
)
BAD_NAME = 2

Source = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FUNCTION|FILE.json",
        help="A task, a function or class that makes a torch module, or a config.json of Hugging Face.",
        show_default=False,
    ),
]


def describe_model(
    source: Source,
    arg: Annotated[
        list[str] | None, typer.Option("--arg", help="Argument of the task, KEY=VALUE; again for more.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Show what to write under spec.model and taskRules.

    Code is imported in a process of its own and its model built on torch's meta device, so it needs no memory for it;
    this needs the extra [worker]. A config.json needs nothing.

    JSON: {model, taskRules, found, parameters, trainableParameters, remark}; found has the rules that the task leaves
    empty and its model shows
    """
    from kuangchao_operator.layers.strategy.footprint.counts import parameter_count, trainable_count

    found = _Found(_from_config(source)) if source.endswith(".json") else _from_code(source, arg or [])
    _check(found.model)
    wire, count, trained = found.model.wire(), parameter_count(found.model), trainable_count(found.model)
    remark = found.remark
    if found.parameters not in (None, count):
        remark = f"the task describes a model of {count:,} parameters, and makes one of {found.parameters:,}"
    if found.rules and not remark and found.model.kind == "measured":
        pins = [name for name in ("tensor", "pipeline") if name in found.rules]
        remark = NO_LAYERS.format(f"{' and '.join(pins)} {'is' if len(pins) == 1 else 'are'}") if pins else ""
    if output is Format.JSON:
        emit_json(
            {
                "model": wire,
                "taskRules": found.rules,
                "found": found.shown,
                "parameters": count,
                "trainableParameters": trained,
                "remark": remark,
            }
        )
        return
    print(_text(wire, found.rules) + _comment(found.shown), end="")
    typer.echo(f"{count:,} parameters, {trained:,} of them trained", err=True)
    if remark:
        typer.echo(remark, err=True)


class _Found(NamedTuple):
    model: ModelDescriptor
    parameters: int | None = None
    """As counted; None: of a model that nobody made."""
    rules: tuple[str, ...] = ()
    remark: str = ""
    shown: dict[str, Any] = {}
    """Rules that the task does not bring, but its model shows."""


def _check(model: ModelDescriptor) -> None:
    """What a job would be refused for is not described. Raises InvalidInputError."""
    from kuangchao_operator.layers.strategy.descriptor import fault

    wrong = fault(model)
    if wrong is not None:
        raise InvalidInputError(wrong.field, wrong.value, wrong.why, wrong.nearest)


def _from_config(name: str) -> ModelDescriptor:
    import json

    from kuangchao_operator.cli.files import read_text
    from kuangchao_operator.layers.strategy.describe.huggingface import describe

    try:
        config = json.loads(read_text("source", name))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError("source", name, f"is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise InvalidInputError("source", name, f"is no JSON object but a {type(config).__name__}")
    return describe(config)


def _from_code(name: str, args: list[str]) -> _Found:
    import json

    from pydantic import TypeAdapter

    from kuangchao_contracts.plan import ModelDescriptor

    bad = next((pair for pair in args if "=" not in pair), None)
    if bad is not None:
        raise InvalidInputError("--arg", bad, "is not KEY=VALUE", f"{bad}=VALUE")
    if ":" not in name:
        raise InvalidInputError("source", name, "is neither MODULE:FUNCTION nor a file that ends in .json")
    done = run_module(MEASURE, [name, *args], TIMEOUT_SECONDS, f"{name} did not make its model")
    if done.returncode:
        last = last_words(done)
        if done.returncode == BAD_NAME:
            raise InvalidInputError("source", name, last)
        raise UnavailableError(f"{name} did not make its model: {last}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    model: ModelDescriptor = TypeAdapter(ModelDescriptor).validate_python(answer["model"])
    return _Found(model, answer["parameters"], tuple(answer["rules"]), answer["remark"], answer["found"])


def _text(wire: dict[str, Any], rules: tuple[str, ...]) -> str:
    import yaml

    split = {"parallelism": {"taskRules": list(rules)}} if rules else {}
    return yaml.safe_dump({"model": wire, **split}, sort_keys=False, allow_unicode=writes_unicode())


def _comment(shown: dict[str, Any]) -> str:
    """What workers will go by where the task has no rules, as lines that a manifest may hold."""
    chain, tensor = shown.get("chain", ()), shown.get("tensor", {})
    lines = [f"chain: {', '.join(chain)}"] if chain else []
    lines += [f"{name}: {style}" for name, style in tensor.items()]
    head = ["found in the model, where the task has no rules:"] if lines else []
    return "".join(f"# {line}\n" for line in head + lines)
