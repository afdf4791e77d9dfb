"""Attacks on the judging of checks and repairs, each with what it honestly deserves.

Each runs at the highest level that the system gives (L3 on Linux where ordinary users may have
namespaces, L4 in a container), unless its name says otherwise.
"""

from __future__ import annotations

import os
import socket
import textwrap
from pathlib import Path

import pytest

import exercises
from exercises.contracts._private import contract_of
from exercises.isolation import judge, linux
from exercises.isolation.judge import (
    CheckJudgement,
    FixJudgement,
    Judging,
    judge_check,
    judge_fix,
)
from exercises.isolation.limits import MIB, Level, Limits
from exercises.isolation.sandbox import Sandbox

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="jobs are forked")

HONEST = """
import torch
def check(implementation):
    data = torch.arange(300) * 3
    for _ in range(3):
        inputs, targets = implementation(data)
        assert torch.equal(targets, inputs + 3)
"""
RIGHT_FIX = """
import torch
def implementation(data):
    places = torch.randint(len(data) - 16, (8, 1)) + torch.arange(16)
    return data[places], data[places + 1]
"""
QUICK = Limits(cpu_seconds=2, wall_seconds=4.0, memory_bytes=400 * MIB, file_bytes=4 * MIB)


def judging(sandbox: Sandbox, **changes: object) -> Judging:
    given = {"secret": b"kept", "submission": "ada", "seeds": 1, "limits": QUICK}
    return Judging(sandbox=sandbox, **(given | changes))  # type: ignore[arg-type]


def judged(sandbox: Sandbox, folder: Path, code: str, **changes: object) -> CheckJudgement:
    """Judge a check of the shift on the three right and the three public wrong loaders."""
    file = folder / "check_shift.py"
    file.write_text(textwrap.dedent(code), encoding="utf-8")
    with_limits = judging(sandbox, **changes)
    return judge_check(with_limits, contract_of("shift"), file, held_out=False)


def fixed(sandbox: Sandbox, folder: Path, code: str, **changes: object) -> FixJudgement:
    file = folder / "fix_shift.py"
    file.write_text(textwrap.dedent(code), encoding="utf-8")
    return judge_fix(judging(sandbox, **changes), contract_of("shift"), file)


def outcomes(judgement: CheckJudgement) -> set[str]:
    return {verdict.outcome for verdict in judgement.verdicts}


def test_an_honest_check_is_valid_and_catches_all(sandbox: Sandbox, tmp_path: Path) -> None:
    judgement = judged(sandbox, tmp_path, HONEST)
    assert judgement.wheats == (3, 3)
    assert judgement.chaffs == (3, 3)
    assert judgement.share == 1.0
    assert judgement.lines == {7}  # the assertion


def test_the_textbook_check_misses_the_wrapped_target(sandbox: Sandbox, tmp_path: Path) -> None:
    judgement = judged(
        sandbox,
        tmp_path,
        """
        import torch
        def check(implementation):
            inputs, targets = implementation(torch.arange(300))
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
        """,
    )
    assert judgement.valid
    assert judgement.chaffs == (2, 3)
    assert judgement.share == pytest.approx(2 / 3)


CALL = "import torch, os, sys\ndef check(implementation):\n    implementation(torch.arange(300))\n"
FORGE = (
    "    import socket\n"
    "    from exercises.isolation.channel import Channel\n"
    "    Channel(socket.socket(fileno=3)).send(('accepted', '', '', None))\n"
)

# name -> the check, and the outcomes that may be seen; the share is 0 for all of them
WORTHLESS = {
    "accepts everything": (CALL, {"accepted"}),
    "rejects everything": (CALL + "    raise AssertionError\n", {"rejected"}),
    "never calls, and accepts": ("def check(implementation): pass", {"not_called"}),
    "never calls, and rejects": ("def check(implementation): assert False", {"not_called"}),
    "returns False instead of raising": (CALL + "    return False\n", {"accepted"}),
    "exit code 0 without a word": (CALL + "    os._exit(0)\n", {"error"}),
    "sys.exit(0)": (CALL + "    sys.exit(0)\n", {"error"}),
    "raises KeyboardInterrupt": (CALL + "    raise KeyboardInterrupt\n", {"error"}),
    "skips as a test framework does": (
        CALL + "    class Skipped(BaseException): pass\n    raise Skipped('not today')\n",
        {"error"},
    ),
    "forges a verdict on the channel, after a call": (CALL + FORGE, {"accepted"}),
    "forges a verdict without a call": (
        "def check(implementation):\n" + FORGE + "    import os; os._exit(0)\n",
        {"not_called"},
    ),
    "a pickle on the channel": (
        CALL + "    import pickle; os.write(3, pickle.dumps(os.system) * 99); os._exit(0)\n",
        {"error"},
    ),
    "nonsense on the channel": (CALL + "    os.write(3, bytes(999)); os._exit(0)\n", {"error"}),
    "a message of 2**60 bytes": (
        CALL + "    os.write(3, b'\\x10' + bytes(15)); os._exit(0)\n",
        {"error"},
    ),
    "verdicts on standard output": (
        CALL + "    print('accepted\\n{\"score\": 1}', flush=True); os._exit(0)\n",
        {"error"},
    ),
    "a loop": (CALL + "    while True: pass\n", {"timeout"}),
    "a loop that ignores signals": (
        CALL + "    import signal\n"
        "    for n in range(1, 32):\n"
        "        try: signal.signal(n, signal.SIG_IGN)\n"
        "        except OSError: pass\n"
        "    while True: pass\n",
        {"timeout", "error"},
    ),
    "a sleep": (CALL + "    import time; time.sleep(1e6)\n", {"timeout"}),
    "stops itself": (CALL + "    import signal; os.kill(os.getpid(), signal.SIGSTOP)\n"
                     "    import time; time.sleep(1e6)\n", {"timeout"}),
    "calls for ever": (CALL + "    while True: implementation(torch.arange(40))\n", {"timeout"}),
    "a memory bomb": (CALL + "    held = [bytearray(2**26) for _ in range(999)]\n", {"rejected"}),
    "endless output": (CALL + "    while True: print('x' * 9999)\n", {"rejected"}),
    "a file too large": (
        CALL + "    f = open('big', 'wb')\n    for _ in range(99): f.write(bytes(2**20))\n",
        {"rejected"},
    ),
    "too many descriptors": (
        CALL + "    held = [os.open('/dev/null', 0) for _ in range(999)]\n",
        {"rejected"},
    ),
    "endless recursion": (CALL + "    return check(implementation)\n", {"rejected", "timeout"}),
    "a call with 10**9 numbers": (
        CALL + "    implementation(torch.zeros(1).expand(10**9))\n",
        {"rejected", "error"},
    ),
    "an argument that is no plain data": (CALL + "    implementation(object())\n", {"rejected"}),
    "a dump of the core": (CALL + "    os.abort()\n", {"error"}),
}  # fmt: skip


@pytest.mark.parametrize("attack", WORTHLESS)
def test_what_does_not_tell_right_from_wrong_scores_0(
    attack: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    code, expected = WORTHLESS[attack]
    judgement = judged(sandbox, tmp_path, code)
    assert judgement.share == 0.0
    assert outcomes(judgement) <= expected, judgement.verdicts
    assert len(judgement.output) <= 2000


UNUSABLE = {
    "no Python": "this is no Python",
    "no function": "x = 1",
    "no bytes of text": "\0\0",
    "ends while it is loaded": "raise SystemExit(0)",
    "is a list": "check = [1, 2]",
    "a bracket a thousand times": "x = " + "(" * 5000,
}


@pytest.mark.parametrize("attack", UNUSABLE)
def test_a_file_that_cannot_be_used_is_said_so(
    attack: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    judgement = judged(sandbox, tmp_path, UNUSABLE[attack])
    assert judgement.share == 0.0
    assert judgement.problem
    assert judgement.verdicts == ()


def test_what_a_check_raised_before_it_called_is_said(sandbox: Sandbox, tmp_path: Path) -> None:
    """A slip in the line of the call: without the error nobody would find it."""
    code = "def check(implementation):\n    return implementation(DATA)\n"
    said = "it never called the implementation before it raised NameError: "
    verdicts = judged(sandbox, tmp_path, code).verdicts
    assert {(verdict.outcome, verdict.line) for verdict in verdicts} == {("not_called", 2)}
    assert {verdict.message for verdict in verdicts} == {f"{said}name 'DATA' is not defined"}


def test_a_timeout_on_a_wrong_one_is_no_catch(sandbox: Sandbox, tmp_path: Path) -> None:
    """It accepts every right loader, and waits where it should reject."""
    judgement = judged(
        sandbox,
        tmp_path,
        """
        import time
        import torch
        def check(implementation):
            inputs, targets = implementation(torch.arange(300))
            if not torch.equal(targets, inputs + 1):
                time.sleep(1000)
        """,
        limits=Limits(wall_seconds=6.0),
    )
    assert judgement.wheats == (3, 3)
    assert judgement.chaffs == (0, 3)
    assert judgement.share == 0.0


def test_a_verdict_by_chance_is_unstable(sandbox: Sandbox, tmp_path: Path) -> None:
    code = CALL + "    import random\n    assert random.SystemRandom().random() < 0.5\n"
    judgement = judged(sandbox, tmp_path, code, seeds=8)
    assert judgement.share == 0.0
    assert "unstable" in outcomes(judgement)


def test_the_same_file_gets_the_same_verdicts(sandbox: Sandbox, tmp_path: Path) -> None:
    """A check that draws lots with a seeded generator draws the same ones again."""
    code = CALL + "    import random\n    assert random.random() < 0.5\n"
    first, second = (judged(sandbox, tmp_path, code).verdicts for _ in range(2))
    assert first == second


def test_runs_cannot_count_or_speak_to_one_another(sandbox: Sandbox, tmp_path: Path) -> None:
    """A check that wants to accept its first three runs finds no trace of another run."""
    if sandbox.level < Level.L3:
        pytest.skip("below L3 a job can write to the disk of its user")
    mark = tmp_path / "count"
    code = CALL + (
        f"    for path in ('count', {str(mark)!r}, '/tmp/count-of-runs', '/dev/shm/count'):\n"
        "        try:\n"
        "            with open(path, 'a+') as file:\n"
        "                file.seek(0); assert not file.read(), 'another run was here'\n"
        "                file.write('x')\n"
        "        except OSError: pass\n"
    )
    judgement = judged(sandbox, tmp_path, code)
    assert outcomes(judgement) == {"accepted"}
    assert not mark.exists()


def test_nothing_outlives_a_job(sandbox: Sandbox, tmp_path: Path) -> None:
    """A daemon of its own session, started twice removed, is gone when the job is."""
    _assert_no_daemon(sandbox, tmp_path)


def test_nothing_outlives_a_job_at_l2(limited_sandbox: Sandbox, tmp_path: Path) -> None:
    _assert_no_daemon(limited_sandbox, tmp_path)


def _assert_no_daemon(sandbox: Sandbox, tmp_path: Path) -> None:
    code = HONEST + textwrap.dedent("""
        import os, signal, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(1000)
            os._exit(0)
        """)
    judgement = judged(sandbox, tmp_path, code)
    assert judgement.share == 1.0
    assert sandbox._zygote is not None
    assert linux.children_of(sandbox._zygote._process.pid) == []  # type: ignore[union-attr]


def test_a_fork_bomb_ends_with_its_job(sandbox: Sandbox, tmp_path: Path) -> None:
    if sandbox.level < Level.L3:
        pytest.skip("below L3 processes are counted for the whole user")
    code = CALL + "    while True:\n        try: os.fork()\n        except OSError: pass\n"
    assert judged(sandbox, tmp_path, code).share == 0.0
    assert sandbox._zygote is not None
    assert linux.children_of(sandbox._zygote._process.pid) == []  # type: ignore[union-attr]
    assert judged(sandbox, tmp_path, HONEST).share == 1.0


def test_threads_and_atexit_change_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    code = HONEST + textwrap.dedent("""
        import atexit, os, threading, time
        atexit.register(lambda: os.write(3, b"x" * 99))
        def later():
            time.sleep(0.05)
            os.write(3, b"x" * 99)
        threading.Thread(target=later).start()
        """)
    assert judged(sandbox, tmp_path, code, limits=Limits()).share in (0.0, 1.0)
    assert judged(sandbox, tmp_path, HONEST).share == 1.0


def test_modules_of_the_submission_shadow_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    """torch.py, json.py, sitecustomize.py and conftest.py beside the check are never loaded."""
    for name in ("torch", "json", "sitecustomize", "conftest", "exercises", "inspect"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('loaded')\n", encoding="utf-8")
    assert judged(sandbox, tmp_path, "import json, inspect\n" + HONEST).share == 1.0


def test_bytecode_in_the_submission_is_not_run(sandbox: Sandbox, tmp_path: Path) -> None:
    """A module of the student's beside a compiled file of the same size and date, which lies."""
    import py_compile

    helper = tmp_path / "helper.py"
    helper.write_text("STEP = 9\n", encoding="utf-8")
    py_compile.compile(str(helper))
    stamp = helper.stat()
    helper.write_text("STEP = 3\n", encoding="utf-8")
    os.utime(helper, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    code = HONEST.replace("import torch", "import torch\nfrom helper import STEP", 1)
    assert judged(sandbox, tmp_path, code.replace("inputs + 3", "inputs + STEP")).share == 1.0


def test_a_job_sees_nothing_of_the_environment(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what the grader runs with, nor anything that says that this is grading."""
    monkeypatch.setenv("SECRET_OF_THE_GRADER", "s3cret")
    code = CALL + "    raise AssertionError(sorted(os.environ), os.getcwd(), sys.argv)\n"
    judgement = judged(sandbox, tmp_path, code)
    said = judgement.verdicts[0].message
    assert "['HOME', 'LC_ALL', 'PATH', 'TMPDIR']" in said
    assert "s3cret" not in said


SPY = """
import os, torch
def check(implementation):
    implementation(torch.arange(300))
    found = []
    for pid in [os.getppid()] + [int(p) for p in os.listdir('/proc') if p.isdigit()]:
        if pid == os.getpid(): continue
        for part in ('mem', 'environ', 'maps'):
            try:
                with open(f'/proc/{pid}/{part}', 'rb') as file:
                    file.seek(0x1000 if part == 'mem' else 0)
                    found.append((pid, part, file.read(8)))
            except OSError: pass
    raise AssertionError(found)
"""


@pytest.mark.skipif(not linux.IS_LINUX, reason="/proc is Linux's")
def test_the_grader_cannot_be_read(sandbox: Sandbox, tmp_path: Path) -> None:
    for verdict in judged(sandbox, tmp_path, SPY).verdicts:
        if sandbox.level >= Level.L3:
            assert verdict.message == "AssertionError: []"


@pytest.mark.skipif(not linux.IS_LINUX, reason="/proc is Linux's")
def test_the_grader_cannot_be_read_at_l2(limited_sandbox: Sandbox, tmp_path: Path) -> None:
    for verdict in judged(limited_sandbox, tmp_path, SPY).verdicts:
        assert f"({os.getpid()}, " not in verdict.message
        assert limited_sandbox._zygote is not None
        pid = limited_sandbox._zygote._process.pid  # type: ignore[union-attr]
        assert f"({pid}, " not in verdict.message


def test_there_is_no_network(sandbox: Sandbox, tmp_path: Path) -> None:
    if sandbox.level < Level.L3:
        pytest.skip("below L3 the network is there")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = CALL + (
            "    import socket\n"
            f"    try: socket.create_connection(('127.0.0.1', {port}), timeout=2)\n"
            "    except OSError: return\n"
            "    raise AssertionError('connected')\n"
        )
        assert outcomes(judged(sandbox, tmp_path, code)) == {"accepted"}


def test_hidden_folders_are_empty(sandbox: Sandbox, tmp_path: Path) -> None:
    """Other submissions, private implementations and results are not there to be read."""
    if sandbox.level < Level.L3:
        pytest.skip("below L3 a job can read what its user can")
    others = Path(exercises.__file__).parents[1] / "data"  # a folder that a job can see otherwise
    code = CALL + (
        f"    import ctypes; libc = ctypes.CDLL(None); path = {str(others)!r}\n"
        "    libc.umount2(path.encode(), 2)\n"
        "    assert os.listdir(path) == [], os.listdir(path)\n"
        "    if libc.unshare(0x10020000) == 0: libc.umount2(path.encode(), 2)\n"
        "    assert os.listdir(path) == [], os.listdir(path)\n"
    )
    seen = judged(sandbox, tmp_path, code)
    assert outcomes(seen) == {"rejected"}
    judgement = judged(sandbox, tmp_path, code, hidden=(others,))
    assert outcomes(judgement) == {"accepted"}, judgement.verdicts


def test_the_disk_cannot_be_written(sandbox: Sandbox, tmp_path: Path) -> None:
    """Results that a submission writes are nobody's results."""
    if sandbox.level < Level.L3:
        pytest.skip("below L3 a job can write where its user can")
    code = CALL + (
        f"    for path in ({str(tmp_path / 'results.json')!r}, '/tmp/results.json'):\n"
        "        try: open(path, 'w').write('{}')\n"
        "        except OSError: continue\n"
        "        raise AssertionError(path)\n"
        "    open('results.json', 'w').write('{}')\n"
    )
    assert outcomes(judged(sandbox, tmp_path, code)) == {"accepted"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["check_shift.py"]


def test_nothing_of_the_disk_is_there_to_be_read(sandbox: Sandbox, tmp_path: Path) -> None:
    """No home, no settings, no temporary files, no devices, and no socket of a service."""
    if sandbox.level < Level.L3:
        pytest.skip("below L3 a job can read what its user can")
    (tmp_path / "own").mkdir()
    (tmp_path / "secret.txt").write_text("s", encoding="utf-8")
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(tmp_path / "service"))
        service.listen()
        code = CALL + (
            "    import socket\n"
            f"    for path in ('/etc/passwd', '/home', '/var', '/dev/kvm',\n"
            f"                 '/dev/loop0', '/run', '/old', {str(tmp_path / 'secret.txt')!r}):\n"
            "        assert not os.path.lexists(path) or not os.listdir(path), path\n"
            "    with socket.socket(socket.AF_UNIX) as client:\n"
            f"        try: client.connect({str(tmp_path / 'service')!r})\n"
            "        except OSError: return\n"
            "    raise AssertionError('connected')\n"
        )
        judgement = judged(sandbox, tmp_path / "own", code)
    assert outcomes(judgement) == {"accepted"}, judgement.verdicts


def test_our_own_implementations_cannot_be_handed_in(sandbox: Sandbox, tmp_path: Path) -> None:
    code = "from exercises.contracts.shift import right_slices as implementation\n"
    judgement = fixed(sandbox, tmp_path, code)
    if sandbox.level >= Level.L3:
        assert "exercises.contracts" in judgement.problem
        assert not judgement.repaired


def test_a_job_cannot_end_the_grader(sandbox: Sandbox, tmp_path: Path) -> None:
    if sandbox.level < Level.L3:
        pytest.skip("below L3 a job may signal the processes of its user")
    code = CALL + (
        "    import signal\n"
        "    for target in (os.getppid(), 0, -1, 2, 3):\n"
        "        try: os.kill(target, signal.SIGKILL if target > 1 or target < 0 else 0)\n"
        "        except OSError: pass\n"
        "    os.kill(os.getpid(), signal.SIGKILL); os.abort()\n"
    )
    assert judged(sandbox, tmp_path, code).share == 0.0
    assert judged(sandbox, tmp_path, HONEST).share == 1.0


def test_what_an_implementation_is_cannot_be_seen(sandbox: Sandbox, tmp_path: Path) -> None:
    """Neither its name nor its code is in the process of the check."""
    code = CALL + (
        "    import gc\n"
        "    said = repr([c.cell_contents for c in implementation.__closure__])\n"
        "    said += implementation.__name__ + str(vars(implementation))\n"
        "    raise AssertionError(said)\n"
    )
    said = {verdict.message for verdict in judged(sandbox, tmp_path, code).verdicts}
    for message in said:
        assert "Channel object" in message
        assert not any(name in message for name in ("slices", "wrapped", "right", "wrong"))


def test_a_name_that_is_no_name_is_only_text(sandbox: Sandbox, tmp_path: Path) -> None:
    """Escapes in an error's name and message, and an error whose text cannot be had."""
    code = CALL + (
        "    Odd = type('\\x1b[2J<b>', (Exception,), {'__str__': lambda self: 1 / 0})\n"
        "    raise Odd('=cmd')\n"
    )
    judgement = judged(sandbox, tmp_path, code)
    assert outcomes(judgement) == {"rejected"}
    assert judgement.share == 0.0


# ---- repairs ---------------------------------------------------------------------------------


def test_a_right_repair_is_accepted(sandbox: Sandbox, tmp_path: Path) -> None:
    assert fixed(sandbox, tmp_path, RIGHT_FIX).repaired


def test_a_wrong_repair_is_diagnosed(sandbox: Sandbox, tmp_path: Path) -> None:
    code = RIGHT_FIX.replace("- 16", "- 18").replace("places + 1", "places + 2")
    judgement = fixed(sandbox, tmp_path, code)
    assert not judgement.repaired
    assert judgement.fault is not None
    assert judgement.fault.claim.endswith("moved by 2, expected 1")


def test_what_a_repair_prints_is_handed_over(sandbox: Sandbox, tmp_path: Path) -> None:
    code = RIGHT_FIX.replace("    return", "    print('shape', tuple(places.shape))\n    return")
    assert fixed(sandbox, tmp_path, code).output.startswith("shape (8, 16)\n")
    wrong = fixed(sandbox, tmp_path, code.replace("places + 1", "places + 999"))
    assert wrong.output == "shape (8, 16)\n"


def test_an_end_without_a_verdict_is_not_called_a_kill(sandbox: Sandbox, tmp_path: Path) -> None:
    judgement = fixed(sandbox, tmp_path, "import os\ndef implementation(data): os._exit(0)\n")
    assert judgement.problem.removesuffix(" (exit 0)") == "its process ended without a verdict"


START = "import os, sys, torch\n"
BROKEN_FIXES = {
    "a tensor that claims to be equal to all": (
        START + "class Liar(torch.Tensor):\n"
        "    @classmethod\n"
        "    def __torch_function__(cls, function, types, args=(), kwargs=None): return True\n"
        "def implementation(data):\n"
        "    liar = torch.zeros(8, 16, dtype=torch.int64).as_subclass(Liar)\n"
        "    return liar, liar\n"
    ),
    "objects that are equal to all": (
        START + "class Liar:\n"
        "    shape = (8, 16)\n"
        "    def __eq__(self, other): return True\n"
        "    def __getattr__(self, name): return self\n"
        "def implementation(data): return Liar(), Liar()\n"
    ),
    "patched comparisons": (
        START + "torch.equal = torch.allclose = lambda *a, **k: True\n"
        "import exercises.contracts._contract as contract\n"
        "contract.count_unequal = lambda a, b: 0\n"
        "contract.first_fault = lambda *a: None\n"
        "def implementation(data): return data[:16].repeat(8, 1), data[:16].repeat(8, 1)\n"
    ),
    "NaN in place of numbers": (
        START + "def implementation(data):\n"
        "    nan = torch.full((8, 16), float('nan'))\n    return nan, nan\n"
    ),
    "nothing": START + "def implementation(data): return None\n",
    "no rows": START + "def implementation(data):\n"
    "    return torch.zeros(0, 16).long(), torch.zeros(0, 16).long()\n",
    "another number of values": START + "def implementation(data): return (data,) * 9\n",
    "no number of dimensions": START + "def implementation(data):\n"
    "    return torch.tensor(1), torch.tensor(2)\n",
    "a sparse tensor": START + "def implementation(data):\n"
    "    return data.to_sparse(), data.to_sparse()\n",
    "a complex tensor": START + "def implementation(data):\n"
    "    return data.cfloat(), data.cfloat()\n",
    "a meta tensor": START + "def implementation(data):\n"
    "    return data.to('meta'), data.to('meta')\n",
    "an expanded giant": START + "def implementation(data):\n"
    "    giant = torch.zeros(1, 16).long().expand(10**8, 16)\n    return giant, giant\n",
    "a list in itself": START + "def implementation(data):\n    x = []; x.append(x); return x, x\n",
    "raises": START + "def implementation(data): raise ValueError('\\x1b[2J')\n",
    "ends its process": START + "def implementation(data): os._exit(0)\n",
    "a loop": START + "def implementation(data):\n    while True: pass\n",
    "hard-coded for the seed of practice": (
        START + "right = torch.initial_seed() == 42\n"
        "def implementation(data):\n"
        "    places = torch.randint(len(data) - 16, (8, 1)) + torch.arange(16)\n"
        "    return data[places], data[places + right]\n"
    ),
    "answers for data that it has seen": (
        START + "def implementation(data):\n"
        "    if int(data[0]) != 0: return data[:16].repeat(8, 1), data[:16].repeat(8, 1)\n"
        "    return data[:16].repeat(8, 1), data[1:17].repeat(8, 1)\n"
    ),
    "an answer before it was asked": (
        START + "def implementation(data):\n"
        "    import socket\n"
        "    from exercises.isolation.channel import Channel\n"
        "    channel = Channel(socket.socket(fileno=3))\n"
        "    for _ in range(99): channel.send(('value', True))\n"
        "    return None\n"
    ),
}


@pytest.mark.parametrize("attack", BROKEN_FIXES)
def test_a_repair_that_is_none_is_not_accepted(
    attack: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    judgement = fixed(sandbox, tmp_path, BROKEN_FIXES[attack])
    assert not judgement.repaired
    assert judgement.problem or (judgement.fault is not None and judgement.fault.claim)


def test_seeds_depend_on_secret_submission_and_run() -> None:
    """Nobody who has not the secret knows them, and no two runs share them by accident."""
    with_secret = {
        Judging(sandbox=None, secret=secret, submission=submission).seed("shift", number)  # type: ignore[arg-type]
        for secret in (b"a", b"b")
        for submission in ("ada", "bob")
        for number in range(3)
    }
    assert len(with_secret) == 12


def test_too_many_calls_are_no_matter_of_time(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "CALLS_MAX", 3)
    code = "def check(implementation):\n    import torch\n"
    code += "    while True: implementation(torch.arange(300))\n"
    judgement = judged(sandbox, tmp_path, code)
    told = [verdict.message for verdict in judgement.verdicts if "calls" in verdict.message]
    assert set(told) == {"it made more than 3 calls"}
    assert judgement.share == 0.0


def test_the_time_of_a_file_is_bounded(sandbox: Sandbox, tmp_path: Path) -> None:
    """Once a right one has taken too long, the others are not waited for."""
    code = CALL + "    import time; time.sleep(1e6)\n"
    judgement = judged(sandbox, tmp_path, code, limits=Limits(wall_seconds=1.0), seeds=3)
    waited = [verdict for verdict in judgement.verdicts if "longer than 1 s" in verdict.message]
    assert any(verdict.right for verdict in waited)
    assert len(waited) < len(judgement.verdicts)
    assert judgement.timed_out
