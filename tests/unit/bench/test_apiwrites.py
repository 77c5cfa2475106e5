"""Which requests count as writes: those that change something, whoever made them, by resource."""

from bench.apiwrites import Writes, count


def exposition(**numbers: int) -> list[str]:
    labels = 'code="200",component="apiserver",group="",scope="resource",subresource="status",version="v1"'
    lines = ["# TYPE apiserver_request_total counter\n", 'apiserver_request_total_other{verb="POST"} 9\n']
    for key, number in numbers.items():
        verb, resource = key.split("_")
        series = f'apiserver_request_total{{{labels},dry_run="",resource="{resource}",verb="{verb}"}}'
        lines.append(f"{series} {number}\n")
    return lines


def test_writes_are_counted_by_resource_and_reads_are_not() -> None:
    found = count(exposition(GET_pods=50, WATCH_pods=5, POST_pods=2, APPLY_pods=3, PATCH_trainingjobs=7, PUT_leases=1))
    assert found == {"pods": 5, "trainingjobs": 7, "leases": 1}


def test_what_came_in_between_without_what_no_waiting_job_can_cause() -> None:
    before = Writes(count(exposition(PATCH_trainingjobs=7, PUT_leases=1, APPLY_secrets=4)))
    after = Writes(count(exposition(PATCH_trainingjobs=9, POST_events=1, PUT_leases=3, APPLY_secrets=4)))
    made = after - before
    assert made.of_jobs() == 3
    assert made.others() == "2 leases"
    assert (before - before).others() == "none"
    assert (before - before).of_jobs() == 0
