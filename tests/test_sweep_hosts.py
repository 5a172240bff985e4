"""Cases on wires that the kernel shapes, between network namespaces (row 20): the same bits, and nothing is left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from zerolab import system
from zerolab.apps import cli
from zerolab.apps.cost import calibration
from zerolab.apps.sweep import make_cases
from zerolab.apps.sweep.hosts import leave_word, read_result, run_all
from zerolab.apps.sweep.machines import Machines
from zerolab.apps.sweep.rows import read_rows
from zerolab.apps.sweep.shaped import ShapedHosts
from zerolab.apps.sweep.shaping import host_end, switch, wire
from zerolab.collectives import Link
from zerolab.errors import InputError, RankError
from zerolab.train import train

SMALL: dict[str, Any] = {"zero_stage": 3, "model_size": "nano", "seq_len": 16, "batch_size": 4, "max_steps": 3}
SHAPED = {**SMALL, "ranks": 4, "hosts": 2, "wire": "shaped", "bandwidth": 1}


@pytest.fixture(scope="module")
def hosts() -> Iterator[ShapedHosts]:
    with ShapedHosts() as made:
        try:
            made.check(Link(1.0))
        except (InputError, RankError) as error:
            pytest.skip(str(error))
        yield made


def test_row_20_a_link_is_a_token_bucket_at_both_ends_of_a_wire_and_late_at_one() -> None:
    link = Link(2.5, 50)
    told = [" ".join(command) for command in (*switch(), *wire(1, 4711, link), *host_end(1, link))]
    assert told == [
        "ip link add switch mtu 9000 type bridge",
        "ip link set switch up",
        "ip link add port1 mtu 9000 type veth peer name wire0 mtu 9000 netns 4711",
        "ip link set port1 master switch up",
        "tc qdisc add dev port1 root handle 1: tbf rate 2500000000bit burst 31250b limit 16777216b",
        "ip link set lo up",
        "ip address add 10.231.9.2/24 dev wire0",
        "ip link set wire0 up",
        "tc qdisc add dev wire0 root handle 1: tbf rate 2500000000bit burst 31250b limit 16777216b",
        "tc qdisc add dev wire0 parent 1:1 handle 2: netem delay 50us limit 1864",
    ]
    assert not any("tc" in command for command in (*wire(1, 4711, None), *host_end(1, None)))


def test_row_20_what_a_machine_lacks_is_named() -> None:
    with pytest.raises(InputError, match=r"^the command tc-of-nowhere \(iproute2\) is not installed; install it$"):
        run_all([["tc-of-nowhere", "qdisc"]])
    with pytest.raises(InputError, match=r"^ls netem was refused \(ls: .*\); the kernel may lack netem$"):
        run_all([["ls", "netem"]])


def test_the_first_rank_that_said_why_is_heard_and_else_what_an_overdue_one_printed(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"^host 1 ended with status -9: no rank of it could say why$"):
        read_result(tmp_path, "host 1 ended with status -9")
    (tmp_path / "said0.txt").write_text("[W] noise\nzerolab: rank 0 did not finish within 4 s: it computes\n")
    with pytest.raises(RankError, match=r"^host 0 ended with status 1: rank 0 did not finish within 4 s: it computes$"):
        read_result(tmp_path, "host 0 ended with status 1")
    for at, who in ((2, "0"), (1, "1")):
        leave_word(tmp_path, who, InputError(f"rank {who} was asked too much"))
        os.utime(tmp_path / f"failed{who}.json", (at, at))
    with pytest.raises(InputError, match=r"^rank 1 was asked too much$"):
        read_result(tmp_path, "host 0 ended with status 1")


def test_row_20_a_system_without_network_namespaces_refuses_before_any_case_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system, "_found", lambda thing: thing != "namespaces")
    flags = ["--model-size", "nano", "--wire", "simulated,shaped", "--bandwidth", "1", "--out", str(tmp_path)]
    assert cli.main(["sweep", *flags]) == 2
    said = "no wire can be shaped on this machine: this system has no network namespaces, which Linux has; or take wire"
    assert said in capsys.readouterr().err and not read_rows(tmp_path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wire": "tc"}, "wire is 'tc'; choose simulated or shaped"),
        ({"wire": "shaped", "hosts": 3}, "hosts is 3 for 2 ranks; give a number that divides them"),
        ({"wire": "shaped", "world": "lockstep"}, "wire is shaped, which carries messages of processes on the CPU; "
         "leave world, collective_impl and device out"),
    ],
)  # fmt: skip
def test_wires_and_hosts_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        make_cases({**SMALL, **settings})
    assert str(refused.value) == said


@pytest.mark.ranks
def test_row_20_two_hosts_of_two_on_a_shaped_wire_end_with_the_bits_of_one_machine(
    hosts: ShapedHosts, tmp_path: Path
) -> None:
    (case,) = make_cases(SHAPED)
    trace = tmp_path / "traces" / "shaped.json"
    row, here = hosts.run(case, trace), train(make_cases({**SMALL, "ranks": 4, "world": "lockstep"})[0].config)
    assert (case.hosts, case.told["wire"], row["parameters_sha256"]) == (2, "shaped", here.parameters_sha256)
    assert row["sent_bytes"] == row["sent_bytes_predicted"] > 0 and row["step_seconds"] > 0
    assert {event["pid"] for event in json.loads(trace.read_text())["traceEvents"]} == {0, 1, 2, 3}


@pytest.mark.ranks
def test_row_20_what_a_shaped_wire_takes_of_a_processor_is_measured_on_one(
    hosts: ShapedHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "CARRIED", (3, 1))
    wired, simulated = make_cases({**SMALL, "ranks": 2, "bandwidth": 1, "wire": ["shaped", "simulated"]})
    kept = Machines(tmp_path)
    by_wire, by_us = kept.of(wired, hosts), kept.of(simulated, hosts)
    assert by_wire is not None and by_us is not None and [*kept.by_name] == ["2 ranks, ring", "2 ranks, ring, 2 hosts"]
    # Only who carries is another.
    assert by_wire == by_us.at(collective=by_wire.collective) and by_wire != by_us
    assert by_wire.collective.keys() == by_us.collective.keys() == {"all_reduce", "reduce_scatter", "all_gather"}
    assert all(call + a_byte > 0 for call, a_byte in by_wire.collective.values())
    assert Machines(tmp_path).by_name == kept.by_name


@pytest.mark.ranks
def test_row_20_a_rank_that_fails_on_a_host_says_why(hosts: ShapedHosts) -> None:
    (case,) = make_cases({**SHAPED, "data_mode": "/nowhere.txt"})
    with pytest.raises(InputError, match="there is no text file"):
        hosts.run(case)


@pytest.mark.ranks
@pytest.mark.parametrize("killed", ["the switch", "the sweep"])
def test_row_20_after_a_kill_nothing_is_left_of_hosts_and_wires(
    killed: str, hosts: ShapedHosts, tmp_path: Path
) -> None:
    process = hosts._process
    assert process is not None and process.stdin is not None and process.stdout is not None
    settings = {**make_cases(SHAPED)[0].config.model_dump(mode="json", exclude_defaults=True), "max_steps": 10_000}
    del settings["gbit_per_s"]
    job = {"hosts": 2, "ranks": 4, "link": [1.0, 0.0], "settings": settings, "folder": str(tmp_path), "trace": None}
    job["carries"] = False
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    server = psutil.Process(process.pid)
    # The switch, two hosts, and two ranks on each.
    wait_for(lambda: len(server.children(recursive=True)) == 7)
    started = server.children(recursive=True)
    networks = {network_of(child) for child in started}
    assert len(networks) == 3 and network_of(server) not in networks
    if killed == "the switch":
        server.children()[0].kill()
        assert json.loads(process.stdout.readline()) == {"error": "the switch was killed"}
    else:
        # What a killed process leaves of its pipes.
        process.stdin.close()
        process.wait(20)
    try:
        wait_for(lambda: not any(is_alive(child) for child in started))
    finally:
        for child in filter(is_alive, started):
            child.kill()
    assert not networks & {network_of(other) for other in psutil.process_iter()}


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def network_of(process: psutil.Process) -> str | None:
    """The network namespace that a process is in."""
    try:
        return os.readlink(f"/proc/{process.pid}/ns/net")
    except OSError:
        return None


def wait_for(happened: Any) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
