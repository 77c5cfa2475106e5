"""What a refusal names as nearest is legal: put back into the request, it is not refused there again, and nothing legal
is nearer."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kuangchao_contracts.plan import Experts, Infeasible, PlanRequest, TransformerModel
from kuangchao_contracts.rules import TaskRule
from kuangchao_operator.layers.strategy import laws

GIB = 2**30
H100 = {"kind": "gpu", "model": "H100", "memoryBytes": 80 * GIB, "perNode": 8, "nodes": 4}
DENSE = TransformerModel(layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064)
MODELS = (
    DENSE,
    DENSE.replace(layers=6, heads=32, kv_heads=None, hidden=4096),
    DENSE.replace(experts=Experts(count=12, per_token=2, ffn=1408)),
    DENSE.replace(layers=24, heads=16, hidden=1024, kv_heads=None, learned_positions=1000),
)
PATHS = {"devices.count": ("devices",), "devices.perPod": ("perPod",)}
LISTS = "parallelism.stageLayers"
MOST = 64
"""Up to which all values are tried."""

SIZES = st.sampled_from((1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 16, 28, 32, 40))
CUTS = st.lists(st.integers(0, 15), min_size=1, max_size=8)
PINS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("tensor", "pipeline", "context", "data", "expert", "microBatch"), SIZES),
    "virtualStages": st.sampled_from((1, 2, 3, 20)),
    "sequence": st.booleans(),
    "schedule": st.sampled_from(("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")),
    "stageLayers": CUTS,
    "sharding": st.sampled_from(("none", "full")),
}


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    """Jobs of which a thing or two is wrong, as often as not."""
    pins = {name: draw(PINS[name]) for name in draw(st.sets(st.sampled_from(sorted(PINS)), max_size=4))}
    rules = {"taskRules": draw(st.sampled_from(([rule.value for rule in TaskRule], [])))}
    mode = {"mode": draw(st.sampled_from(("Auto", "Auto", "Manual")))}
    return PlanRequest.model_validate(
        {
            "devices": draw(st.sampled_from((1, 4, 6, 8, 12, 16, 16, 16, 20, 24, 40))),
            "perPod": draw(st.sampled_from((1, 1, 2, 4, 8, 8, 16))),
            "shapes": [H100],
            "model": draw(st.sampled_from(MODELS)),
            "training": {
                "globalBatch": draw(st.sampled_from((4, 10, 64, 64, 64, 100))),
                "sequenceLength": draw(st.sampled_from((4096, 4096, 4104, 4100, 1000, 2049, None))),
            },
            "parallelism": {**rules, **mode, **pins},
            "whatIf": draw(st.booleans()),
        }
    )


def put(request: PlanRequest, field: str, value: object) -> PlanRequest:
    """The request with another value of a field, as a user would write it."""
    *groups, name = PATHS.get(field, tuple(field.split(".")))
    part = whole = request.wire()
    for group in groups:
        part = part.setdefault(group, {})
    part[name] = value
    return PlanRequest.model_validate(whole)


def read(text: str) -> object:
    """A value as a refusal writes it."""
    if text == "none":
        return None
    return json.loads(text) if (text[0] in "[-0123456789" and text != "1f1b") or text in ("true", "false") else text


def refused_there(request: PlanRequest, field: str) -> bool:
    found = laws.violated(request)
    return found is not None and found.field == field


def legal(request: PlanRequest, field: str, value: int, *, whole: bool) -> bool:
    """Whether a value would have done as well as those that were named."""
    other = put(request, field, value)
    return laws.lawful(other) if whole else field not in {one.field for one in laws.faults(other)}


def check(request: PlanRequest, why: Infeasible) -> None:
    field, value = why.field, why.value
    assert field is not None, why.message
    named = [read(text) for text in (why.nearest or "").split(" or ") if text]
    for one in named:
        assert str(one).lower() != value, why.message
        assert not refused_there(put(request, field, one), field), why.message
    if value is None or not value.isdigit() or field == LISTS:
        return
    given, whole = int(value), any(laws.lawful(put(request, field, one)) for one in named)
    below = max((n for n in named if isinstance(n, int) and n < given), default=0)
    above = min((n for n in named if isinstance(n, int) and n > given), default=MOST)
    for other in (*range(below + 1, min(given, MOST)), *range(given + 1, above)):
        assert not legal(request, field, other, whole=whole), f"{why.message}: {other} would do"


@settings(max_examples=80, deadline=None)
@given(request=requests())
def test_what_is_named_is_legal_and_nothing_nearer_is(request: PlanRequest) -> None:
    why = laws.violated(request)
    if why is not None:
        check(request, why)
