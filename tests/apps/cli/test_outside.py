"""When something goes wrong outside, a command says one sentence, keeps what it has, and leaves nothing behind.

`make soak` does at hundreds of random moments what the first test does at a few chosen ones.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import born
import pace
import pytest
import rank_functions as functions

from zerolab.apps import cli
from zerolab.apps.cli import ending
from zerolab.apps.cli.flags import name_flags
from zerolab.course.grade import referee
from zerolab.course.grade.submission import read_submission
from zerolab.course.judge.case import Trouble
from zerolab.errors import DiskError, InputError, RankError
from zerolab.files import write_whole
from zerolab.ranks import folders, forkserver
from zerolab.run import RunSpec
from zerolab.train import Report, outputs, train
from zerolab.train.progress import Steps

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tools"))
import soak  # noqa: E402

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are found by their environment in /proc")

MOMENTS = [
    soak.Moment("train", "Ctrl-C"),
    soak.Moment("train", "Ctrl-C twice", once="server"),
    soak.Moment("train", "Ctrl-C", once="ranks"),
    soak.Moment("train on disk", "SIGKILL", seconds=0.1, once="ranks"),
    soak.Moment("train", "ranks stopped, SIGKILL", once="ranks"),
    soak.Moment("grade", "Ctrl-C", seconds=0.1, once="ranks"),
    soak.Moment("grade", "SIGKILL", seconds=0.1, once="ranks"),
    soak.Moment("train", "open files", amount=16),
    soak.Moment("train", "size of files", amount=512),
    soak.Moment("grade", "open files", amount=20),
]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name: a socket's path has a hundred characters at most."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        yield Path(folder)


@LINUX
@pytest.mark.ranks
@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_at_any_moment_nothing_is_left_and_no_traceback_is_printed(moment: soak.Moment, short: Path) -> None:
    """A moment when there are ranks comes after all imports: by day the command is a fork there."""
    remains = soak.run(moment, short, born.python if moment.once == "ranks" else None)
    assert remains.faults == [], remains.said


@LINUX
@pytest.mark.ranks
@pytest.mark.timeout(300)
def test_a_grading_that_ends_well_leaves_nothing(short: Path) -> None:
    remains = soak.run(soak.Moment("grade", "nothing"), short, born.python)
    assert remains.status == 0 and remains.faults == [], remains.said


@LINUX
def test_what_a_command_has_left_is_found_by_its_folder_too(short: Path) -> None:
    with born.python("-c", "import time; time.sleep(60)", cwd=short, env={"PATH": ""}, server="own") as process:
        deadline = time.monotonic() + pace.seconds(20)
        while not (found := list(soak.marked("a mark", short))) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    assert [one.pid for one in found] == [process.pid]


def test_a_report_counts_as_left_behind_unless_it_was_asked_for_and_is_whole(tmp_path: Path) -> None:
    whole, half, other = tmp_path / "profile.json", tmp_path / "grade.json", tmp_path / "other.json"
    whole.write_text('{"losses": [1.0]}')
    half.write_text('{"losses": [1.')
    other.write_text("{}")
    assert [soak._is_asked_for(path) for path in (whole, half, other, tmp_path)] == [True, False, False, False]


@LINUX
@pytest.mark.ranks
@pytest.mark.timeout(60)
def test_limits_that_the_grader_was_given_cost_no_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = forkserver.start_process(functions.limits_itself_in_limits, (str(tmp_path / "seen"),), "limited")
    process.join()
    assert (tmp_path / "seen").read_text() == "1000000"


def test_a_process_that_ends_before_any_answer_runs_costs_no_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(referee, "observe_apart", lambda job, seconds: Trouble("died", "the process ended"))
    submission = read_submission(ROOT / "solutions" / "02_flat_buffers.ipynb")
    with pytest.raises(RankError, match=r"the model answer to lay_out fails here, too \(the process ended\)"):
        referee.grade(submission, 0)


# Temporary folders


def test_a_folder_ends_with_a_process_that_ends_well(tmp_path: Path) -> None:
    code = """
from zerolab.ranks import folders
with folders.temporary_folder("launch") as path:
    print(path, flush=True)
    raise SystemExit
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = born.ran("-c", code, env=environment, capture_output=True, text=True, timeout=60, server="own")
    assert Path(ran.stdout.strip()).parent == tmp_path and not list(tmp_path.glob("zerolab-*"))


def test_a_temporary_folder_without_room_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(DiskError, match=r"No space left on device.*TMPDIR"), folders.temporary_folder("launch"):
        pass


def test_a_full_disk_stops_the_bar_and_not_the_run() -> None:
    steps = Steps("/dev/full" if os.path.exists("/dev/full") else None)
    for _ in range(10):
        steps.done(1.0)
    steps.close()


# Outputs


@pytest.fixture(scope="module")
def report() -> Report:
    return train(RunSpec(ranks=1, model_size="nano", seq_len=32, max_steps=1, world="lockstep"))


def full_disk(monkeypatch: pytest.MonkeyPatch, where: Path) -> None:
    """Files in a folder can be made, and not be written."""
    replace = Path.replace

    def refuses(path: Path, target: Path) -> Path:
        if path.parent == where:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", refuses)


@pytest.mark.parametrize("command", [["train"], ["grade", str(ROOT / "exercises" / "02_flat_buffers.ipynb")]])
@pytest.mark.parametrize(("place", "why"), [("no/file", "no folder"), (".", "a folder"), ("/proc/1/x", "cannot be")])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    command: list[str], place: str, why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for work in ("zerolab.train.run.train", "zerolab.course.grade.run.grade"):
        monkeypatch.setattr(work, lambda *args: pytest.fail("it has begun"))
    flag = "--profile-json" if command == ["train"] else "--json"
    assert cli.main([*command, flag, place]) == 2
    said = capsys.readouterr().err
    assert why in said and flag in said and said.count("\n") == 1


def test_a_disk_without_room_for_an_output_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"--json.*No space left on device"):
        outputs.check_output("--json", tmp_path / "grade.json", 100)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_can_be_written_is_neither_made_nor_changed_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("as it was")
    for name in ("old", "new"):
        outputs.check_output("--json", tmp_path / name, 100)
    assert [path.name for path in tmp_path.iterdir()] == ["old"] and (tmp_path / "old").read_text() == "as it was"


def test_a_device_is_written_to_and_a_link_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "device").symlink_to(os.devnull)
    for name in ("link", "device"):
        outputs.check_output("--json", tmp_path / name, 100)
        write_whole(tmp_path / name, "text")
        assert (tmp_path / name).is_symlink()
    assert (tmp_path / "target").read_text() == "text" and not Path(os.devnull).is_file()


def test_what_a_full_disk_refuses_at_the_end_is_named_and_the_report_is_shown(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zerolab.train.run.train", lambda config, *_, **__: report_with(report, config))
    full_disk(monkeypatch, tmp_path)
    assert cli.main(["train", "--profile-json", str(tmp_path / "p.json")]) == 1
    shown, said = capsys.readouterr()
    assert report.parameters_sha256 in shown
    assert "the profile could not be written" in said and "No space left on device" in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def report_with(report: Report, config: object) -> Report:
    return Report(**{**vars(report), "config": config})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("stream", ["full", "closed"])
def test_a_profile_is_written_if_standard_output_does_not_take_the_report(
    stream: str, report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zerolab.train.run.train", lambda config, *_, **__: report_with(report, config))
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full if stream == "full" else None)
        assert cli.main(["train", "--profile-json", "p.json"]) == 1
    said = capsys.readouterr().err
    assert report.parameters_sha256 in (tmp_path / "p.json").read_text()
    assert "the report could not be shown" in said and "--profile-json" in said and said.count("\n") == 1


def test_the_grades_of_a_class_are_kept_when_one_notebook_cannot_be_graded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def grade(submission: object, *rest: object) -> list[object]:
        if begun.append(1) or len(begun) > 1:
            raise DiskError("there is no place for temporary files")
        return []

    begun: list[int] = []
    monkeypatch.setattr("zerolab.course.grade.run.grade", grade)
    notebooks = [str(ROOT / "exercises" / name) for name in ("00_start_here.ipynb", "02_flat_buffers.ipynb")]
    assert cli.main(["grade", *notebooks, "--json", str(tmp_path / "grade.json")]) == 2
    shown, said = capsys.readouterr()
    assert "02_flat_buffers.ipynb could not be graded: there is no place" in said and "00_start_here" in shown
    assert "could not be graded" in (tmp_path / "grade.json").read_text()


# Words


def test_an_error_that_is_not_ours_is_a_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, says in (
        (OSError(errno.EMFILE, "Too many open files", "/x"), "Too many open files, for /x"),
        (RuntimeError("can't start new thread"), "RuntimeError: can't start new thread"),
        (KeyError("odd"), "KeyError: 'odd'"),
    ):
        monkeypatch.setattr("zerolab.train.run.train", lambda *_, error=error: (_ for _ in ()).throw(error))
        assert cli.main(["train"]) == 1
        said = capsys.readouterr().err
        assert says in said and said.count("\n") == 1
    monkeypatch.setenv("ZEROLAB_TRACEBACK", "1")
    with pytest.raises(KeyError):
        cli.main(["train"])


def test_an_error_of_others_is_cut_where_it_is_long() -> None:
    said = ending.in_one_sentence(ValueError("no room\n" * 1000))
    assert said.startswith("ValueError: no room no room") and "... (for where, set" in said and len(said) < 500


@LINUX
def test_a_signal_that_is_to_be_ignored_stays_ignored() -> None:
    numbers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in numbers.items()}
    try:
        ending.take_signals()
        taken = [signal.getsignal(number) for number in numbers]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert taken == [ending._end, ending._end, signal.SIG_IGN]


def test_settings_are_named_as_their_flags_are() -> None:
    names = ["zero_stage", "seq_len", "ranks", "offload_param"]
    for message, named in {
        "zero_stage is 9; with zero_stage 3": "--zero-stage is 9; with --zero-stage 3",
        "use a smaller seq_len.": "use a smaller --seq-len.",
        "ranks is 0; all ranks": "--ranks is 0; all ranks",
        "offload_param.device is 'x', in 'zero_stage'": "offload_param.device is 'x', in 'zero_stage'",
    }.items():
        assert name_flags(message, names) == named


def test_help_names_the_words_to_choose_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    shown = capsys.readouterr().out
    assert "--params-dtype fp32|bf16|fp16" in shown and "Literal" not in shown and "typing" not in shown


def test_without_solutions_a_grading_says_what_a_source_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path / "alone" / "02_flat_buffers.ipynb"
    alone.parent.mkdir()
    alone.write_text((ROOT / "exercises" / alone.name).read_text())
    monkeypatch.setattr("zerolab.course.grade.submission.__file__", str(tmp_path / "a" / "b" / "c.py"))
    assert cli.main(["grade", str(alone)]) == 2
    said = capsys.readouterr().err
    assert "--source FILE, where FILE is solutions/02_flat_buffers.ipynb" in said and said.count("\n") == 1


def test_a_signal_that_comes_while_python_goes_finds_all_done() -> None:
    code = """
import os
from zerolab.apps.cli import ending
ending.take_signals()
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        for number in (15, 2):
            kill(pid, number)
late = Late()
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0
