"""The four kinds of kuangchao.io/v1alpha1; the one source of the CRDs (see operator's crdgen)."""

from kuangchao_contracts.api.meta import Condition, ObjectMeta
from kuangchao_contracts.api.parallelplan import ParallelPlanObject
from kuangchao_contracts.api.resourcedescriptor import ResourceDescriptorObject
from kuangchao_contracts.api.resourcepool import ResourcePool
from kuangchao_contracts.api.trainingjob import TrainingJob

__all__ = ["Condition", "ObjectMeta", "ParallelPlanObject", "ResourceDescriptorObject", "ResourcePool", "TrainingJob"]
