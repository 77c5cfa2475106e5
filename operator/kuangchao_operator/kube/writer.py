"""Writes children and small metadata. Server-side apply as one field manager; force only concerns fields we own.

Every method may be repeated: names are fixed, so a second call finds what the first one made.
"""

from typing import Any, Final

from kuangchao_contracts import names
from kuangchao_contracts.errors import ChildRefusedError, ConflictError
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.client import (
    APPLY,
    JSON_PATCH,
    MERGE,
    AlreadyExistsError,
    KubeApi,
    NotFoundError,
    RefusedError,
)

MAX_TRIES: Final = 8
FORBIDDEN: Final = 403


class Writer:
    """Effects on single objects."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api

    async def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        """Make the object as the manifest says, leaving what others own. Raises ChildRefusedError."""
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        try:
            return await self.api.request("PATCH", paths.of(body), body, query=query, content_type=APPLY)
        except RefusedError as error:
            raise _refused(body, error) from error

    async def create(self, body: dict[str, Any], owner_uid: str) -> dict[str, Any]:
        """Create an object whose spec cannot change; one that the same owner made already is success.

        Raises ChildRefusedError when the API server refuses it or a stranger has the name.
        """
        path = paths.collection(body["kind"], body["metadata"].get("namespace"))
        try:
            return await self.api.request("POST", path, body, query={"fieldManager": names.FIELD_MANAGER})
        except AlreadyExistsError as error:
            there = await self.api.get(paths.of(body))
            if there is None:
                raise ConflictError(f"{body['kind']} {body['metadata']['name']} has just gone") from error
            if controller_uid(there) != owner_uid:
                message = f"{body['kind']} {body['metadata']['name']} exists and is not owned by this job"
                raise ChildRefusedError(message, final=False) from error
            return there
        except NotFoundError as error:
            raise ChildRefusedError(f"namespace is gone: {error}", final=False) from error
        except RefusedError as error:
            raise _refused(body, error) from error

    async def mark(
        self, kind: str, namespace: str, name: str, *, labels: dict[str, str], annotations: dict[str, str]
    ) -> None:
        """Set labels and annotations on an object; one that is gone is success."""
        body = {"metadata": {"labels": labels, "annotations": annotations}}
        query = {"fieldManager": names.FIELD_MANAGER}
        try:
            await self.api.request("PATCH", paths.item(kind, name, namespace), body, query=query, content_type=MERGE)
        except NotFoundError:
            return

    async def delete(
        self, kind: str, name: str, namespace: str | None, *, uid: str | None = None, grace: int | None = None
    ) -> bool:
        """Delete an object; one that is gone, or whose place another (uid) has taken, is success. Whether it was there.

        In a namespace that is being deleted the rights may go before the objects: Kubernetes itself deletes those.
        `grace` None: the object's own grace period.
        """
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self.api.request("DELETE", paths.item(kind, name, namespace), body)
        except NotFoundError:
            return False
        except ConflictError:
            if not uid:
                raise
            return False
        except RefusedError as error:
            if error.status != FORBIDDEN or not await self._ends(namespace):
                raise
            return False
        return True

    async def _ends(self, namespace: str | None) -> bool:
        """Whether a namespace is gone or being deleted."""
        there = await self.api.get(f"/api/v1/namespaces/{namespace}")
        return there is None or "deletionTimestamp" in there["metadata"]

    async def finalizer(self, body: dict[str, Any], *, present: bool) -> dict[str, Any] | None:
        """Put our finalizer on an object or take it off; others' finalizers are theirs. None: it is gone.

        The list is replaced in the very version that was read. Server-side apply would not do: whoever replaces the
        object (`kubectl replace`, a GitOps tool) takes the entry from its field manager, and it could never be removed.
        """
        for _ in range(MAX_TRIES):
            there = await self.api.get(paths.of(body))
            if there is None or there["metadata"]["uid"] != body["metadata"].get("uid", there["metadata"]["uid"]):
                if present:
                    raise ConflictError(f"{body['kind']} {body['metadata']['name']} is gone")
                return None
            have = there["metadata"].get("finalizers", [])
            if (names.FINALIZER in have) == present:
                return there
            others = [entry for entry in have if entry != names.FINALIZER]
            try:
                return await self._finalizers(there, [*others, names.FINALIZER] if present else others)
            except (ConflictError, NotFoundError):
                continue
        raise ConflictError(f"{body['kind']} {body['metadata']['name']}: others wrote it {MAX_TRIES} times in a row")

    async def _finalizers(self, there: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
        metadata = there["metadata"]
        patch = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
            {"op": "add", "path": "/metadata/finalizers", "value": wanted},
        ]
        query = {"fieldManager": names.FIELD_MANAGER}
        return await self.api.request("PATCH", paths.of(there), patch, query=query, content_type=JSON_PATCH)


def controller_uid(body: dict[str, Any]) -> str | None:
    """UID of the owner that controls an object."""
    owners = body["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), None)


def _refused(body: dict[str, Any], error: RefusedError) -> ChildRefusedError:
    return ChildRefusedError(f"{body['kind']} {body['metadata']['name']}: {error}", final=error.final)
