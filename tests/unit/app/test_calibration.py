"""The operator plans with the calibration that its settings name, and does not start with a broken one."""

from pathlib import Path

import pytest

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import DeviceShape, MeasuredModel, PlanRequest, TrainingSpec
from kuangchao_operator.app.settings import Settings
from kuangchao_operator.app.wiring import _planner
from kuangchao_operator.layers.strategy import shipped

REQUEST = PlanRequest(
    devices=1,
    per_pod=1,
    shapes=(DeviceShape(kind="cpu", memory_bytes=2**34, per_node=1, nodes=1),),
    model=MeasuredModel(parameters=10**6),
    training=TrainingSpec(global_batch=8),
)


def settings(calibration: Path | None) -> Settings:
    return Settings(
        namespace="n",
        gate_url="https://gate:1",
        worker_image="w",
        issuer_socket=Path("/s"),
        audit_dir=Path("/a"),
        calibration=calibration,
    )


def test_plans_carry_the_digest_of_a_calibration_of_ones_own(tmp_path: Path) -> None:
    base = shipped.knowledge().calibration
    own = base.replace(version=base.version + 1)
    path = tmp_path / "calibration.json"
    path.write_text(own.model_dump_json(by_alias=True))
    digests = {}
    for name, given in (("own", path), ("shipped", None)):
        made = _planner(settings(given)).plan(REQUEST).plan
        assert made is not None
        digests[name] = made.request_digest
    assert digests["shipped"] == REQUEST.content_hash()
    assert digests["own"] == REQUEST.replace(calibration_digest=own.content_hash()).content_hash()


def test_a_broken_calibration_is_named_when_the_operator_starts(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text("{}")
    with pytest.raises(InvalidInputError, match=r"calibration\.json='version': is no calibration"):
        _planner(settings(path))
    with pytest.raises(OSError, match="none"):
        _planner(settings(tmp_path / "none"))
