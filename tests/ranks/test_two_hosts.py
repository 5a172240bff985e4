"""Two hosts, made of two network namespaces and a wire between them, train together and end as one host does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import born
import pytest

from zerolab.run import RunSpec
from zerolab.train import train

HOSTS = (("zerolab-a", "zla", "10.231.7.1"), ("zerolab-b", "zlb", "10.231.7.2"))
PORT = 29531


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


def remove_hosts() -> None:
    for host, _, _ in HOSTS:
        subprocess.run(["ip", "netns", "delete", host], capture_output=True, timeout=20)


@pytest.fixture
def hosts() -> Iterator[tuple[tuple[str, str, str], ...]]:
    if not shutil.which("ip"):
        pytest.skip("two hosts need the command ip (iproute2), which is not installed")
    remove_hosts()
    try:
        for host, _, _ in HOSTS:
            ip("netns", "add", host)
        (one, wire_one, _), (two, wire_two, _) = HOSTS
        ip("link", "add", wire_one, "netns", one, "type", "veth", "peer", "name", wire_two, "netns", two)
        for host, wire, address in HOSTS:
            ip("-n", host, "addr", "add", f"{address}/24", "dev", wire)
            for device in ("lo", wire):
                ip("-n", host, "link", "set", device, "up")
    except subprocess.CalledProcessError as error:
        remove_hosts()
        pytest.skip(f"network namespaces may not be made here: {error.stderr.decode().strip()}")
    yield HOSTS
    remove_hosts()


def start(place: int, host: tuple[str, str, str], profile: Path) -> Any:
    name, wire, _ = host
    """torchrun on a host. Its worker starts as it, by day as a fork that has torch."""
    world = f"--nnodes=2 --nproc_per_node=1 --node_rank={place} --master_addr={HOSTS[0][2]} --master_port={PORT}"
    flags = f"--zero-stage 3 --model-size nano --seq-len 32 --max-steps 3 --profile-json {profile}"
    words = f"-m torch.distributed.run {world} -m zerolab train {flags}".split()
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": wire, "OMP_NUM_THREADS": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return born.python(*words, network=name, env=environment, **streams)


@pytest.mark.ranks
def test_row_13_two_nodes_under_torchrun_train_as_one(hosts: tuple[tuple[str, str, str], ...], tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    running = [start(place, host, profile) for place, host in enumerate(hosts)]
    try:
        said = [process.communicate(timeout=100)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], "\n".join(said)
    one_host = train(RunSpec(zero_stage=3, ranks=2, model_size="nano", seq_len=32, max_steps=3))
    assert json.loads(profile.read_text())["parameters_sha256"] == one_host.parameters_sha256
