"""Bad input on real pods: the job says why within seconds, holds nothing, and nothing spins."""

import json

import pytest

from tests.e2e.cluster import NAMESPACE, PATIENCE, RELEASE_NAMESPACE, eventually, get, items, kc, kubectl


def holds_nothing(job) -> bool:
    return (
        not job.pods()
        and not items("secrets", NAMESPACE, f"kuangchao.io/job={job.name}")
        and not job.status().get("allocation")
    )


def test_image_that_cannot_be_pulled(apply, manifest) -> None:
    job = apply(manifest("no-image", template={"image": "127.0.0.1:5000/no-such-image:1"}, startDeadlineSeconds=15))
    eventually(
        lambda: "ImagePull" in json.dumps(job.condition("PodsReady")) or job.status().get("phase") == "Failed",
        "reason shown",
    )
    job.wait_phase("Failed")
    assert job.condition("Failed")["reason"] in ("ImagePull", "StartDeadlineExceeded")
    eventually(lambda: holds_nothing(job), "freed")


def test_user_exception_at_the_same_step(apply, manifest, user_code) -> None:
    job = apply(manifest("raises", task="faulty:raises", taskArgs={"step": "3"}, template=user_code))
    job.wait_phase("Failed")
    failure = job.status()["firstFailure"]
    assert "ValueError" in failure["message"] and job.condition("Failed")["reason"] == "UserError"
    eventually(lambda: holds_nothing(job), "freed")


def test_task_that_does_not_exist(apply, manifest) -> None:
    job = apply(manifest("no-task", task="kuangchao_worker.tasks.digits:no_such_function", taskArgs=None))
    job.wait_phase("Failed")
    assert "no_such_function" in job.status()["firstFailure"]["message"]


def test_one_rank_leaves_early_with_zero(apply, manifest, user_code) -> None:
    job = apply(
        manifest("early", task="faulty:leaves", taskArgs={"step": "3"}, template=user_code, fault={"maxRestarts": 1})
    )
    job.wait_phase("Failed", "Suspended")
    failure = job.status()["firstFailure"]
    assert failure["reason"] == "UserError"
    assert "ended the process with 0 before the training was over" in failure["message"]
    eventually(lambda: holds_nothing(job), "freed")


def test_missing_storage(apply, manifest) -> None:
    job = apply(manifest("no-storage", checkpoint={"everySteps": 50, "storage": {"claimName": "no-such-claim"}}))
    eventually(lambda: job.condition("Stalled").get("reason") == "StorageNotFound", "said so")
    assert holds_nothing(job)


@pytest.mark.parametrize("moment", ["Queued", "Admitted", "Starting", "Running"])
def test_delete_in_any_state(apply, manifest, moment: str) -> None:
    job = apply(manifest(f"gone-{moment.lower()}", training={"steps": 100_000}))
    order = ["Pending", "Queued", "Admitted", "Starting", "Running"]
    later = order[order.index(moment) :]
    eventually(lambda: job.status().get("phase") in later, moment, 0.05)
    job.delete()
    assert get("trainingjobs", job.name, NAMESPACE) is None


def test_helm_test_passes(cluster) -> None:
    out = kc("helm", "test", "kuangchao", "-n", RELEASE_NAMESPACE, "--timeout", f"{PATIENCE:.0f}s")
    assert "Succeeded" in out
    ready = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
    eventually(lambda: "False" not in kubectl("get", "rpool", "-o", ready), "all pools are ready")
