"""ResourceDescriptor: what one node has, published by its node agent. Immutable."""

from typing import ClassVar, Literal

from pydantic import ConfigDict

from kuangchao_contracts.api.meta import Column, CustomObject, rules
from kuangchao_contracts.descriptor import NodeDescriptor


class ResourceDescriptorSpec(NodeDescriptor):
    """The descriptor itself."""

    model_config = ConfigDict(
        json_schema_extra=rules(("self == oldSelf", "a descriptor is immutable; a change is a new object"))
    )


class ResourceDescriptorObject(CustomObject):
    """kuangchao.io/v1alpha1 ResourceDescriptor (cluster scope)."""

    plural: ClassVar[str] = "resourcedescriptors"
    short_names: ClassVar[tuple[str, ...]] = ("rdesc",)
    namespaced: ClassVar[bool] = False
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="Node", type="string", json_path=".spec.node"),
        Column(name="Generation", type="integer", json_path=".spec.generation"),
        Column(name="Driver", type="string", json_path=".spec.driver", priority=1),
        Column(name="Age", type="date", json_path=".metadata.creationTimestamp"),
    )

    kind: Literal["ResourceDescriptor"] = "ResourceDescriptor"
    spec: ResourceDescriptorSpec
