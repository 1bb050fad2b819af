"""Who of a fleet measures what, as a pure question."""

from __future__ import annotations

import pytest

from hetero_lab.fleet import work_queue as fleet_rota
from hetero_lab.fleet.work_queue import FleetWorker, Item, WorkQueue, read_workers, why_not

BASE_OF = {"ACC": "CPU", "GACC": "GPU"}


def worker(number=1, *, machine=None, host=None, missing=(), **resources):
    return FleetWorker(
        address=f"tcp://10.0.0.{number}:1",
        directory=f"/tmp/w{number}",
        host=host or f"h{number}",
        machine=machine or f"m{number}",
        environment={"host": host or f"h{number}", "devices": [("CPU", "a CPU")], "emulated": ()},
        missing=frozenset(missing),
        resources=resources,
    )


@pytest.mark.parametrize(
    ("resources", "devices", "asked", "lacking"),
    [
        ({}, ["ACC", "CPU"], {}, []),
        ({"CPU": 2}, ["ACC", "CPU"], {"CPU": 1}, []),
        ({"ACC": 1}, ["ACC", "CPU"], {"ACC": 1}, []),
        ({"GPU": 1}, ["GPU", "CPU"], {"GPU": 1}, []),
        ({"GPU": 1}, ["GPU.1"], {"GPU": 1}, []),
        ({"GPU": 1, "GPU.1": 1}, ["GPU.1"], {"GPU.1": 1}, []),
        ({"GPU": 1}, ["GACC"], {"GPU": 1}, []),
        ({}, ["GPU", "CPU"], {}, ["GPU"]),
        ({"GPU": 0}, ["GPU"], {}, ["GPU"]),
        ({"NPU": 1}, ["GACC", "NPU"], {"NPU": 1}, ["GACC"]),
    ],
)
def test_resources_that_a_task_asks_for(resources, devices, asked, lacking):
    one = worker(**resources)
    assert one.asked_for(devices, BASE_OF) == asked
    assert one.lacks(devices, BASE_OF) == lacking


def test_a_declared_device_that_is_not_there_is_lacking():
    one = worker(missing=["GPU"], GPU=1)
    assert one.lacks(["GPU", "CPU"], BASE_OF) == ["GPU"]
    assert why_not([one], ["GPU"], BASE_OF) == "h1 (tcp://10.0.0.1:1) has no GPU"
    assert why_not([worker()], ["GACC"], BASE_OF).endswith(
        'has GACC but does not declare it: start it with --resources "GPU=1"'
    )
    assert why_not([], ["GPU"], BASE_OF) == "no worker is left"


def test_machines_that_call_themselves_alike_are_told_apart():
    info = {
        f"tcp://{ip}:1": {"local_directory": f"/tmp/{ip}", "resources": {}, "host": ip}
        for ip in ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    }

    def own(machine):
        return {"environment": {"host": "pi", "devices": ()}, "machine": machine, "missing": []}

    told = dict(zip(info, (own("a"), own("b"), ImportError("no")), strict=True))
    assert [w.host for w in read_workers(info, told)] == ["pi (10.0.0.1)", "pi (10.0.0.2)"]
    told = dict(zip(info, (own("a"), own("a"), own("a")), strict=True))
    every = read_workers(info, told)
    assert [w.host for w in every] == ["pi"] * 3
    late = read_workers(info, {"tcp://10.0.0.3:1": own("c")}, every[:2])
    assert [w.host for w in late] == ["pi (10.0.0.3)"]
    # A machine keeps its name, whoever else comes.
    told = {"tcp://10.0.0.2:1": own("a"), "tcp://10.0.0.3:1": own("c")}
    assert [w.host for w in read_workers(info, told, every[:1])] == ["pi", "pi (10.0.0.3)"]
    again = read_workers(info, {"tcp://10.0.0.3:1": own("c")}, late)
    assert [w.host for w in again] == ["pi (10.0.0.3)"]
    # Behind one address, for instance through tunnels, there may be several machines.
    info = {f"tcp://h:{port}": {**info["tcp://10.0.0.1:1"], "host": "h"} for port in (1, 2)}
    told = dict(zip(info, (own("a"), own("b")), strict=True))
    assert [w.host for w in read_workers(info, told)] == ["pi (h)", "pi (tcp://h:2)"]


def queue_of(n=20, devices=("CPU",), host=""):
    made = WorkQueue({f"k{i}": devices for i in range(n)}, BASE_OF, group_size=8)
    made.waiting += [Item(f"k{i}", host) for i in range(n)]
    return made


def shares(made, workers):
    """Hand all out, one machine after the other, as if all took equally long."""
    sizes = []
    while made.waiting:
        busy = set()
        for _ in workers:
            chosen = made.choose(workers, busy)
            if chosen is None:
                break
            one, items, _ = chosen
            busy.add(one.machine)
            made.take(items)
            sizes.append(len(items))
        assert busy
    return sizes


def test_one_machine_gets_all_at_once_and_several_get_less_and_less():
    assert shares(queue_of(), [worker(1)]) == [20]
    assert shares(queue_of(), [worker(1), worker(2, machine="m1")]) == [20]
    assert shares(queue_of(40), [worker(1), worker(2)]) == [20, 10, 7, 3]
    assert shares(queue_of(2), [worker(1), worker(2)]) == [1, 1]


def test_two_workers_of_a_machine_are_never_busy_together():
    made = queue_of()
    two = [worker(1, machine="m"), worker(2, machine="m")]
    assert made.choose(two, busy={"m"}) is None


def test_a_share_gets_its_part_of_the_time():
    made = queue_of(40)
    _, items, of_time = made.choose([worker(1), worker(2)], busy=set())
    assert (len(items), of_time) == (20, 1.0)
    made.take(items)
    made.take(made.waiting[:6])
    _, items, of_time = made.choose([worker(1), worker(2)], busy=set())
    assert (len(items), of_time) == (7, 1.0)
    assert WorkQueue.choose(queue_of(1), [worker(1)], set())[2] == 1.0


def test_items_go_to_their_host_and_to_who_has_the_device():
    made = queue_of(3, ("GPU", "CPU"))
    gpu = worker(2, GPU=1)
    chosen, items, _ = made.choose([worker(1), gpu], busy=set())
    assert chosen is gpu
    assert len(items) == 3
    made = queue_of(3, host="h2")
    chosen, items, _ = made.choose([worker(1), worker(2)], busy=set())
    assert (chosen.host, len(items)) == ("h2", 3)
    assert made.choose([worker(1)], busy=set()) is None


def test_what_is_lost_goes_alone_and_then_no_more():
    made = queue_of(3)
    bad = Item("k1")
    for expected in (True, True, False):
        made.take([bad])
        assert made.put_back(bad) is expected
        if expected and made.losses[bad] > 1:
            assert made.choose([worker()], set())[1] == [bad]


def test_what_nobody_can_measure_is_given_up_after_a_while(monkeypatch):
    made = queue_of(2, ("GPU",))
    assert made.hopeless([worker()], at_once=False) == []
    monkeypatch.setattr(fleet_rota, "PATIENCE_S", -1.0)
    assert made.hopeless([worker(GPU=1)], at_once=True) == []
    assert made.hopeless([worker()], at_once=False) == [Item("k0"), Item("k1")]
    assert made.waiting == []
