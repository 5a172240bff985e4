"""`launch` in processes: what a caller can count on when all goes well, and what is refused before anything starts."""

import gc
import multiprocessing
import os
import platform
import re
import resource
import tempfile
import threading
from pathlib import Path

import psutil
import pytest
import rank_functions as functions
import torch
from cover import NIGHTLY, nightly

from zerolab.collectives import Link
from zerolab.errors import InputError
from zerolab.ranks import forkserver, launch
from zerolab.ranks.job import Job
from zerolab.ranks.printing import Printer

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(60)]


def test_results_come_in_rank_order():
    assert launch(functions.who_and_how_many, ranks=4, timeout=30) == [(rank, 4) for rank in range(4)]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no fork server")
def test_a_rank_finds_torch_imported_and_looks_for_garbage_in_its_own_objects_alone():
    assert launch(functions.what_was_there_before, ranks=1, timeout=30) == [(True, True, True)]


def test_arguments_travel_by_place_and_by_name():
    def told(comm, first, *, plus):
        return first + comm.rank + plus

    assert launch(told, 1.0, ranks=2, kwargs={"plus": 2.0}, timeout=30) == [3.0, 4.0]


def test_lambdas_and_closures_travel():
    weight = torch.tensor([2.0])
    assert launch(lambda comm: comm.all_reduce(weight.clone()).item(), ranks=3, timeout=30) == [6.0] * 3


def test_bare_transport_carries_every_dtype_and_shape():
    assert launch(functions.messages_by_hand, ranks=3, collectives="transport", timeout=30) == [True] * 3


def test_a_message_goes_to_the_receive_with_its_tag():
    assert launch(functions.tags_out_of_order, ranks=2, timeout=30)[1] == {1: 1.0, 2: 2.0, 3: 3.0}


def test_prints_are_whole_lines_in_rank_order_without_noise(capfd):
    results = launch(functions.three_lines, ranks=3, timeout=30)
    shown = [f"rank {rank} | line {line} of {rank}" for rank in range(3) for line in range(3)]
    output = capfd.readouterr()
    assert output.out.splitlines() == shown
    assert output.err == ""
    assert results.printed[1] == "line 0 of 1\nline 1 of 1\nline 2 of 1\n"


def test_one_printing_rank_needs_no_prefix(capsys):
    launch(functions.only_rank_0_prints, ranks=2, timeout=30)
    assert capsys.readouterr().out == "loss 1.5\n"


def test_quiet_shows_nothing_and_keeps_the_text(capsys):
    results = launch(functions.only_rank_0_prints, ranks=2, prints="quiet", timeout=30)
    assert capsys.readouterr().out == ""
    assert results.printed == ["loss 1.5\n", ""]


def test_ranks_see_todays_environment_and_directory(monkeypatch, tmp_path):
    launch(functions.who_and_how_many, ranks=1, timeout=30)  # the server is up, with the environment of before
    monkeypatch.setenv("ZEROLAB_TEST_SETTING", "today")
    monkeypatch.chdir(tmp_path)
    assert launch(functions.environment_of, "ZEROLAB_TEST_SETTING", ranks=1, timeout=30) == [("today", str(tmp_path))]
    extra = launch(functions.environment_of, "ZEROLAB_OTHER", ranks=1, env={"ZEROLAB_OTHER": "1"}, timeout=30)
    assert extra[0][0] == "1" and "ZEROLAB_OTHER" not in os.environ


def test_seeds_repeat_and_ranks_start_alike():
    first, second = (launch(functions.random_numbers, ranks=2, timeout=30) for _ in range(2))
    assert first == second
    assert first[0][0] == first[1][0]


def test_live_shows_every_line_once(capsys):
    launch(functions.three_lines, ranks=2, prints="live", timeout=30)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == [f"rank {rank} | line {line} of {rank}" for rank in range(2) for line in range(3)]


def test_live_shows_no_line_before_it_is_whole_and_says_whose_the_rest_is(capsys):
    texts, shown = ["", ""], []
    job = Job(2, 60.0, "ring", ("cpu", "cpu"), "gloo", 1, prints="live")
    printer = Printer(job, lambda: texts)
    for more in (("lo", ""), ("ss 0.", "step 1\nlo"), ("5\n", "ss 0.7\nst")):
        texts[:] = [text + new for text, new in zip(texts, more, strict=True)]
        printer.follow()
        shown.append(capsys.readouterr().out)
    assert shown == ["", "rank 1 | step 1\n", "rank 0 | loss 0.5\nrank 1 | loss 0.7\n"]
    printer.finish()
    assert printer.texts == ["loss 0.5\n", "step 1\nloss 0.7\nst"]
    assert capsys.readouterr().out == "rank 1 | st\n"


@pytest.mark.parametrize("prints", ["ranked", "live"])
def test_lines_that_ranks_print_piece_by_piece_at_once_are_shown_whole(capfd, prints):
    launch(functions.prints_in_pieces, ranks=3, prints=prints, timeout=30)
    lines, errors = capfd.readouterr()
    expected = [f"rank {rank} | " + " ".join(f"{piece} of {rank}" for piece in range(4)) for rank in range(3)]
    assert (lines.splitlines() if prints == "ranked" else sorted(lines.splitlines())) == expected
    assert errors == ""


@pytest.mark.parametrize(("world", "prints"), [("processes", "live"), ("lockstep", "ranked")])
def test_a_line_ends_where_a_terminal_ends_it(world, prints, capfd):
    launch(lambda comm: print("a\x0cb\u2028c\nd"), ranks=2, world=world, prints=prints, timeout=30)
    printed = capfd.readouterr().out.removesuffix("\n").split("\n")
    assert sorted(printed) == [f"rank {rank} | {line}" for rank in (0, 1) for line in ("a\x0cb\u2028c", "d")]


def sends_beside_a_default_device(comm):
    torch.set_default_device("meta")
    tensor = torch.full((2,), float(comm.rank), device="cpu")
    if comm.rank == 0:
        comm.send(tensor, 1)
    else:
        comm.recv(tensor, 0)
    return tensor.tolist()


def test_a_message_passes_whatever_device_the_rank_makes_its_tensors_on():
    assert launch(sends_beside_a_default_device, ranks=2, timeout=30)[1] == [0.0, 0.0]


def test_trace_gives_each_ranks_spans():
    trace = launch(functions.total_of_ranks, ranks=2, trace=True, timeout=30).trace
    assert [[span.name for span in spans] for spans in trace] == [["all_reduce"], ["all_reduce"]]


def test_two_launches_at_once_from_two_threads():
    results = {}

    def start(plus):
        results[plus] = [launch(functions.total_of_ranks, plus, ranks=2, timeout=50) for _ in range(5)]

    threads = [threading.Thread(target=start, args=(plus,)) for plus in (1.0, 10.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1.0: [[3.0, 3.0]] * 5, 10.0: [[21.0, 21.0]] * 5}


def test_a_rank_may_launch():
    """In lockstep; that one may launch processes is below, from a server that was forked."""
    assert launch(functions.launches_inside, "lockstep", ranks=1, timeout=50) == [[(0, 2), (1, 2)]]


def launches(folder, answers):
    held = [str(path) for path in Path(folder).glob("zerolab-*")]
    answers.send((list(launch(functions.who_and_how_many, ranks=2, timeout=30)), held))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_fork_of_a_process_that_has_launched_may_launch_and_leaves_the_others_server_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert launch(functions.who_and_how_many, ranks=2, timeout=30) == [(0, 2), (1, 2)]
    server = forkserver._server._forkserver_pid
    forks = multiprocessing.get_context("fork")
    ours, theirs = forks.Pipe(duplex=False)
    child = forks.Process(target=launches, args=(tmp_path, theirs))
    child.start()
    assert ours.poll(50)
    answer, held = ours.recv()
    child.join()
    assert child.exitcode == 0 and answer == [(0, 2), (1, 2)]
    # The child has taken its own folders away, and none of ours.
    assert sorted(held) == sorted(str(path) for path in tmp_path.glob("zerolab-*"))
    assert launch(functions.who_and_how_many, ranks=2, timeout=30) == [(0, 2), (1, 2)]
    assert forkserver._server._forkserver_pid == server


@nightly("by day a fork launches")
def test_a_rank_of_a_server_that_was_forked_may_launch(tmp_path):
    process = forkserver.start_process(functions.launches_by_a_forked_server, (str(tmp_path / "seen"),), "forked")
    process.join()
    assert (tmp_path / "seen").read_text() == "[(0, 2), (1, 2)]"


@pytest.mark.timeout(1500 if NIGHTLY else 60)
def test_launch_after_launch_leaks_no_file_port_process_or_memory(monkeypatch, tmp_path):
    """Forty by day, two thousand nightly. Half a megabyte goes to the ranks and comes back from each, and the three
    kinds of collectives take turns."""
    weight, pids = torch.ones(125_000), set()

    def launch_many(times):
        for at in range(times):
            collectives = ("shared", "ring", "torch")[at % 3]
            results = launch(
                functions.sum_and_weight, weight, ranks=2, collectives=collectives, device="cpu", timeout=30
            )
            assert [total for _, total, _ in results] == [250_000.0] * 2
            pids.update(pid for pid, *_ in results)

    def held():
        """Of this process and of the server of ranks."""
        gc.collect()  # What tests before this one left in cycles.
        both = psutil.Process(), psutil.Process(forkserver._server._forkserver_pid)
        return {
            "descriptors": [one.num_fds() for one in both],
            "ports": [len(one.net_connections("all")) for one in both],
            # The system may still count a thread of ours that has ended; the server has none but its own.
            "threads": [*sorted(thread.name for thread in threading.enumerate()), both[1].num_threads()],
            "processes": sorted(child.pid for child in both[0].children(recursive=True)),
            "shared memory": [map.path for one in both for map in one.memory_maps() if SHARED.match(map.path)],
        }, sum(one.memory_info().rss for one in both)

    launch_many(12)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, nbytes = held()
    launch_many(2000 if NIGHTLY else 40)
    after, nbytes_after = held()
    assert after == before
    assert list(tmp_path.iterdir()) == []
    assert len(pids) > 100 and not [
        name for name in os.listdir("/dev/shm") if pids & set(map(int, DIGITS.findall(name)))
    ]
    # All that forty launches carry would be 60 MB.
    assert nbytes_after - nbytes < 30e6


SHARED, DIGITS = re.compile(r"/dev/shm/|/memfd:"), re.compile(r"\d+")


REFUSED = [
    ({"ranks": 0}, "ranks is 0"),
    ({"ranks": 2.0}, "ranks is 2.0"),
    ({"ranks": 100_000}, "ranks is 100000"),
    ({"world": "threads"}, "world is 'threads'"),
    ({"collectives": "nccl"}, "collectives is 'nccl'"),
    ({"collectives": "torch", "world": "lockstep"}, 'collectives="torch"'),
    ({"timeout": -1}, "timeout is -1"),
    ({"timeout": float("nan")}, "timeout is nan"),
    ({"timeout": "long"}, "timeout is 'long'"),
    ({"device": "tpu"}, "device is 'tpu'"),
    ({"prints": "loud"}, "prints is 'loud'"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_bad_argument_is_named_before_any_rank_starts(arguments, message, monkeypatch):
    monkeypatch.setattr(
        "zerolab.ranks.processes.ProcessGroupRunner.start", lambda crew: pytest.fail("ranks were started")
    )
    with pytest.raises(InputError, match=message):
        launch(functions.total_of_ranks, **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="torch sees no GPU"):
        launch(functions.who_and_how_many, device="cuda")


@pytest.mark.parametrize("world", ["processes", "lockstep"])
def test_what_cannot_travel_is_refused_before_any_rank_starts(world):
    numbers = (number for number in range(3))
    with pytest.raises(InputError, match=r"argument 1 cannot travel to the ranks .*generator.*make it inside"):
        launch(functions.total_of_ranks, numbers, world=world)
    with pytest.raises(InputError, match=r"'numbers', which the rank function uses, cannot travel"):
        launch(lambda comm: numbers, world=world)


def test_a_link_slows_processes_down():
    slow = Link(gbit_per_s=1000.0, latency_us=20_000.0)
    # Two steps of an all-reduce on two ranks, 20 ms each: a bound that no machine undercuts.
    assert launch(functions.total_of_ranks, ranks=2, link=slow, timeout=30).seconds >= 0.04


def test_the_launch_folder_is_private(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    modes = launch(_mode_of_the_launch_folder, str(tmp_path), ranks=1, timeout=30)
    assert modes == [0o700]


def _mode_of_the_launch_folder(comm, folder):
    return next(Path(folder).glob("zerolab-*")).stat().st_mode & 0o777


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is asked")
def test_memory_that_a_rank_frees_is_there_for_its_next_tensor():
    """Seen by page faults: whoever gets memory from the system anew has one for every 4096 bytes. Tensors of 40 MB, for
    which glibc asks the system each time unless it is told otherwise."""

    def faults(comm):
        def counted(numel):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            torch.ones(numel)
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        # The first ones fill the gaps between live blocks until there are gaps that are large enough.
        return sum([counted(10_000_000) for _ in range(20)][-8:])

    kept = launch(faults, ranks=2, timeout=30)
    assert max(kept) < 8 * 40_000_000 // 4096 / 2
