"""The note outside the store: what is put aside survives what is published after it, and each has its own key."""

from typing import Any, cast

from kuangchao_operator.kube.anchor import AuditAnchor
from kuangchao_operator.kube.writer import Writer
from tests.unit.authority.proven import Proven


class Api:
    """One ConfigMap; a patch by apply replaces what the same manager wrote."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {}
        self.managers: dict[str, str] = {}

    async def get(self, path: str) -> dict[str, Any]:
        assert path.endswith("/configmaps/kuangchao-audit-head")
        return {"data": self.data}

    async def request(
        self, method: str, path: str, body: dict[str, Any], *, query: dict[str, str], content_type: str
    ) -> dict[str, Any]:
        who = query["fieldManager"]
        if "apply" in content_type:
            self.data = {key: value for key, value in self.data.items() if self.managers[key] != who}
        self.data |= body["data"]
        self.managers |= dict.fromkeys(body["data"], who)
        return body


async def test_notes_that_are_put_aside_stay(tmp_path: Any) -> None:
    world, api = Proven(tmp_path), Api()
    await world.signed(3)
    await world.signed(4)
    world.store.close()
    anchor = AuditAnchor(Writer(cast(Any, api)), "kuangchao-system")
    assert await anchor.noted() is None
    await anchor.publish(world.anchors[1])
    await anchor.put_aside(world.anchors[1])
    await anchor.put_aside("no note")
    await anchor.publish(world.anchors[0])
    assert await anchor.noted() == world.anchors[0]
    assert api.data == {
        "checkpoint": world.anchors[0],
        "broken.2027-01-15.7": world.anchors[1],
        "broken.unreadable": "no note",
    }
