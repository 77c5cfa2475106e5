"""What a caller can make a request cost before it is refused: an error for the first wrong item, not for a million."""

from typing import Any

import pytest
from pydantic import ValidationError

from kuangchao_contracts.base import Contract
from kuangchao_contracts.run import CommitRequest, HeartbeatRequest, RestorePointRequest

WRONG = [{"wrong": 1}] * 1_000
REQUESTS: dict[str, tuple[type[Contract], dict[str, Any]]] = {
    "ranks": (HeartbeatRequest, {"ranks": WRONG}),
    "notes": (HeartbeatRequest, {"notes": {"seq": 1, "notes": WRONG}}),
    "files": (CommitRequest, {"manifest": {"files": WRONG}}),
    "damaged": (RestorePointRequest, {"damaged": WRONG}),
}


@pytest.mark.parametrize(("model", "body"), REQUESTS.values(), ids=REQUESTS)
def test_many_wrong_items_cost_no_more_than_one(model: type[Contract], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() < 20
