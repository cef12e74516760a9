"""The texts by which programs, libraries, Slurm, the kernel and drivers say how something ended. One row a text.

Within a line the first row that matches speaks, so that narrow texts stand above wide ones. Texts with figures of
memory in them are read by `verify.log_memory`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from infrarsi_hpc.domain.outcome import Outcome


class Weight(IntEnum):
    """How much a text explains: what ended the program, what it ran into on the way, what followed from that."""

    CAUSE = 0
    FAULT = 1
    CONSEQUENCE = 2
    #: Only that something failed: torchrun's summary, a shell's word about a core file.
    ECHO = 3


class Row(NamedTuple):
    """A text and what it means. `has_request`: its first group is a request in bytes."""

    pattern: re.Pattern[str]
    outcome: Outcome
    detail: str | None = None
    weight: Weight = Weight.CAUSE
    has_request: bool = False
    #: The process's own memory ran out: whose fault that is depends on who set the limit.
    is_process_memory: bool = False


def _row(
    text: str, outcome: Outcome, detail: str | None = None, weight: Weight = Weight.CAUSE, has_request: bool = False
) -> Row:
    return Row(re.compile(text), outcome, detail, weight, has_request)


def _own(text: str, outcome: Outcome = Outcome.HOST_OOM, detail: str | None = "allocator") -> Row:
    return Row(re.compile(text), outcome, detail, is_process_memory=True)


_HARDWARE_XID = r"(?:48|6[234]|74|79|8[01]|9[2345]|119|120|14\d)"

#: Said by a step that has come near its limit on the host's memory at some time: the page cache counts too, and the
#: program may have finished. By itself no outcome; beside a kill that nobody explains it is the explanation.
NEAR_HOST_LIMIT = re.compile(r"(?i)exceeded (?:job|step) memory limit at some point")

ROWS = (
    # ---- on-chip memory of a generated kernel: a kernel's settings on this type of GPU, and no use of its memory
    _row(
        r"out of resources?: |LAUNCH_OUT_OF_RESOURCES|LaunchOutOfResources|too many resources requested for launch|"
        r"uses too (?:much shared data|many registers)|MaxDynamicSharedMemorySize|No valid triton configs|"
        r"local memory (?:limit exceeded|\(\d{1,12}\) exceeds limit)",
        Outcome.INVALID,
        "kernel_resources",
    ),
    _row(
        r"(?i)\b(?:kernel|block|CTA|SM|multiprocessor)\b.{0,80}\b(?:shared memory|smem|registers)\b.{0,80}"
        r"(?:exceed|too (?:much|many|large)|limit|maximum|available)|"
        r"\b(?:shared memory|smem|LDS|registers)\b.{0,80}(?:\bhardware limit|"
        r"exceed.{0,40}\b(?:per[- ](?:block|SM|thread)|opt-?in|device|hardware|maximum)\b)",
        Outcome.INVALID,
        "kernel_resources",
    ),
    # ---- shared memory: says "no space" and "cannot allocate", and is neither the disk nor the heap
    _row(r"insufficient shared memory|out of shared memory|shared memory limit", Outcome.HOST_OOM, "shm"),
    _row(
        r"/dev/shm\b.*No space left|No space left.*/dev/shm\b|extend /dev/shm/|segment /dev/shm/",
        Outcome.HOST_OOM,
        "shm",
    ),
    _row(
        r"unable to (?:open|resize|write|allocate|mmap)\b.{0,80}</torch_|shared memory\(shm\) for",
        Outcome.HOST_OOM,
        "shm",
    ),
    _row(r"(?:shm_open|posix_fallocate|ftruncate)\b.*No space left", Outcome.HOST_OOM, "shm"),
    _row(
        r"(?<!PCIe )\b[Bb]us [Ee]rror\b|\bSIGBUS\b|exitcode\s*: -7\b|Exited with exit code 135\b",
        Outcome.HOST_OOM,
        "shm",
    ),
    # ---- the host's memory
    _row(r"Detected [1-9]\d* oom[-_]kill event", Outcome.HOST_OOM, "cgroup"),
    _row(r"srun: error: .*Out Of Memory|\bOUT_OF_ME(?:MORY|M|\+)", Outcome.HOST_OOM, "cgroup"),
    _row(r"(?i)exceeded (?:job |step |virtual )?memory limit|TERM_MEMLIMIT", Outcome.HOST_OOM, "cgroup"),
    _row(
        r"[Oo]ut of memory: Kill|oom-kill:constraint=|invoked oom-killer|oom_reaper: reaped", Outcome.HOST_OOM, "cgroup"
    ),
    _row(r"\bKilled process \d+ \(.{1,40}total-vm:|(?i:\bOOM Killed\b)|OOMKilled", Outcome.HOST_OOM, "cgroup"),
    # ---- libraries on the device
    _row(
        r"CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_INTERNAL_ERROR_\w*ALLOCATION|"
        r"HIPBLAS_STATUS_ALLOC_FAILED|rocblas_status_memory_error|miopenStatusAllocFailed|"
        r"CUFFT_ALLOC_FAILED|CURAND_STATUS_ALLOCATION_FAILED",
        Outcome.DEVICE_OOM,
        "lib_alloc",
    ),
    _row(r"NCCL WARN.*(?:out of memory|Failed to CUDA (?:calloc|malloc|host))", Outcome.DEVICE_OOM, "nccl"),
    _row(
        r"\AFailed to CUDA (?:calloc|malloc)|\A(?:Cuda|HIP) failure (?:\d+ )?'out of memory'",
        Outcome.DEVICE_OOM,
        "nccl",
    ),
    _row(r"(?i)nccl.*\b(?:cuda|hip) failure (?:\d+ )?'out of memory'", Outcome.DEVICE_OOM, "nccl"),
    # ---- the device, in words of other frameworks and of the driver
    _row(
        r"RESOURCE_EXHAUSTED: (?:\w+: )?Out of memory.*?allocat\w+ (\d{1,15}) ?bytes|"
        r"OutOfMemoryError: Out of memory allocating ([\d,]{1,20}) bytes",
        Outcome.DEVICE_OOM,
        "no_number",
        has_request=True,
    ),
    _row(
        r"(?:CUDA|HIP|XPU|cuda|hip)(?: driver| runtime)?(?: API)? ?[Ee]rror(?: \(?2\)?)? ?:? out of memory|"
        r"hipErrorOutOfMemory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|ERROR_OUT_OF_DEVICE_MEMORY|"
        r"(?:cudaMalloc\w*|cuMem\w+|hipMalloc\w*)\b[^:]{0,60}: out of memory|Triton Error \[\w+\]: out of memory|"
        r"RESOURCE_EXHAUSTED: |OOM when allocating tensor.*GPU|Error out of memory at line \d+ in file|"
        r"error=2 : out of memory|\b(?:CUDA|HIP|XPU|MPS backend) out of memory\b|"
        r"\A(?:torch\.(?:cuda\.)?|cupy\.cuda\.memory\.)?OutOfMemoryError\b",
        Outcome.DEVICE_OOM,
        "no_number",
    ),
    # ---- the process's own memory
    _row(r"\bibv_\w+ failed|ibv_\w+.*Cannot allocate memory", Outcome.INFRA),  # locked memory, not the heap
    _own(
        r"(?<![\w.])MemoryError\b|std::bad_alloc|Cannot allocate memory|Error code 12\b|[Nn]ot enough memory: you tried"
    ),
    _own(r"OOM when allocating tensor|failed to allocate memory for (?:the )?host"),
    # a thread's stack counts as data memory too (seen with RLIMIT_DATA: libgomp and autograd start theirs lazily)
    _own(r"can't start new thread|Thread creation failed|pthread_create failed", Outcome.CRASHED, None),
    # ---- the node could not set the job up: nothing of the program has run
    _row(
        r"(?:execve\(\)|exec failed|(?:can't|cannot|could not|unable to) open).{0,300}slurm_script\b.{0,40}No such|"
        r"slurm_script\b.{0,20}: (?:No such file|Stale|Input/output error|Permission denied)|"
        r"(?i:(?:could not|unable to|failed to) (?:open|create|write|find|read) (?:the )?(?:batch|job) script)",
        Outcome.INFRA,
    ),
    _row(
        r"\b(?:container|namespace)_[pg]_\w+\b|(?i:job_container(?:/tmpfs)?: .{0,200}(?:error|fail|No such))|"
        r"(?i:slurm\w*: error: .{0,40}\b(?:mkdir|mount|unshare|setns|chdir)\(.{0,300}(?:No such|fail|denied|No space))",
        Outcome.INFRA,
    ),
    _row(
        r"(?i)slurm\w*: error: .{0,200}(?:could not|unable to|failed to) (?:join|create|mount|unshare|enter|open) "
        r".{0,80}(?:namespace|container|job'?s? (?:folder|directory|tmp)|tmpfs)",
        Outcome.INFRA,
    ),
    _row(
        r"(?i)\b(?:prolog|epilog)\b.{0,60}(?:fail|error|(?:exit|returned) status [1-9])|"
        r"\bspank\b.{0,120}(?:plugin|init)\w*\b.{0,60}fail",
        Outcome.INFRA,
    ),
    # ---- refused at launch
    _row(
        r"(?i)\berror: (?:unrecognized arguments|the following arguments are required|argument -)",
        Outcome.INVALID,
        "launch",
    ),
    _row(
        r"\A(?:Error: )?(?:No such option|Missing option|Invalid value for|Unknown option)\b|"
        r"Unknown command line flag|Key '\S{1,80}' is not in struct|not used by the HfArgumentParser",
        Outcome.INVALID,
        "launch",
    ),
    _row(r"(?i)invalid device ordinal|Duplicate GPU detected", Outcome.INVALID, "launch"),
    _row(r"(?:Error|Exception): .{0,300}(?:divisible by|must be a multiple of)", Outcome.INVALID, "launch"),
    _row(
        r"can't open file '.{1,300}No such file|execve\(\): .{1,300}No such file|: command not found",
        Outcome.INVALID,
        "launch",
    ),
    # ---- kernels and compilers
    _row(
        r"torch\._(?:dynamo|inductor)\.exc\.|BackendCompilerFailed|InductorError|CppCompileError|LoweringException|"
        r"\bLLVM ERROR\b|No working C\+\+ compiler|triton\.compiler\.errors|\ACompilationError: at|"
        r"PassManager::run failed",
        Outcome.INVALID,
        "compile",
    ),
    _row(
        r"nvcc fatal|ptxas (?:fatal|error)|ninja: build stopped|Error building extension|bin/nvcc' failed|"
        r"compiled with an unsupported toolchain|\b(?:NVRTC|HIPRTC)_ERROR_COMPILATION",
        Outcome.INVALID,
        "compile",
    ),
    _row(r"no kernel image is available for execution", Outcome.INVALID, "compile"),
    # ---- stopped from outside: explains what comes after it, not what came before
    _row(
        r"(?i)due to time ?limit|exceeded (?:its |the )?(?:wall ?)?time limit", Outcome.TIMEOUT, "limit", Weight.FAULT
    ),
    _row(
        r"walltime \d+ exceeded limit|TERM_RUNLIMIT|\bJob has timed out\b|State: TIMEOUT",
        Outcome.TIMEOUT,
        "limit",
        Weight.FAULT,
    ),
    _row(
        r"(?i)due to (?:signal \w+ due to )?(?:job )?(?:preempt\w*|requeue)|Terminated due to preemption",
        Outcome.INFRA,
        None,
        Weight.FAULT,
    ),
    _row(r"(?i)due to node failure|srun: error: Node failure|UNCORRECTABLE MEMORY ERROR", Outcome.INFRA),
    _row(
        r"(?i)(?:step|stepid=)\s?\S+ (?:on \S+ )?cancelled at \S+ \*\*\*", Outcome.CANCELLED, None, Weight.CONSEQUENCE
    ),
    _row(r"CANCELLED AT \S+ \*\*\*", Outcome.CANCELLED, None, Weight.FAULT),
    _row(r"\AKeyboardInterrupt\b", Outcome.CANCELLED, None, Weight.CONSEQUENCE),
    # ---- the node: disk, device, driver, network
    _row(r"No space left on device|Disk quota exceeded|Stale (?:NFS )?file handle|Remote I/O error", Outcome.INFRA),
    _row(r"\[Errno 5\]|Transport endpoint is not connected|endpoint shutdown|Read-only file system", Outcome.INFRA),
    _row(r"(?i)uncorrectable (?:ecc|nvlink)|has fallen off the bus|GPU is lost|hardware stack error", Outcome.INFRA),
    _row(rf"NVRM: Xid.{{0,60}}: {_HARDWARE_XID}\b", Outcome.INFRA),
    _row(r"NVRM: Xid.{0,60}: \d", Outcome.CRASHED, None, Weight.FAULT),
    _row(r"(?i)nvlink.{0,40}(?:fatal|error detected)|system not yet initialized", Outcome.INFRA),
    _row(
        r"CUDA-capable device(?:\(s\)|s)?(?: is/are| are| is)? busy|no CUDA-capable device|No CUDA GPUs are available|"
        r"cudaErrorDevicesUnavailable|CUDA_ERROR_(?:DEVICE_UNAVAILABLE|NO_DEVICE)|hipErrorNoDevice|"
        r"(?i:device(?:\(s\))? (?:is|are|is/are) (?:in use|busy) (?:by another|or unavailable))",
        Outcome.INFRA,
    ),
    _row(
        r"Driver/library version mismatch|Failed to initialize NVML|communicate with the NVIDIA driver", Outcome.INFRA
    ),
    _row(
        r"Found no NVIDIA driver|NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        Outcome.INFRA,
    ),
    _row(r"CUDA unknown error|CUDA error: unknown error|Unable to determine the device handle", Outcome.INFRA),
    _row(r"(?i)address already in use|EADDRINUSE", Outcome.INFRA),  # another job's port: the next attempt may have it
    _row(r"(?i)no route to host|network is unreachable|NET/(?:IB|OFI) ?: .*(?:error|failed)", Outcome.INFRA),
    _row(r"Name or service not known|failure in name resolution", Outcome.INFRA, None, Weight.FAULT),
    _row(
        r"srun: error: (?:Task launch for|Unable to (?:create step|contact|confirm))|Invalid job credential",
        Outcome.INFRA,
    ),
    # ---- the program's own faults
    _row(r"device-side assert|Assertion `.{1,200}` failed", Outcome.CRASHED, None, Weight.FAULT),
    _row(
        r"illegal (?:memory access|instruction)|misaligned address|unspecified launch failure",
        Outcome.CRASHED,
        None,
        Weight.FAULT,
    ),
    _row(r"\A(?:Cuda|HIP) failure (?:\d+ )?'|Segmentation fault\b", Outcome.CRASHED, None, Weight.FAULT),
    _row(
        r"(?i)(?<![a-z])(?<!best.)(?<!best.val.)loss\b(?: is| value| became|tensor|[:='\"\s|\[(]){0,12}"
        r"(?:nan|inf|infinity)\b|found nan in|(?:nan|non-finite) loss\b|loss scale already at minimum|"
        r"minimum loss scale reached",
        Outcome.DIVERGED,
        None,
        Weight.FAULT,
    ),
    # ---- what follows from another rank's end
    _row(
        r"Watchdog caught collective operation timeout|NCCL operations have failed or timed out",
        Outcome.TIMEOUT,
        "hang",
        Weight.CONSEQUENCE,
    ),
    _row(
        r"Timed out waiting \d+ ?ms for|DistStoreError: Timed out|Rendezvous\w*Timeout",
        Outcome.TIMEOUT,
        "hang",
        Weight.CONSEQUENCE,
    ),
    _row(
        r"watchdog got stuck|collective timeout from rank|client socket has timed out",
        Outcome.TIMEOUT,
        "hang",
        Weight.CONSEQUENCE,
    ),
    _row(
        r"NCCL communicator was aborted|remote process exited or there was a network",
        Outcome.CRASHED,
        None,
        Weight.CONSEQUENCE,
    ),
    _row(r"(?i)connection (?:closed|reset|refused|was closed)|Broken pipe", Outcome.CRASHED, None, Weight.CONSEQUENCE),
    # ended by a signal, and not said by whom
    _row(
        r"exitcode\s*: -(?:9|15)\b|exit code (?:137|143)\b|death signal|SignalException",
        Outcome.UNKNOWN,
        None,
        Weight.CONSEQUENCE,
    ),
    _row(
        r"\AKilled\Z|srun: error: .*: (?:Killed|Terminated)\b|killed by signal: (?:Killed|Terminated)|"
        r"SIGKILL\) received|SIGNAL: 9\b|line \d+: +\d+ (?:Killed|Terminated)\b",
        Outcome.UNKNOWN,
        None,
        Weight.CONSEQUENCE,
    ),
    _row(
        r"DistBackendError|DistNetworkError|ncclUnhandledCudaError|ncclSystemError|ncclRemoteError",
        Outcome.CRASHED,
        None,
        Weight.CONSEQUENCE,
    ),
    _row(r"Exited with exit code [1-9]|exited unexpectedly", Outcome.CRASHED, None, Weight.CONSEQUENCE),
    _row(r"ChildFailedError|\(core dumped\)|\AAborted\Z|\bSIGABRT\b", Outcome.CRASHED, None, Weight.ECHO),
)

# fmt: off
#: A line without one of these (in lower case) is in no row and names no error: most of a long log.
_STEMS = (
    "error", "exception", "exit", "fail", "memory", "oom", "out_of_me", "kill", "cancelled", "exceeded",
    "time limit", "timelimit", "timed out", "timeout", "runlimit", "memlimit", "preempt", "requeue", "usage:",
    "xid", "bus error", "sigbus", "shm", "ecc", "nvlink", "busy", "no cuda", "is lost", "duplicate", "quota",
    "stale", "no space", "connect", "broken pipe", "resource", "assert", "misaligned", "illegal", "signal",
    "compil", "already in use", "route", "peak", "max_ca", "driver", "not found", "no such", "option", "flag",
    "struct", "interrupt", "unsupported", "shutdown", "read-only", "unknown", "alloc", "terminated", "reachable",
    "thread", "fatal", "abort", "dumped", "stuck", "segment", "rank  ", "initialized", "minimum", "service not",
    "resolution", "network", "root cause", "missing", "invalid", "argument", "no kernel", "fallen off", "too much",
    "too many", "too old", "register", "smem", "shared memory", "exceeds", "triton", "container", "prolog", "epilog",
    "spank", "slurm_script", "unavailable", "in use", "insufficient", "handle", "state:",
)
# fmt: on
_NO_NUMBER = re.compile(r"\b(?:nan|inf|infinity)\b")


def may_speak(lowered: str) -> bool:
    """Whether a line, in lower case, can be in a row or name an error. Quick: nearly every line of a log cannot."""
    for stem in _STEMS:
        if stem in lowered:
            return True
    return ("nan" in lowered or "inf" in lowered) and _NO_NUMBER.search(lowered) is not None


#: Words with which a program says that it went on.
HANDLED = re.compile(
    r"(?i)\b(?:re-?try(?:ing)?(?! (?:count|limit|exc))|try(?:ing)? again|skipp(?:ed|ing)|handled|recover(?:ed|ing)|"
    r"f(?:a|e)ll(?:ing|s)? ?back|reducing(?! block sizes?|.{0,60}may help)|halving|ignor(?:ed|ing)|"
    r"(?:will )?continu(?:e|ing)|non-fatal)\b"
)
#: A sample of the training data, or a line of source in a traceback, speaks of errors that are not this run's.
QUOTED = re.compile(
    r"(?i)(?:\b|_)(?:text|prompt|content|completion|sample|generat(?:ed|ion)|answer|question|instruction|document|example|"
    r"input|target|decoded|response)s?(?:\[\d{1,9}\]|\s?#?\d{1,9})?[\"']?\s?[:=>]{1,2}\s?(?:\[?\s?[bru]?[\"'`“«]|>)"
)
SOURCE = re.compile(
    r"(?:raise|if|elif|except|assert|return|print|warnings\.|logger\.|logging\.|with|for|#|//|>>>)(?:\b|\(|\s)"
)
