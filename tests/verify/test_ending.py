"""How attempts end: one row a dialect and one row a way to die, with outcome, detail and bound."""

from __future__ import annotations

import math

import pytest

from infrarsi_hpc.domain.outcome import DETAILS, Outcome
from infrarsi_hpc.domain.trial import TrialLimits
from infrarsi_hpc.verify.checks import judge
from infrarsi_hpc.verify.ending import classify, classify_log
from infrarsi_hpc.verify.log_evidence import find, lines_of
from infrarsi_hpc.verify.readings import read
from infrarsi_hpc.verify.reference import reference_of_seed

OWN_LIMIT = TrialLimits(memory_gib=1.5, memory_set_by="harness", wall_seconds=300, idle_seconds=60)

CPU_ALLOCATOR = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
    "memory: you tried to "
    "allocate {} bytes. Error code 12 (Cannot allocate memory)\n"
)
TORCH_25 = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
    "79.25 GiB of which 1.06 GiB is free. Including non-PyTorch memory, this process has 78.17 GiB "
    "memory in use. Of the "
    "allocated memory 74.91 GiB is allocated by PyTorch, and 1.55 GiB is reserved by PyTorch but unallocated.\n"
)
NCCL = (
    "g12:301:305 [3] include/alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'\n"
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error\n"
    "Last error:\nFailed to CUDA calloc 6291456 bytes\n"
)

DIALECTS = [
    (
        "torch 1",
        "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 2; 39.59 GiB total capacity; "
        "36.10 GiB already "
        "allocated; 812.19 MiB free; 37.60 GiB reserved in total by PyTorch)",
        "device_oom/torch",
        37.60,
    ),
    ("torch 2.5", TORCH_25, "device_oom/torch", 76.91),
    (
        "a field that says 0 bytes",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 5 has a total capacity "
        "of 23.43 GiB of "
        "which 210.06 MiB is free. Including non-PyTorch memory, this process has 0 bytes memory in use. Of "
        "the allocated "
        "memory 22.41 GiB is allocated by PyTorch, and 206.09 MiB is reserved by PyTorch but unallocated.",
        "device_oom/torch",
        24.37,
    ),
    (
        "a cap",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity "
        "of 79.25 GiB of "
        "which 60.10 GiB is free. 16.00 GiB allowed; Of the allocated memory 15.98 GiB is allocated by PyTorch",
        "device_oom/fraction_cap",
        16.0,
    ),
    (
        "hip",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 124.00 MiB. GPU 0 has a total capacity "
        "of 63.98 GiB of "
        "which 52.00 MiB is free. Of the allocated memory 61.87 GiB is allocated by PyTorch",
        "device_oom/hip",
        61.87 + 124 / 1024,
    ),
    (
        "far more free than asked for",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity "
        "of 287.98 GiB of "
        "which 203.49 GiB is free. Of the allocated memory 68.63 GiB is allocated by PyTorch",
        "infra",
        None,
    ),
    (
        "more free than there is",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity "
        "of 15.49 GiB of "
        "which 84.98 GiB is free. Of the allocated memory 1.67 GiB is allocated by PyTorch",
        "infra",
        None,
    ),
    (
        "old paradox",
        "RuntimeError: CUDA out of memory. Tried to allocate 12.00 MiB (GPU 0; 10.92 GiB total capacity; "
        "9.10 MiB already "
        "allocated; 9.31 GiB free; 4.00 MiB cached)",
        "infra",
        None,
    ),
    (
        "no number",
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronous",
        "device_oom/no_number",
        None,
    ),
    (
        "library",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "device_oom/lib_alloc",
        None,
    ),
    ("nccl", NCCL, "device_oom/nccl", None),
    (
        "nccl, another cause",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error\n"
        "Last error:\nCuda failure 1 'invalid argument'",
        "crashed",
        None,
    ),
    ("illegal access", "RuntimeError: CUDA error: an illegal memory access was encountered", "crashed", None),
    (
        "cgroup",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=700.0. Some tasks have been OOM Killed.",
        "host_oom/cgroup",
        None,
    ),
    (
        "cgroup, older",
        "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=701.batch cgroup.",
        "host_oom/cgroup",
        None,
    ),
    (
        "shm",
        "ERROR: Unexpected bus error encountered in worker, caused by insufficient shared memory (shm).",
        "host_oom/shm",
        None,
    ),
    ("cpu, nobody's limit", CPU_ALLOCATOR.format(8 * 2**30), "host_oom/allocator", None),
    (
        "time limit",
        "slurmstepd: error: *** JOB 704 ON g003 CANCELLED AT 2031-01-01T09:00:00 DUE TO TIME LIMIT ***",
        "timeout/limit",
        None,
    ),
    ("cancelled", "slurmstepd: error: *** STEP 704.0 ON g003 CANCELLED AT 2031-01-01T09:00:00 ***", "cancelled", None),
    (
        "preempted",
        "slurmstepd: error: *** JOB 7 ON g1 CANCELLED AT 2031-01-01T09:00:00 DUE TO PREEMPTION ***",
        "infra",
        None,
    ),
    ("disk full", "OSError: [Errno 28] No space left on device", "infra", None),
    ("inductor", "torch._inductor.exc.InductorError: CppCompileError: C++ compile error", "invalid/compile", None),
    (
        "triton",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 180224",
        "invalid/kernel_resources",
        None,
    ),
    ("watchdog", "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", "timeout/hang", None),
    ("nan", "step 12 | lm loss: NaN | grad norm: 1.0\nRuntimeError: stopping", "diverged", None),
    ("nothing", "step 1\nstep 2\n", "unknown", None),
    ("an exception", "Traceback (most recent call last):\n  ...\nKeyError: 'qkv'\n", "crashed", None),
    ("arguments", "usage: train [-h]\ntrain: error: argument --heads: invalid choice: 6", "invalid/launch", None),
]


@pytest.mark.parametrize(
    ("text", "label", "bound_gib"), [row[1:] for row in DIALECTS], ids=[row[0] for row in DIALECTS]
)
def test_a_log_alone_is_read_as_what_it_says(text, label, bound_gib) -> None:
    ending = classify_log(text)
    assert ending.label == label
    assert ending.bound_gib == (None if bound_gib is None else pytest.approx(bound_gib))
    assert ending.evidence
    assert ending.detail is None or ending.detail in DETAILS[ending.outcome]


def test_the_rank_is_read_from_its_label() -> None:
    assert classify_log(TORCH_25).rank == 3
    assert classify_log("srun: error: g002: task 3: Out Of Memory").rank == 3
    assert list(lines_of("2: [rank5]: \x1b[31mboom\x1b[0m\r[default1]: bang")) == [(5, "boom"), (1, "bang")]


# ---- whose limit


@pytest.mark.parametrize(
    "text",
    [
        CPU_ALLOCATOR.format(2**20),
        "MemoryError",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 10. MiB for an array with shape (1310720,)",
        "OSError: [Errno 12] Cannot allocate memory",
        "RuntimeError: can't start new thread",
        "libgomp: Thread creation failed: Resource temporarily unavailable",
    ],
)
def test_process_memory_under_our_own_limit_is_the_devices(text) -> None:
    ending = classify_log(text, OWN_LIMIT)
    assert ending.label == "device_oom/limit"
    assert ending.bound_gib == 1.5
    nobodys = classify_log(text)
    assert nobodys.outcome in (Outcome.HOST_OOM, Outcome.CRASHED), "the same text without a limit of ours"
    assert nobodys.bound_gib is None


def test_the_bound_is_what_was_held_plus_what_was_asked_for_while_memory_only_grew(
    make_run, make_result, make_spec
) -> None:
    log = "[1] " + CPU_ALLOCATOR.format(2**30)
    dead = {"exit_codes": (-15, 1), "stopped": "rank_died", "log_tail": log, "peak_gib": (0.2, 1.25)}
    spec = make_spec(ranks=2)
    first = classify(make_result(make_run(8, step_ends=(), steps=(), **dead)), spec)
    assert (first.label, first.rank, first.bound_gib) == ("device_oom/limit", 1, pytest.approx(2.25))
    # later the peak may have been another moment's: only the limit is sure
    later = classify(make_result(make_run(8, step_ends=(2.1, 2.2), **dead)), spec)
    assert later.bound_gib == 1.5
    big = classify(
        make_result(
            make_run(8, step_ends=(2.1, 2.2), **{**dead, "log_tail": "[1] " + CPU_ALLOCATOR.format(3 * 2**30)})
        ),
        spec,
    )
    assert big.bound_gib == 3.0, "the request alone exceeds the limit"


def test_memory_that_ran_out_before_the_limit_was_set_is_the_hosts(make_run, make_result, make_spec) -> None:
    run = make_run(8, setup_seconds=None, step_ends=(), steps=(), exit_codes=(1,), log_tail="MemoryError\n")
    assert classify(make_result(run), make_spec()).label == "host_oom/allocator"


def test_a_device_oom_without_numbers_is_bounded_by_the_peak_that_was_seen() -> None:
    assert classify_log("RuntimeError: CUDA error: out of memory", peaks_gib=(70.0, 71.5)).bound_gib == 71.5


# ---- attempts


def test_a_finished_attempt_is_ok_and_a_recovered_retry_is_only_noted(make_run, make_result, make_spec) -> None:
    assert classify(make_result(make_run()), make_spec()).label == "ok"
    ending = classify(make_result(make_run(log_tail=TORCH_25)), make_spec())
    assert ending.label == "ok"
    assert "recovered from" in ending.evidence


PROBLEMS = [
    ("copy", "infra"),
    ("agent", "infra"),
    ("patch", "invalid/launch"),
    ("locked_files_before", "refused"),
    ("locked_files_after", "refused"),
    ("cancelled", "cancelled"),
]


@pytest.mark.parametrize(("problem", "label"), PROBLEMS)
def test_what_went_wrong_around_the_program_is_not_the_programs(problem, label, make_result, make_spec) -> None:
    ending = classify(make_result(problem=problem, problem_text="because of this"), make_spec())
    assert ending.label == label
    assert "because of this" in ending.evidence


ARGUMENTS = "usage: train [-h] --heads N\ntrain: error: argument --heads: must divide the width\n"
PEER_LOST = "[1] RuntimeError: [../gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:3\n"
TRACE = "Traceback (most recent call last):\n  File x\n"

ATTEMPTS = [
    ("wall", {"stopped": "wall", "exit_codes": (-9,)}, "timeout/limit", "limit of 300 s after 3 of 8 steps"),
    ("idle", {"stopped": "idle", "exit_codes": (-9,)}, "timeout/hang", "no sign for 60 s"),
    ("suspended", {"stopped": "suspended", "exit_codes": (-9,)}, "infra", "suspended, or its machine stood still"),
    (
        "suspended after its memory ran out",
        {"stopped": "suspended", "exit_codes": (1, -9), "log_tail": "[0] " + CPU_ALLOCATOR.format(2**29)},
        "device_oom/limit",
        "DefaultCPUAllocator",
    ),
    ("person", {"stopped": "cancelled", "exit_codes": (-9,)}, "cancelled", "3 of 8"),
    ("too few steps", {"exit_codes": (0,)}, "crashed", "ended after 3 of 8 steps with exit code 0"),
    ("no step", {"exit_codes": (0,), "num": 0}, "crashed", "no optimizer step"),
    ("nothing at all", {"exit_codes": (0,), "num": 0, "setup_seconds": None}, "crashed", "no forward pass"),
    ("killed", {"exit_codes": (-9,)}, "unknown", "signal 9"),
    ("killed by a shell", {"exit_codes": (137,)}, "unknown", "signal 9"),
    ("terminated", {"exit_codes": (-15,)}, "unknown", "signal 15"),
    ("never seen to end", {"exit_codes": (None,)}, "unknown", "nothing says by whom"),
    ("segfault", {"exit_codes": (-11,)}, "crashed", "SIGSEGV"),
    ("abort", {"exit_codes": (134,)}, "crashed", "SIGABRT"),
    ("exit code", {"exit_codes": (3,)}, "crashed", "exit code 3"),
    (
        "arguments",
        {"exit_codes": (2,), "num": 0, "setup_seconds": None, "log_tail": ARGUMENTS},
        "invalid/launch",
        "must divide",
    ),
    (
        "refuses its settings",
        {"exit_codes": (1,), "num": 0, "setup_seconds": None, "log_tail": TRACE + "ValueError: 6 heads, 4 ranks\n"},
        "invalid/launch",
        "6 heads",
    ),
    ("the same later on", {"exit_codes": (1,), "log_tail": TRACE + "ValueError: too late\n"}, "crashed", "too late"),
    (
        "compiler",
        {"exit_codes": (1,), "log_tail": "torch._dynamo.exc.Unsupported: call\n"},
        "invalid/compile",
        "Unsupported",
    ),
    ("shared memory", {"exit_codes": (-7,), "log_tail": "out of shared memory\n"}, "host_oom/shm", "shared"),
    (
        "cgroup kill",
        {"exit_codes": (-9,), "log_tail": "Detected 1 oom_kill event in StepId=1.0\n"},
        "host_oom/cgroup",
        "oom_kill",
    ),
    # one rank is out of memory, the other only sees that its peer is gone
    (
        "one rank's memory",
        {"exit_codes": (1, 1), "log_tail": PEER_LOST + "[0] " + CPU_ALLOCATOR.format(2**29)},
        "device_oom/limit",
        "DefaultCPUAllocator",
    ),
    (
        "one rank's exception",
        {"exit_codes": (1, 1), "log_tail": PEER_LOST + "[0] KeyError: 'w'\n"},
        "crashed",
        "KeyError",
    ),
    (
        "the others hang",
        {"exit_codes": (-9, 1), "stopped": "rank_died", "log_tail": "[1] KeyError: 'w'\n"},
        "crashed",
        "KeyError",
    ),
    (
        "the others hang and time runs out",
        {"exit_codes": (-9, 1), "stopped": "idle", "log_tail": "[1] " + CPU_ALLOCATOR.format(2**29)},
        "device_oom/limit",
        "DefaultCPUAllocator",
    ),
    ("half ended", {"exit_codes": (0, -9), "stopped": "idle"}, "timeout/hang", "rank 0 had already ended"),
]


@pytest.mark.parametrize(("changes", "label", "words"), [row[1:] for row in ATTEMPTS], ids=[row[0] for row in ATTEMPTS])
def test_an_attempt_ends_by_its_root_cause(changes, label, words, make_run, make_result, make_spec) -> None:
    changes = dict(changes)
    num = changes.pop("num", 3)
    full = make_run(8)
    run = full.model_copy(update={"step_ends": full.step_ends[:num], "steps": full.steps[:num], **changes})
    ending = classify(make_result(run), make_spec(ranks=len(run.exit_codes)))
    assert ending.label == label, ending
    assert words in ending.evidence


def test_a_loss_that_is_not_a_number_is_diverged_however_the_run_ended(make_run, make_result, make_spec, step) -> None:
    steps = tuple(step(k, loss=math.nan if k == 5 else 6.0) for k in range(8))
    assert classify(make_result(make_run(steps=steps)), make_spec()).label == "diverged"
    raised = make_run(steps=steps[:6], step_ends=(2.1,) * 6, exit_codes=(1,))
    ending = classify(make_result(raised), make_spec())
    assert (ending.label, ending.evidence) == ("diverged", "the loss of step 6 is nan")


def test_the_first_run_that_fails_decides(make_run, make_result, make_spec) -> None:
    runs = (make_run(4), make_run(8, stopped="wall", exit_codes=(-9,)))
    assert classify(make_result(*runs), make_spec(lengths=(4, 8))).label == "timeout/limit"
    assert classify(make_result(runs[0]), make_spec(lengths=(4, 8))).label == "infra", "a run that nobody made"
    assert classify(make_result(), make_spec()).label == "infra"


def test_an_error_with_numbers_stands_for_the_bare_headline_of_the_same_event() -> None:
    findings = find("[0] RuntimeError: CUDA error: out of memory\n" + TORCH_25)
    assert [f.detail for f in findings] == ["torch"]


def test_a_program_that_leaves_a_process_behind_is_refused_though_it_ended_well(
    make_run, make_result, make_spec
) -> None:
    left = make_run().model_copy(update={"survivors": ("python burn.py (4.2 s of processor time)",)})
    ending = classify(make_result(left), make_spec())
    assert ending.outcome is Outcome.REFUSED
    assert "1 process outlived the program and had to be ended: python burn.py" in ending.evidence
    crashed = left.model_copy(update={"exit_codes": (1,), "step_ends": (), "log_tail": "ValueError: no"})
    assert classify(make_result(crashed), make_spec()).outcome is not Outcome.REFUSED, "it had no time to end them"


def test_memory_beside_the_ranks_own_is_the_devices_limit(make_run, make_result, make_spec) -> None:
    over = make_run().model_copy(update={"stopped": "memory", "exit_codes": (-9,), "peak_gib": (1.7,)})
    ending = classify(make_result(over), make_spec())
    assert (ending.label, ending.bound_gib) == ("device_oom/limit", 1.7)
    assert "the limit is 1.5 GiB" in ending.evidence


def test_a_killed_helper_taints_what_its_ranks_measured(make_run, make_result, make_spec, contract, doctor) -> None:
    run = make_run().model_copy(update={"host_oom_kills": 1})
    result, spec = make_result(run), make_spec()
    ending = classify(result, spec)
    assert (ending.outcome, ending.is_tainted) == (Outcome.OK, True)
    verdict = judge(
        result, spec, ending, read(result, spec), contract, reference_of_seed(doctor, spec.seed), patches=()
    )
    assert verdict.is_believed
    assert verdict.labels == (ending.evidence,), "and it says so"


def test_memory_near_the_hosts_limit_is_a_word_beside_a_run_that_ended_well(make_run, make_result, make_spec) -> None:
    log = (
        "slurmstepd: error: Exceeded step memory limit at some point. Step may have been partially swapped out to disk."
    )
    ending = classify(make_result(make_run().model_copy(update={"log_tail": log})), make_spec())
    assert ending.outcome is Outcome.OK
    assert "near the limit on the host's memory, a warning" in ending.evidence
