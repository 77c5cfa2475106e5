"""The operator on a real API server, under its own account: the course of a job, and everything it says on the way."""

from tests.api.fakes import Gang, Kubelets, Site, eventually, running


def test_a_job_is_planned_admitted_launched_watched_completed_and_reclaimed(site: Site) -> None:
    kubelets = Kubelets(site)
    job = site.job("first", count=2, training={"steps": 10})
    with running(kubelets):
        pods = job.wait_pods(2)
        status = job.status()
        assert status["planSummary"] == "dp2"
        assert sum(share["devices"] for share in status["allocation"]) == 2
        assert [p["spec"]["plan"]["worldSize"] for p in job.children("parallelplans")] == [2]
        assert len(job.children("services")) == 1
        assert "kuangchao.io/cleanup" in (job.object() or {})["metadata"]["finalizers"]
        gang = Gang(job, pods)
        gang.join_all()
        assert {reply["launch"]["jobUid"] for reply in gang.launches} == {(job.object() or {})["metadata"]["uid"]}
        with running(gang):
            job.wait_phase("Running")
            gang.step = 10
            job.wait(lambda: job.status().get("progressText") == "10/10", "progress")
            gang.state, gang.exit_code = "Exited", 0
            job.wait_phase("Complete")
    job.wait(lambda: not job.pods() and not job.children("secrets"), "children reclaimed")
    final = job.object() or {}
    job.wait(lambda: "finalizers" not in (job.object() or {})["metadata"], "finalizer released")
    assert final["status"].get("allocation", []) == []
    assert job.holds("Ready")
    eventually(lambda: site.pool_object().get("status", {}).get("free") == 4, "devices are free again")
    assert "kuangchao_jobs_succeeded_total" in site.operator.metrics()


def test_a_pool_that_does_not_exist_is_named_and_its_coming_is_noticed(site: Site) -> None:
    site.server.request("DELETE", f"/apis/kuangchao.io/v1alpha1/resourcepools/{site.pool}")
    job = site.job("early")
    condition = job.wait_reason("Stalled", "PoolNotFound")
    assert site.pool in condition["message"]
    assert job.pods() == []
    site.create_pool()
    job.wait_pods(2)
