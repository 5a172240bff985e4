"""Cases on wires that the kernel shapes, between network namespaces (row 20): the same bits, and nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import born
import psutil
import pytest
from cover import nightly

from zerolab.apps import cli
from zerolab.apps.cost import calibration
from zerolab.apps.sweep import make_cases, shaping
from zerolab.apps.sweep.rows import read_rows
from zerolab.apps.sweep.run import find_machine, read_seconds, run_shaped
from zerolab.apps.sweep.shaping import check_wires, host_lines
from zerolab.collectives import Link
from zerolab.errors import InputError, RankError
from zerolab.train import train

SMALL: dict[str, Any] = {"zero_stage": 3, "model_size": "nano", "seq_len": 16, "batch_size": 4, "max_steps": 3}
SHAPED = {**SMALL, "ranks": 4, "hosts": 2, "wire": "shaped", "bandwidth": 1}


@pytest.fixture(scope="module")
def shapes() -> None:
    """What shapes wires is there."""
    try:
        check_wires(Link(1.0))
    except InputError as error:
        pytest.skip(str(error))


def test_row_20_a_link_is_a_token_bucket_at_both_ends_of_a_wire_and_late_at_one() -> None:
    lines = host_lines(2, Link(2.5, 50))
    assert lines[-9:] == [
        "ip netns add host1",
        "ip link add port1 mtu 9000 type veth peer name wire0 mtu 9000 netns host1",
        "ip link set port1 master switch up",
        "ip -n host1 link set lo up",
        "ip -n host1 address add 10.231.9.2/24 dev wire0",
        "ip -n host1 link set wire0 up",
        "tc qdisc add dev port1 root handle 1: tbf rate 2500000000bit burst 31250b limit 16777216b",
        "tc -n host1 qdisc add dev wire0 root handle 1: tbf rate 2500000000bit burst 31250b limit 16777216b",
        "tc -n host1 qdisc add dev wire0 parent 1:1 handle 2: netem delay 50us limit 1864",
    ]
    assert not any("tc" in line.split() for line in host_lines(2, None))


def test_row_20_what_a_machine_lacks_is_named_before_any_case_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model-size", "nano", "--wire", "simulated,shaped", "--bandwidth", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(shaping, "host_lines", lambda hosts, link: ["tc-of-nowhere qdisc"])
    assert cli.main(["sweep", *flags]) == 2
    said = capsys.readouterr().err
    assert "no wire can be shaped on this machine (" in said and "tc-of-nowhere" in said and said.count("\n") == 1
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["sweep", *flags]) == 2
    assert "no wire can be shaped without unshare (util-linux, on Linux); take wire" in capsys.readouterr().err
    assert not read_rows(tmp_path)


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
    shapes: None, tmp_path: Path
) -> None:
    (case,) = make_cases(SHAPED)
    trace = tmp_path / "traces" / "shaped.json"
    row, here = run_shaped(case, trace), train(make_cases({**SMALL, "ranks": 4, "world": "lockstep"})[0].config)
    assert (case.hosts, case.shown["wire"], row["parameters_sha256"]) == (2, "shaped", here.parameters_sha256)
    assert row["sent_bytes"] == row["sent_bytes_predicted"] > 0 and row["step_seconds"] > 0
    assert {event["pid"] for event in json.loads(trace.read_text())["traceEvents"]} == {0, 1, 2, 3}


@nightly("a calibration that takes its time")
@pytest.mark.ranks
def test_row_20_what_a_shaped_wire_takes_of_a_processor_is_measured_on_one(
    shapes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wired, simulated = make_cases({**SMALL, "ranks": 2, "bandwidth": 1, "wire": ["shaped", "simulated"]})
    measured = {kind: [1e-3 for _ in amounts] for kind, amounts in calibration.AMOUNTS.items()}
    measured |= {"call": [1e-6], "overhead": [1e-6]} | {name: [1e-3, 2e-3] for name in calibration.COLLECTIVES}
    monkeypatch.setattr("zerolab.apps.sweep.run.measure_ranks", lambda *_: measured)
    kept = read_seconds(tmp_path)
    by_wire, by_us = (find_machine(case, kept, tmp_path) for case in (wired, simulated))
    assert by_wire is not None and by_us is not None and [*kept] == ["2 ranks, ring", "2 ranks, ring, 2 hosts"]
    # Only who carries is another.
    assert by_wire == by_us.at(collective=by_wire.collective) and by_wire != by_us
    assert by_wire.collective.keys() == by_us.collective.keys() == {"all_reduce", "reduce_scatter", "all_gather"}
    assert all(call + a_byte > 0 for call, a_byte in by_wire.collective.values())
    assert find_machine(wired, read_seconds(tmp_path), tmp_path) == by_wire


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"data_mode": "/nowhere.txt"}, InputError, "there is no text file"),
        ({"max_steps": 10_000, "timeout": 4}, RankError, "with status 1: rank . did not finish within 4 s"),
    ],
)
def test_row_20_a_rank_that_fails_on_a_host_says_why(
    shapes: None, settings: dict[str, Any], error: type[Exception], said: str
) -> None:
    (case,) = make_cases({**SHAPED, "ranks": 2, **settings})
    with pytest.raises(error, match=said):
        run_shaped(case)


TWICE = f"""
from zerolab.apps.sweep import make_cases
from zerolab.apps.sweep.run import run_shaped

(case,) = make_cases({ {**SHAPED, "ranks": 2, "max_steps": 10_000} })
for _ in range(2):
    try:
        run_shaped(case)
    except Exception as error:
        print(error, flush=True)
"""


@pytest.mark.ranks
def test_row_20_after_a_kill_nothing_is_left_of_hosts_and_wires(shapes: None) -> None:
    """The hosts of the first case are killed, which is told, and with those of the second who runs it."""
    program = born.python("-c", TWICE, stdout=subprocess.PIPE, text=True, server="own")
    process, started = psutil.Process(program.pid), list[psutil.Process]()
    try:
        for killed in ("the switch", "the sweep"):
            # The switch, and two ranks on two hosts.
            wait_for(lambda: len(networks_of(process.children(recursive=True))) == 3)
            ours = process.children(recursive=True)
            networks, started = networks_of(ours), started + ours
            inside = [one for one in psutil.process_iter() if network_of(one) in networks]
            assert network_of(process) not in networks
            if killed == "the switch":
                ours[0].kill()
                said = "the ranks on shaped wires ended with status -9: "
                assert program.stdout.readline().startswith(said)
            else:
                process.kill()
            wait_for(lambda: not alive([*ours, *inside]))  # noqa: B023 - called at once
    finally:
        program.kill()
        for child in alive(started):
            child.kill()


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if is_alive(process)]


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


def networks_of(processes: Iterable[psutil.Process]) -> set[str]:
    return {network for process in processes if (network := network_of(process))}


def wait_for(happened: Any) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
