"""Swap files: their space, their names, what they refuse, and what is left of them."""

import errno
import logging
import mmap
import os
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import born
import pytest
import torch

from zerolab.collectives import Collectives
from zerolab.errors import InputError, OffloadError, StateError
from zerolab.offload import files
from zerolab.offload.buffers import aligned
from zerolab.offload.files import SwapFile, left_overs
from zerolab.ranks import launch

pytestmark = pytest.mark.timeout(60)

PAGE = 4096


def python(program: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program that may open swap files in a process of its own."""
    start = "import os, resource, signal, sys, time\nfrom zerolab.offload.files import SwapFile, left_overs\n"
    words = ["-c", start + textwrap.dedent(program), *arguments]
    return born.ran(*words, capture_output=True, text=True, timeout=50, server="own", **options)


def random_bytes(nbytes: int, seed: int = 0) -> torch.Tensor:
    buffer = aligned(nbytes)
    buffer.random_(0, 256, generator=torch.Generator().manual_seed(seed))
    return buffer


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, timeout=20
    )
    if mounting.returncode:
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", folder], check=True, timeout=20)


# Records


def test_records_start_at_pages_and_take_whole_ones(tmp_path: Path) -> None:
    with SwapFile(tmp_path, "a", [1, 4096, 4097, 10_000]) as file:
        assert [file.offset(i) for i in range(4)] == [0, 4096, 8192, 16384]
        assert [file.span(i) for i in range(4)] == [4096, 4096, 8192, 12288]
        assert file.nbytes == 28672 == file.path.stat().st_size


@pytest.mark.parametrize("folder", ["disk", "memory"])
def test_what_was_written_is_read_and_neighbours_are_left_alone(folder: str, tmp_path: Path) -> None:
    where = tmp_path if folder == "disk" else Path("/dev/shm")
    sizes = [1, 4096, 4097, 10_000, 3_000_001]
    with SwapFile(where, "a", sizes) as file:
        written = [random_bytes(size, seed) for seed, size in enumerate(sizes)]
        for i in (4, 0, 3, 1, 2):
            file.write(i, written[i])
        for i, size in enumerate(sizes):
            buffer = aligned(size).fill_(7)
            file.read(i, buffer)
            assert torch.equal(buffer[:size], written[i][:size])


def test_a_record_that_was_never_written_reads_as_zeros(tmp_path: Path) -> None:
    with SwapFile(tmp_path, "a", [5000, 5000]) as file:
        for i in (0, 1):
            buffer = aligned(5000).fill_(7)
            file.read(i, buffer)
            assert not buffer.any()


def test_a_part_of_a_record_is_moved_and_the_rest_left_alone(tmp_path: Path) -> None:
    with SwapFile(tmp_path, "a", [4 * PAGE]) as file:
        file.write(0, aligned(4 * PAGE).fill_(1))
        file.write(0, aligned(4 * PAGE).fill_(2), PAGE, 3 * PAGE)
        buffer = aligned(4 * PAGE)
        file.read(0, buffer, 0, 2 * PAGE)
        assert buffer[::PAGE].tolist() == [1, 2, 0, 0]
        with pytest.raises(InputError, match="not whole pages"):
            file.read(0, buffer, 5, PAGE)
        with pytest.raises(InputError, match="not whole pages"):
            file.read(0, buffer, 0, 5 * PAGE)


def test_a_record_larger_than_the_buffer_is_refused_not_cut(tmp_path: Path) -> None:
    with SwapFile(tmp_path, "a", [PAGE + 1]) as file:
        for move in (file.read, file.write):
            with pytest.raises(InputError, match="takes 8192 bytes with its padding and the buffer has 4096"):
                move(0, aligned(PAGE))


def test_memory_that_does_not_start_at_a_page_is_refused(tmp_path: Path) -> None:
    with SwapFile(tmp_path, "a", [PAGE]) as file:
        for buffer in (aligned(3 * PAGE)[64:], aligned(4 * PAGE)[::2]):
            with pytest.raises(InputError, match=r"not one run of host memory that starts at a multiple of 4096"):
                file.read(0, buffer)


def test_a_record_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with SwapFile(tmp_path, "a", [PAGE, PAGE]) as file:
        for i in (-1, 2):
            with pytest.raises(InputError, match=f"has no record {i}; its records are 0 to 1"):
                file.read(i, aligned(PAGE))


@pytest.mark.parametrize("sizes", [[], [0], [PAGE, -1], [1.5]])
def test_sizes_that_are_none_are_refused(sizes: list[int], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give a whole number of at least 1"):
        SwapFile(tmp_path, "a", sizes)
    assert not list(tmp_path.iterdir())


# The page cache


def resident(path: Path) -> int:
    """Pages of a file that are in memory."""
    listed = subprocess.run(["fincore", "-nbo", "PAGES", path], capture_output=True, text=True, timeout=20)
    return int(listed.stdout)


@pytest.mark.skipif(not shutil.which("fincore"), reason="needs fincore, of util-linux")
@pytest.mark.parametrize("direct", [True, False])
def test_transfers_leave_nothing_in_the_page_cache(
    direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SwapFile(tmp_path, "a", [PAGE]) as file:
        if not file.direct:
            pytest.skip(f"{tmp_path}: {file.why_not}")
    if not direct:
        monkeypatch.setattr(files, "_go_direct", lambda fd: "the test said so")
    with SwapFile(tmp_path, "a", [100 * PAGE]) as file:
        assert file.direct == direct
        buffer = random_bytes(100 * PAGE)
        file.write(0, buffer)
        assert resident(file.path) == 0
        file.read(0, aligned(100 * PAGE))
        assert resident(file.path) == 0


def test_a_folder_in_memory_is_not_called_direct() -> None:
    with SwapFile("/dev/shm", "a", [PAGE]) as file:
        assert not file.direct
        assert "keeps in memory" in file.why_not or "failed" in file.why_not


def test_a_refused_flag_leads_to_ordinary_transfers_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.fcntl.fcntl

    def refusing(fd: int, command: int, argument: int = 0) -> int:
        if command == files.fcntl.F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, command, argument)

    monkeypatch.setattr(files.fcntl, "fcntl", refusing)
    with SwapFile(tmp_path, "a", [5000]) as file:
        assert not file.direct and file.why_not == "direct I/O failed with Invalid argument"
        written = random_bytes(5000)
        file.write(0, written)
        buffer = aligned(5000)
        file.read(0, buffer)
        assert torch.equal(buffer, written)


# Short transfers and errors


@pytest.mark.parametrize("direct", [True, False])
def test_transfers_that_stop_early_are_continued(direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not direct:
        monkeypatch.setattr(files, "_go_direct", lambda fd: "the test said so")
    calls = []

    def short(real: Any) -> Any:
        def call(fd: int, buffers: list[Any], at: int) -> int:
            """Half the bytes and, where nothing asks for whole pages, an odd number of them."""
            calls.append(at)
            memory = memoryview(buffers[0]).cast("B")
            nbytes = max(PAGE, len(memory) // 2 // PAGE * PAGE) if file.direct else max(1, len(memory) // 2)
            return real(fd, [memory[:nbytes]], at)

        return call

    with SwapFile(tmp_path, "a", [100_001]) as file:
        for name in ("preadv", "pwritev"):
            monkeypatch.setattr(os, name, short(getattr(os, name)))
        written, buffer = random_bytes(100_001), aligned(100_001)
        file.write(0, written)
        file.read(0, buffer)
    assert torch.equal(buffer, written) and len(calls) > 6


def test_a_disk_that_is_full_in_the_middle_of_a_write_is_named_with_file_and_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SwapFile(tmp_path, "a", [PAGE, 10 * PAGE]) as file:
        real = os.pwritev

        def filling(fd: int, buffers: list[Any], at: int) -> int:
            if at >= 5 * PAGE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, [memoryview(buffers[0]).cast("B")[: 4 * PAGE]], at)

        monkeypatch.setattr(os, "pwritev", filling)
        with pytest.raises(OffloadError, match=rf"record 1 of {file.path} could not be written: the disk is full;"):
            file.write(1, aligned(10 * PAGE))
        monkeypatch.undo()
        file.write(1, aligned(10 * PAGE))


def test_a_disk_that_fails_to_read_is_named_with_file_and_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with SwapFile(tmp_path, "a", [PAGE]) as file:
        monkeypatch.setattr(os, "preadv", broken)
        with pytest.raises(OffloadError, match=rf"record 0 of {file.path} could not be read: Input/output error;"):
            file.read(0, aligned(PAGE))


def test_a_file_that_somebody_cut_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    with SwapFile(tmp_path, "a", [4 * PAGE]) as file:
        os.truncate(file.path, PAGE)
        with pytest.raises(OffloadError, match=r"record 0 of .* the file ends 12288 bytes too early"):
            file.read(0, aligned(4 * PAGE))


# What opening refuses


def test_a_folder_that_is_missing_or_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist; create it"):
        SwapFile(tmp_path / "none", "a", [1])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder; name another folder"):
        SwapFile(tmp_path / "file", "a", [1])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError, match="is not writable; name another folder"):
            SwapFile(tmp_path, "a", [1])
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("seen_by", ["access", "open"])
def test_a_file_system_that_is_read_only_is_refused(
    seen_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated, because root may write anywhere."""

    def read_only(*_: Any) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    if seen_by == "access":
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        monkeypatch.setattr(os, "open", read_only)
    with pytest.raises((InputError, OSError), match=r"is not writable; name|Read-only file system"):
        SwapFile(tmp_path, "a", [1])


def test_too_little_free_space_is_refused_before_anything_is_written(small_disk: Path) -> None:
    with pytest.raises(InputError, match=r"a swap file of 2097152 bytes does not fit into .* where \d+ bytes are free"):
        SwapFile(small_disk, "a", [2**21])
    assert not list(small_disk.iterdir())


def test_a_disk_that_fills_while_the_space_is_reserved_leaves_no_half_made_file(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when several ranks see the same free bytes."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2**40, 0, 2**40))
    with pytest.raises(OffloadError, match=r"the 2097152 bytes of .* could not be reserved: the disk is full;"):
        SwapFile(small_disk, "a", [2**21])
    assert not list(small_disk.iterdir())


def test_a_limit_on_the_size_of_files_leaves_no_half_made_file(tmp_path: Path) -> None:
    program = """
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        SwapFile(sys.argv[1], "a", [2**21])
    """
    ended = python(program, tmp_path)
    assert "OffloadError: the 2097152 bytes of" in ended.stderr and "File too large" in ended.stderr
    assert not list(tmp_path.iterdir())


# Whose a file is, and what is left


def test_two_runs_on_one_path_have_files_of_their_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SwapFile(tmp_path, "rank0", [PAGE]) as one, SwapFile(tmp_path, "rank0", [PAGE]) as other:
        assert one.path != other.path
        ended = python(
            "file = SwapFile(sys.argv[1], 'rank0', [4096]); print(file.path); print(left_overs(sys.argv[1]))", tmp_path
        )
        path, others = ended.stdout.split()
        assert Path(path) not in (one.path, other.path) and others == "[]" and not ended.stderr
        one.write(0, aligned(PAGE).fill_(1))
        other.write(0, aligned(PAGE).fill_(2))
        buffer = aligned(PAGE)
        one.read(0, buffer)
        assert buffer.unique().tolist() == [1]
    assert not caplog.records


def test_a_name_that_is_taken_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "same")
    with SwapFile(tmp_path, "a", [PAGE]) as file:
        with pytest.raises(FileExistsError):
            SwapFile(tmp_path, "a", [PAGE])
        assert file.path.exists()


def test_a_killed_runs_file_is_found_and_named_once_and_not_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = """
        file = SwapFile(sys.argv[1], "rank3", [4096])
        print(file.path, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = Path(python(program, tmp_path).stdout.strip())
    (tmp_path / "zerolab-half-made-1-2.swap").touch()
    assert left_overs(tmp_path) == [killed]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with SwapFile(tmp_path, "rank3", [PAGE]):
                assert left_overs(tmp_path) == [killed]
    (record,) = caplog.records
    assert f"to remove them: rm '{killed}'" in record.getMessage() and killed.exists()


def test_a_file_is_gone_after_close_and_close_may_be_called_again(tmp_path: Path) -> None:
    file = SwapFile(tmp_path, "a", [PAGE])
    assert [file.path] == list(tmp_path.iterdir())
    file.close()
    file.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(StateError, match="is closed"):
        file.read(0, aligned(PAGE))


def test_a_file_that_nobody_holds_is_gone(tmp_path: Path) -> None:
    SwapFile(tmp_path, "a", [PAGE])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("end", ["pass", "raise ValueError", "sys.exit(3)"])
def test_a_file_is_gone_when_the_process_ends(end: str, tmp_path: Path) -> None:
    ended = python(f"file = SwapFile(sys.argv[1], 'a', [4096]); assert file.path.exists()\n{end}", tmp_path)
    assert "Assertion" not in ended.stderr and (ended.returncode == 0) == (end == "pass")
    assert not list(tmp_path.iterdir())


@pytest.mark.ranks
def test_a_file_is_gone_when_a_rank_ends(tmp_path: Path) -> None:
    """Ranks do not run what `atexit` holds."""

    def hold(comm: Collectives, folder: str) -> bool:
        import builtins

        builtins.kept = SwapFile(folder, f"rank{comm.rank}", [PAGE])  # type: ignore[attr-defined]
        return True

    assert launch(hold, str(tmp_path), ranks=2, device="cpu", timeout=40) == [True, True]
    assert not list(tmp_path.iterdir())


def test_a_forked_child_that_ends_leaves_its_parents_file(tmp_path: Path) -> None:
    program = """
        file = SwapFile(sys.argv[1], "a", [4096])
        child = os.fork()
        if child == 0:
            file = None
            sys.exit(0)
        os.waitpid(child, 0)
        print(file.path.exists())
    """
    assert python(program, tmp_path).stdout == "True\n"
    assert not list(tmp_path.iterdir())


def test_opening_and_closing_leaks_no_descriptor(tmp_path: Path) -> None:
    SwapFile(tmp_path, "a", [PAGE]).close()
    before = os.listdir("/proc/self/fd")
    for at in range(200):
        file = SwapFile(tmp_path, "a", [PAGE])
        if at % 2:
            file.close()
        del file
        with pytest.raises(InputError):
            SwapFile(tmp_path / "none", "a", [PAGE])
    assert len(os.listdir("/proc/self/fd")) == len(before)


# Memory


@pytest.mark.parametrize("nbytes", [1, PAGE, PAGE + 1, 3_000_000])
def test_a_buffer_starts_at_a_page_and_has_whole_ones(nbytes: int) -> None:
    buffer = aligned(nbytes)
    assert buffer.data_ptr() % PAGE == 0 and buffer.dtype == torch.uint8 and not buffer.any()
    assert nbytes <= buffer.nbytes < nbytes + PAGE and buffer.nbytes % PAGE == 0


def test_a_buffers_memory_lives_as_long_as_a_view_of_it_and_no_longer() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    aligned(64 * 2**20)
    before = resident_bytes()
    view = aligned(64 * 2**20).fill_(3)[-PAGE:].view(torch.float32)
    assert resident_bytes() - before > 60e6
    assert view.view(torch.uint8).unique().tolist() == [3]
    del view
    assert resident_bytes() - before < 8e6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_buffer_beside_a_gpu_is_locked_and_starts_at_a_page() -> None:
    for nbytes in (1, 5000, 2**22 + 1):
        buffer = aligned(nbytes, pin=True)
        assert buffer.is_pinned() and buffer.data_ptr() % PAGE == 0 and buffer.nbytes % PAGE == 0
