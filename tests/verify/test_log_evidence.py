"""The words of a log, one row a text: what it means, and whose it is among labels, other ranks and noise."""

# ruff: noqa: E501

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.verify.ending import classify_log
from infrarsi_hpc.verify.log_evidence import read_log
from infrarsi_hpc.verify.log_lines import MAX_LINE, lines_of, raw_lines, read_line


def oom(
    request: str = "2.00 GiB",
    total: str = "79.25 GiB",
    free: str = "1.06 GiB",
    allocated: str = "74.91 GiB",
    unallocated: str = "1.55 GiB",
    processes: str = "",
    allowed: str = "",
    pools: str = "",
    headline: str = "torch.OutOfMemoryError: CUDA",
    capacity: str = "capacity",
) -> str:
    return (
        f"{headline} out of memory. Tried to allocate {request}. GPU 0 has a total {capacity} of {total} of which {free} is "
        f"free. {processes}{allowed}Of the allocated memory {allocated} is allocated by PyTorch, {pools}and {unallocated} is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
    )


OURS = "Including non-PyTorch memory, this process has {} memory in use. "
OTHER = "Process {} has {} memory in use. "
POOLS = "with 1.20 GiB allocated in private pools (e.g., CUDA Graphs), "


def old(request: str, total: str, allocated: str, free: str, last: str, headline: str = "RuntimeError: CUDA") -> str:
    return (
        f"{headline} out of memory. Tried to allocate {request} (GPU 1; {total} total capacity; {allocated} already "
        f"allocated; {free} free; {last})"
    )


#: text, label, bound in GiB. What a reader of the headline alone would say stands in the comment.
ALLOCATORS = [
    ("2.x", oom(), "device_oom/torch", 76.91),
    ("2.1, with its slip of the pen", oom(capacity="capacty"), "device_oom/torch", 76.91),
    ("2.x, own process", oom(processes=OURS.format("78.17 GiB")), "device_oom/torch", 76.91),
    ("torch.cuda's error", oom(headline="torch.cuda.OutOfMemoryError: CUDA"), "device_oom/torch", 76.91),
    ("a runtime error", oom(headline="RuntimeError: CUDA"), "device_oom/torch", 76.91),
    ("private pools count as allocated", oom(pools=POOLS), "device_oom/torch", 76.91),
    # naive: 44 + 30 + 2; what is reserved and idle is no need
    ("much reserved and idle", oom(allocated="44.00 GiB", unallocated="30.00 GiB"), "device_oom/torch", 46.0),
    ("hip", oom(headline="torch.OutOfMemoryError: HIP"), "device_oom/hip", 76.91),
    ("xpu", oom(headline="torch.OutOfMemoryError: XPU"), "device_oom/torch", 76.91),
    ("inside a compiled graph", "torch._inductor.exc.InductorError: " + oom(), "device_oom/torch", 76.91),
    (
        "mps",
        "RuntimeError: MPS backend out of memory (MPS allocated: 17.50 GB, other allocations: 204.84 MB, max allowed: "
        "18.13 GB). Tried to allocate 1.00 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable",
        "device_oom/torch",
        18.5,
    ),
    ("1.x", old("1.50 GiB", "39.59 GiB", "36.10 GiB", "812.19 MiB", "37.60 GiB reserved in total by PyTorch"), "device_oom/torch", 37.6),
    ("1.0, cached", old("1.50 GiB", "39.59 GiB", "36.10 GiB", "812.19 MiB", "1.40 GiB cached"), "device_oom/torch", 37.6),
    ("1.x, sizes in bytes", old("512 bytes", "1.00 GiB", "1.00 GiB", "0 bytes", "1.00 GiB reserved in total by PyTorch"), "device_oom/torch", 1 + 2**-21),
    # a cap
    ("a cap", oom("2.00 MiB", free="60.10 GiB", allocated="15.98 GiB", unallocated="12.00 MiB", allowed="16.00 GiB allowed; "), "device_oom/fraction_cap", 16.0),
    ("a cap and a large request", oom("8.00 GiB", free="60.10 GiB", allocated="12.00 GiB", allowed="16.00 GiB allowed; "), "device_oom/fraction_cap", 16.0),
    ("1.x, a cap", old("1.00 GiB", "39.59 GiB", "7.90 GiB", "30.00 GiB", "8.00 GiB allowed; 7.95 GiB reserved in total by PyTorch"), "device_oom/fraction_cap", 8.0),
    ("a cap that was not met", oom(allowed="79.25 GiB allowed; "), "device_oom/torch", 76.91),
    # other processes; naive: device_oom at what we had
    ("a named one", oom(free="0.50 GiB", allocated="30.00 GiB", processes=OTHER.format(77, "45.00 GiB") + OURS.format("32.10 GiB")), "infra", None),
    ("two named ones", oom(free="0.50 GiB", allocated="30.00 GiB", processes=OURS.format("32.10 GiB") + OTHER.format(7, "20.00 GiB") + OTHER.format(8, "25.00 GiB")), "infra", None),
    ("inside a container", oom(free="0.50 GiB", allocated="30.00 GiB", processes=OTHER.format(77, "45.00 GiB") + OTHER.format(78, "32.10 GiB")), "infra", None),
    ("ourselves, seen from inside a container", oom(processes=OTHER.format(412, "78.17 GiB")), "device_oom/torch", 76.91),
    ("only the foreign one is listed", oom(free="0.50 GiB", allocated="3.00 GiB", unallocated="0.10 GiB", processes=OTHER.format(77, "74.00 GiB")), "infra", None),
    ("a desktop", oom(processes=OURS.format("77.90 GiB") + OTHER.format(9, "270.00 MiB")), "device_oom/torch", 76.91),
    ("one without which it would not fit either", oom("60.00 GiB", allocated="40.00 GiB", processes=OURS.format("42.00 GiB") + OTHER.format(9, "35.00 GiB")), "device_oom/torch", 100.0),
    ("one that nobody lists", oom(allocated="30.00 GiB"), "infra", None),
    ("1.x, one that nobody lists", old("2.00 GiB", "79.15 GiB", "20.00 GiB", "0.90 GiB", "21.00 GiB reserved in total by PyTorch"), "infra", None),
    ("0 bytes of our own", oom(processes=OURS.format("0 bytes")), "device_oom/torch", 76.91),
    # free memory above the request
    ("far more free", oom("2.00 MiB", free="50.00 GiB", allocated="20.00 GiB"), "infra", None),
    ("more free than there is", oom(free="84.98 GiB"), "infra", None),
    ("1.x, cached", old("12.00 MiB", "10.92 GiB", "9.10 MiB", "9.31 GiB", "4.00 MiB cached"), "infra", None),
    ("a few MiB free on a full card", oom("20.00 MiB", free="90.00 MiB", allocated="76.00 GiB"), "device_oom/torch", 76 + 20 / 1024),
]  # fmt: skip

TEXTS = [
    # ---- the device, without numbers
    ("RuntimeError: CUDA error: out of memory", "device_oom/no_number"),
    ("torch.AcceleratorError: CUDA error: out of memory", "device_oom/no_number"),
    ("RuntimeError: HIP error: out of memory", "device_oom/no_number"),
    ("RuntimeError: CUDA driver error: out of memory", "device_oom/no_number"),
    ("RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58", "device_oom/no_number"),
    ("THCudaCheck FAIL file=THCStorage.cu line=58 error=2 : out of memory", "device_oom/no_number"),
    ("RuntimeError: Triton Error [CUDA]: out of memory", "device_oom/no_number"),
    ("cudaMalloc failed: out of memory", "device_oom/no_number"),
    ("hipErrorOutOfMemory: cannot allocate", "device_oom/no_number"),
    ("failed call to cuInit: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "device_oom/no_number"),
    ("MemoryError: std::bad_alloc: CUDA error at: cuda.hpp: cudaErrorMemoryAllocation out of memory", "device_oom/no_number"),
    ("Error out of memory at line 380 in file /src/csrc/pythonInterface.c", "device_oom/no_number"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to", "device_oom/no_number"),
    ("tensorflow OOM when allocating tensor with shape[4096,4096] on GPU:0 by allocator GPU_0_bfc", "device_oom/no_number"),
    ("XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to load in-memory CUBIN: CUDA_ERROR_OUT_OF_MEMORY", "device_oom/no_number"),
    # ---- libraries
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "device_oom/lib_alloc"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "device_oom/lib_alloc"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "device_oom/lib_alloc"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "device_oom/lib_alloc"),
    ("cuDNN Frontend error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "device_oom/lib_alloc"),
    ("RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED", "device_oom/lib_alloc"),
    ("RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", "device_oom/lib_alloc"),
    ("RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", "device_oom/lib_alloc"),
    # ---- nccl
    ("g1:12:15 [0] alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'", "device_oom/nccl"),
    ("g1:12:15 [0] NCCL WARN HIP failure 'out of memory'", "device_oom/nccl"),
    ("Last error:\nFailed to CUDA calloc 6291456 bytes", "device_oom/nccl"),
    ("ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'", "device_oom/nccl"),
    ("ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 1 'invalid argument'", "crashed"),
    ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error", "crashed"),
    # ---- the host
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=700.0. Some of the step tasks have been OOM Killed.", "host_oom/cgroup"),
    ("slurmstepd-g002: error: Detected 3 oom_kill events in StepId=700.batch. Some", "host_oom/cgroup"),
    ("slurmstepd: error: Detected 2 oom-kill event(s) in step 701.batch cgroup. Some of your processes", "host_oom/cgroup"),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=701.batch cgroup.", "host_oom/cgroup"),
    ("srun: error: g002: task 3: Out Of Memory", "host_oom/cgroup"),
    ("slurmstepd: error: Exceeded job memory limit", "host_oom/cgroup"),
    ("slurmstepd: error: Job 701 exceeded memory limit (8391000 > 8388608), being killed", "host_oom/cgroup"),
    ("slurmstepd: error: Step 701.0 exceeded memory limit (8391000 > 8388608), being killed", "host_oom/cgroup"),
    ("slurmstepd: error: Exceeded step memory limit at some point.", "unknown"),  # the page cache counts too
    ("slurmstepd: error: Exceeded job memory limit at some point. Job may have been partially swapped out", "unknown"),
    ("slurmstepd: error: Exceeded step memory limit at some point.\nsrun: error: g002: task 3: Killed", "host_oom/cgroup"),
    # ---- the node could not begin
    ("slurmstepd: error: execve(): /tmp/slurmd/job88233/slurm_script: No such file or directory", "infra"),
    ("slurmstepd: error: execve(): /var/spool/slurmd/job7/slurm_script: No such file or directory", "infra"),
    ("slurmd[g1]: error: Could not open script /var/spool/job7/slurm_script: No such file or directory", "infra"),
    ("slurmstepd: error: execve(): python3: No such file or directory", "invalid/launch"),
    ("/var/spool/slurmd/job7/slurm_script: line 12: python3: command not found", "invalid/launch"),
    ("slurmstepd: error: container_p_join: open failed /scratch/88234/.active: No such file or directory", "infra"),
    ("slurmstepd: error: container_g_join failed: 88234", "infra"),
    ("slurmstepd: error: container_p_join: setns failed: /scratch/1/.ns: Invalid argument", "infra"),
    ("slurmstepd: error: job_container/tmpfs: _create_ns: mount failed", "infra"),
    ("slurmstepd: error: failed to create job's tmpfs", "infra"),
    ("slurmstepd: error: mkdir(/scratch/job7): No space left on device", "infra"),
    ("slurmd: error: Job 7 prolog failed with exit status 1", "infra"),
    ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "infra"),
    ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "infra"),
    ("cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable", "infra"),
    ("kernel: Memory cgroup out of memory: Killed process 77 (python) total-vm:90kB, anon-rss:80kB", "host_oom/cgroup"),
    ("Out of memory: Killed process 77 (python) total-vm:90kB, anon-rss:80kB", "host_oom/cgroup"),
    ("[12345.678901] python invoked oom-killer: gfp_mask=0xcc0", "host_oom/cgroup"),
    ("May  1 12:00:03 g002 kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)", "host_oom/cgroup"),
    ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "host_oom/cgroup"),
    ("State: OUT_OF_MEMORY (exit code 0)", "host_oom/cgroup"),
    ("RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 8589934592 bytes.", "host_oom/allocator"),
    ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 10. GiB for an array with shape (9,)", "host_oom/allocator"),
    ("OSError: [Errno 12] Cannot allocate memory", "host_oom/allocator"),
    ("terminate called after throwing an instance of 'std::bad_alloc'", "host_oom/allocator"),
    # ---- shared memory
    ("RuntimeError: DataLoader worker (pid 5) is killed by signal: Bus error. It is possible that", "host_oom/shm"),
    ("srun: error: g1: task 0: Bus error (core dumped)", "host_oom/shm"),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/torch_1'", "host_oom/shm"),
    ("RuntimeError: unable to write to file </torch_1_2_3>: No space left on device (28)", "host_oom/shm"),
    ("RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode: No space left on device", "host_oom/shm"),
    ("NCCL WARN Error: failed to extend /dev/shm/nccl-Ab1 to 9637892 bytes", "host_oom/shm"),
    ("g1 kernel: pcieport 0000:00: PCIe Bus Error: severity=Corrected", "unknown"),
    ("It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.", "host_oom/shm"),
    # ---- on-chip memory of a generated kernel: neither the host's nor the device's
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.", "invalid/kernel_resources"),
    ("OutOfMemoryError: out of resource: triton_mm Required: 131072 Hardware limit:101376 Reducing block sizes", "invalid/kernel_resources"),
    ("torch._inductor.exc.InductorError: RuntimeError: No valid triton configs. OutOfMemoryError: out of resource: triton_tem", "invalid/kernel_resources"),
    ("ptxas error   : Entry function 'fused' uses too much shared data (0x18000 bytes, 0xc000 max)", "invalid/kernel_resources"),
    ("RuntimeError: CUDA error: too many resources requested for launch", "invalid/kernel_resources"),
    ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "invalid/kernel_resources"),
    ("error: local memory (73728) exceeds limit (65536) in function 'fused'", "invalid/kernel_resources"),
    ("RuntimeError: kernel needs 233472 bytes of shared memory, which exceeds the 166912 available", "invalid/kernel_resources"),
    ("ValueError: shared memory of 200000 bytes exceeds the opt-in maximum per block", "invalid/kernel_resources"),
    ("RuntimeError: 300 registers exceed the hardware maximum of 255 per thread", "invalid/kernel_resources"),
    # ---- stopped
    ("slurmstepd: error: *** JOB 704 ON g003 CANCELLED AT 2031-01-01T09:00:00 DUE TO TIME LIMIT ***", "timeout/limit"),
    ("slurmstepd-g003: error: *** STEP 704.0 ON g003 CANCELLED AT 2031-01-01T09:00:00 DUE TO TIME LIMIT ***", "timeout/limit"),
    ("slurmstepd: error: *** JOB 704 CANCELLED AT 2011-01-01T09:00:00 DUE TO TIME LIMIT ***", "timeout/limit"),
    ("=>> PBS: job killed: walltime 3605 exceeded limit 3600", "timeout/limit"),
    ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.", "timeout/limit"),
    ("submitit WARNING (2031-01-01 09:00:00,000) - Job has timed out. Ran 60 minutes out of requested 60", "timeout/limit"),
    ("slurmstepd: error: *** JOB 7 ON g1 CANCELLED AT 2031-01-01T09:00:00 DUE TO PREEMPTION ***", "infra"),
    ("slurmstepd: error: *** JOB 7 ON g1 CANCELLED AT 2031-01-01T09:00:00 DUE TO JOB REQUEUE ***", "infra"),
    ("slurmstepd: error: *** JOB 7 ON g1 CANCELLED AT 2031-01-01T09:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG", "infra"),
    ("srun: error: Node failure on g003", "infra"),
    ("slurmstepd: error: *** JOB 7 ON g1 CANCELLED AT 2031-01-01T09:00:00 ***", "cancelled"),
    ("KeyboardInterrupt", "cancelled"),
    ("Killed", "unknown"),
    ("srun: error: g002: task 3: Killed", "unknown"),
    ("run.sh: line 12:  4711 Killed                  python train.py", "unknown"),
    ("[2031-01-01 09:00:00,000] torch.distributed.elastic: [ERROR] failed (exitcode: -9) local_rank: 1 (pid: 5)", "unknown"),
    ("RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed.", "unknown"),
    # ---- the node
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "infra"),
    ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "infra"),
    ("kernel: NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.", "infra"),
    ("kernel: NVRM: Xid (PCI:0000:17:00): 94, pid=1, Contained: SM (0x1)", "infra"),
    ("kernel: NVRM: Xid (PCI:0000:17:00): 31, pid=1, name=python, Ch 00000008, MMU Fault", "crashed"),
    ("RuntimeError: No CUDA GPUs are available", "infra"),
    ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "infra"),
    ("Failed to initialize NVML: Driver/library version mismatch", "infra"),
    ("RuntimeError: Found no NVIDIA driver on your system", "infra"),
    ("OSError: [Errno 122] Disk quota exceeded: '/home/a/x.pt'", "infra"),
    ("OSError: [Errno 116] Stale file handle", "infra"),
    ("cp: cannot stat 'x': Stale NFS file handle", "infra"),
    ("OSError: [Errno 5] Input/output error", "infra"),
    ("OSError: [Errno 108] Cannot send after transport endpoint shutdown", "infra"),
    ("torch.distributed.DistNetworkError: port: 29500, useIpv6: 0, error: EADDRINUSE, address already in use", "infra"),
    ("OSError: [Errno 98] Address already in use", "infra"),
    ("NCCL WARN NET/IB : Got completion from peer with error 12, transport retry counter exceeded", "infra"),
    ("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", "infra"),
    ("srun: error: Task launch for StepId=5.0 failed on node g1: Communication connection failure", "infra"),
    # ---- launch
    ("train.py: error: unrecognized arguments: --sequence-paralel", "invalid/launch"),
    ("usage: pretrain.py [-h]\npretrain.py: error: argument --bf16: not allowed with argument --fp16", "invalid/launch"),
    ("Error: No such option: --micro", "invalid/launch"),
    ("FATAL Flags parsing error: Unknown command line flag 'micro'", "invalid/launch"),
    ("ModuleNotFoundError: No module named 'apex'", "invalid/launch"),
    ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "invalid/launch"),
    ("RuntimeError: CUDA error: invalid device ordinal", "invalid/launch"),
    ("AssertionError: world size (6) is not divisible by tensor-model-parallel size (4)", "invalid/launch"),
    ("AssertionError: global batch size (12) is not divisible by micro batch size (8) times data parallel size", "invalid/launch"),
    ("ValueError: hidden_size must be divisible by num_heads", "invalid/launch"),
    ("ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000", "invalid/launch"),
    ("python: can't open file '/x/train.py': [Errno 2] No such file or directory", "invalid/launch"),
    ("slurmstepd: error: execve(): torchrun: No such file or directory", "invalid/launch"),
    # ---- compilers
    ("torch._inductor.exc.InductorError: CppCompileError: C++ compile error", "invalid/compile"),
    ("torch._dynamo.exc.Unsupported: call_method", "invalid/compile"),
    ("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:", "invalid/compile"),
    ("triton.compiler.errors.CompilationError: at 12:4:", "invalid/compile"),
    ("nvcc fatal   : Unsupported gpu architecture 'compute_90'", "invalid/compile"),
    ("ninja: build stopped: subcommand failed.", "invalid/compile"),
    ("RuntimeError: Error building extension 'fused_adam'", "invalid/compile"),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "invalid/compile"),
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 229376, Hardware limit: 101376", "invalid/kernel_resources"),
    ("RuntimeError: CUDA error: too many resources requested for launch", "invalid/kernel_resources"),
    ("ptxas error   : Entry function 'k' uses too much shared data (0x1c000 bytes, 0xc000 max)", "invalid/kernel_resources"),
    # ---- the program
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "crashed"),
    ("RuntimeError: CUDA error: device-side assert triggered", "crashed"),
    ("RuntimeError: CUDA error: unspecified launch failure", "crashed"),
    ("srun: error: g1: task 0: Segmentation fault (core dumped)", "crashed"),
    ("2031-01-01 09:00:00,123 - ERROR - RuntimeError: shapes do not match", "crashed"),
    ("Exception: the tokenizer has no vocabulary", "crashed"),
    ("RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.", "device_oom/no_number"),
    (" iteration  12/ 100 | lm loss: NAN | loss scale: 1.0 | number of skipped iterations:   1 |", "diverged"),
    ("step:12/500 train_loss:nan train_time:1ms", "diverged"),
    ("{'loss': nan, 'learning_rate': 1e-05}", "diverged"),
    ("Loss is nan, stopping training", "diverged"),
    ("AssertionError: Rank 3: found NaN in local grad norm in backward pass before data-parallel", "diverged"),
    ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", "diverged"),
    ("best val loss: inf", "unknown"),
    ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3) ran for 600010 milliseconds", "timeout/hang"),
    ("RuntimeError: [../gloo/unbound_buffer.cc] Timed out waiting 1800000ms for recv operation", "timeout/hang"),
    ("RuntimeError: [../gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:3", "crashed"),
    # ---- said, and yet no ending
    ("WARNING: CUDA out of memory handled, skipping batch", "unknown"),
    ("| WARNING: ran out of memory with exception: " + oom() + " Skipping batch", "unknown"),
    ("OOM caught, retrying with a smaller batch: " + oom(), "unknown"),
    ("num_alloc_retries: 3, num_ooms: 0", "unknown"),
    ("See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF", "unknown"),
    ("Connection refused, retrying in 5 s", "unknown"),
    ("OutOfResources: out of resource: shared memory, Required: 229376. Ignoring this choice.", "unknown"),
    ('{"text": "I get RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity"}', "unknown"),
    ("generated: 'srun: error: g002: task 3: Out Of Memory'", "unknown"),
    ("    except torch.cuda.OutOfMemoryError:", "unknown"),
    ('    raise RuntimeError("CUDA error: out of memory")', "unknown"),
    ("iteration 3 | lm loss: 2.31 | max memory: 12 GiB", "unknown"),
    ("", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "label", "bound_gib"), [row[1:] for row in ALLOCATORS], ids=[row[0] for row in ALLOCATORS]
)
def test_an_allocators_message_is_read_with_its_figures(text, label, bound_gib) -> None:
    ending = classify_log(text)
    assert ending.label == label, ending
    assert ending.bound_gib == (None if bound_gib is None else pytest.approx(bound_gib, abs=1e-6))


@pytest.mark.parametrize(("text", "label"), TEXTS, ids=[row[0][:60] for row in TEXTS])
def test_a_text_is_read_as_what_it_means(text, label) -> None:
    ending = classify_log(text)
    assert ending.label == label, ending
    assert ending.bound_gib is None


def test_infra_says_what_it_is_about() -> None:
    foreign = oom(
        free="0.50 GiB", allocated="30.00 GiB", processes=OTHER.format(77, "45.00 GiB") + OURS.format("32.10 GiB")
    )
    assert classify_log(foreign).evidence.startswith("foreign process, 45.00 GiB")
    assert classify_log(oom("2.00 MiB", free="50.00 GiB", allocated="20.00 GiB")).evidence.startswith("fragmentation")


# ---- whose it is

LABELS = [
    ("[rank3]: ", 3),
    ("[rank3]:", 3),
    ("[default3]:", 3),
    ("3: ", 3),
    ("[Rank 3] ", 3),
    ("[1,3]<stderr>:", 3),
    ("g003: ", None),
    ("gpu-07.cluster: [rank3]: ", 3),
    ("0: [default3]:", 3),
    ("2031-01-01 09:00:00,123 [rank3]: ", 3),
    ("[rank3]: 2031-01-01T09:00:00.123Z ", 3),
    ("[rank3]:[E501 12:00:01.123456789 Allocator.cpp:632] ", 3),
    ("E0501 12:00:01.123456 4711 trainer.py:12] [rank3]: ", 3),
    ("12:00:01 3: \x1b[31m", 3),
    ("[2031-01-01 09:00:00,123] [ERROR] ", None),
]


@pytest.mark.parametrize(("label", "rank"), LABELS)
def test_labels_and_times_name_the_rank_and_hide_nothing(label, rank) -> None:
    for text, outcome in ((oom(), "device_oom/torch"), ("Failed to CUDA calloc 6291456 bytes", "device_oom/nccl")):
        if "ERROR" in label and "calloc" in text:
            continue
        ending = classify_log("0: step 1\r\n" + label + text + "\r\n")
        assert (ending.label, ending.rank) == (outcome, rank)


def test_slurm_says_that_memory_ran_out_in_one_line_and_whose_in_another() -> None:
    text = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\nsrun: error: g002: tasks 3,5: Out Of Memory\n"
    assert classify_log(text).rank == 3


def test_torchrun_names_the_first_rank_to_fail() -> None:
    text = (
        oom()
        + "\nChildFailedError:\nFailures:\n  rank      : 2 (local_rank: 2)\nRoot Cause (first observed failure):\n"
        "[0]:\n  time      : 2031-01-01_09:00:00\n  rank      : 5 (local_rank: 1)\n  exitcode  : 1 (pid: 9)\n"
    )
    assert classify_log(text).rank == 5


WATCHDOG = (
    "[rank0]:[E501 12:10:01.5 P.cpp:6] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)\n"
)
PEER = "[rank1]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"
CHAINS = [
    ("watchdog, then the memory that caused it", WATCHDOG + "[rank3]: " + oom(), "device_oom/torch", 3),
    ("memory, watchdog, time limit", "[rank3]: " + oom() + "\n" + WATCHDOG + "*** JOB 7 ON g CANCELLED AT T DUE TO TIME LIMIT ***", "device_oom/torch", 3),
    ("a fault, then the time limit", "[rank2]: RuntimeError: CUDA error: an illegal memory access was encountered\n*** JOB 7 ON g CANCELLED AT T DUE TO TIME LIMIT ***", "crashed", 2),
    ("preempted, then broken", "*** JOB 7 ON g CANCELLED AT T DUE TO PREEMPTION ***\n" + PEER + "[rank1]: RuntimeError: CUDA error: unspecified launch failure", "infra", None),
    ("an exception, then srun ends the others", "2: KeyError: 'w'\n" + PEER + "slurmstepd: error: *** STEP 7.0 ON g CANCELLED AT 2031-01-01T09:00:00 ***\n", "crashed", 2),
    ("a lost peer and the rank that was lost", PEER + "[rank4]: KeyError: 'w'\n", "crashed", 4),
    ("a lost peer and the host's memory", PEER + "srun: error: g: task 6: Killed\nslurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", "host_oom/cgroup", None),
    ("a failed library on a device that an assertion broke", "Indexing.cu:1: block: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\nRuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED", "crashed", None),
    ("torchrun's summary of a killed rank", "ChildFailedError:\nRoot Cause (first observed failure):\n  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 1)\n  traceback : Signal 9 (SIGKILL) received by PID 1\n", "unknown", None),
    ("an exception, then a core file", "[rank1]: KeyError: 'w'\nAborted (core dumped)\n", "crashed", 1),
    ("a core file alone", "free(): invalid pointer\nAborted (core dumped)\n", "crashed", None),
    ("time limit, then what it broke", "*** JOB 7 ON g CANCELLED AT T DUE TO TIME LIMIT ***\n*** STEP 7.0 ON g CANCELLED AT T DUE TO TIME LIMIT ***\nsrun: error: g: tasks 0-3: Terminated\n[rank1]: KeyError: 'w'", "timeout/limit", None),
    ("a device that another held, then the others' end", "[rank4]: RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\ntorch.distributed.elastic.multiprocessing.api.SignalException: Process 293814 got signal: 15\n", "infra", 4),
    ("watchdog, then a size out of a buffer that was never filled", WATCHDOG + "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8388608.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 30.00 GiB is free.", "timeout/hang", 0),
    ("watchdog, then more than the host has", WATCHDOG + "[rank3]: RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 4611686018427387904 bytes.", "timeout/hang", 0),
    ("a size out of nowhere", "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8388608.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 30.00 GiB is free.", "crashed", 3),
    ("more than the card has, and no time-out before it", "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 30.00 GiB is free. Including non-PyTorch memory, this process has 49.00 GiB memory in use. Of the allocated memory 48.00 GiB is allocated by PyTorch, and 0.10 GiB is reserved by PyTorch but unallocated.", "device_oom/torch", 3),
    ("loaded all the same", "ModuleNotFoundError: No module named 'apex'\n[rank1]: " + oom(), "device_oom/torch", 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "label", "rank"), [row[1:] for row in CHAINS], ids=[row[0] for row in CHAINS])
def test_the_cause_counts_and_not_what_followed(text, label, rank) -> None:
    ending = classify_log(text)
    assert (ending.label, ending.rank) == (label, rank), ending


def test_times_decide_between_ranks_where_lines_have_them() -> None:
    late = "2031-01-01 09:00:07,500 [rank1]: OSError: [Errno 28] No space left on device\n"
    early = "2031-01-01 09:00:07,100 [rank3]: " + oom() + "\n"
    assert classify_log(late + early).rank == 3, "naive: the first line in the log, rank 1"
    assert classify_log(early + late).rank == 3


def test_of_several_ranks_the_first_is_named_and_the_greatest_need_is_the_bound() -> None:
    text = "[rank1]: " + oom() + "\n[rank2]: " + oom("6.00 GiB")
    ending = classify_log(text)
    assert (ending.rank, ending.bound_gib) == (1, pytest.approx(80.91))


PEAKS = [
    ("[Rank 4] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 4000.0 | reserved: 5000.0 | max reserved: 5120.0", 5.0),
    ("MA 0.50 GB         Max_MA 5.2 GB         CA 6.0 GB         Max_CA 7 GB", 7.0),
    ("[rank0]:step: 10  loss: 2.5  memory: 36.41GiB(38.3%)  tps: 1", 36.41),
    ("Peak memory usage: 12288.00MiB", 12.0),
    ("peak GPU memory reserved: 10.0 GB", 10e9 / 2**30),  # which GB is not said: the smaller
    ("memory: 0.5462", None),
]  # fmt: skip


@pytest.mark.parametrize(("line", "bound_gib"), PEAKS)
def test_without_figures_the_peak_that_was_logged_is_the_bound(line, bound_gib) -> None:
    ending = classify_log(line + "\nRuntimeError: CUDA error: out of memory\n")
    assert ending.label == "device_oom/no_number"
    assert ending.bound_gib == (None if bound_gib is None else pytest.approx(bound_gib))


def test_a_request_alone_is_a_bound_too() -> None:
    ending = classify_log(
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 85899345920 bytes."
    )
    assert (ending.label, ending.bound_gib) == ("device_oom/no_number", 80.0)


def test_a_message_wrapped_by_a_terminal_is_read_whole() -> None:
    text = oom()
    wrapped = "\n".join(f"[rank3]: {text[at : at + 70]}" for at in range(0, len(text), 70))
    assert classify_log(wrapped).rank == 3
    words: list[str] = [""]
    for word in text.split():
        words[-1:] = [f"{words[-1]} {word}".strip()] if len(words[-1]) < 60 else [words[-1], word]
    ending = classify_log("\n".join(f"[rank3]: {row}" for row in words))
    assert (ending.label, ending.rank, ending.bound_gib) == ("device_oom/torch", 3, pytest.approx(76.91))


def test_what_a_program_says_it_handled_is_kept_apart() -> None:
    log = read_log("WARNING: CUDA out of memory handled, skipping batch")
    assert (log.findings, [f.outcome for f in log.handled]) == ([], [Outcome.DEVICE_OOM])


# ---- whatever stands in a log


@given(st.text(max_size=400))
@settings(max_examples=200)
def test_no_text_is_too_strange(text) -> None:
    assert classify_log(text).outcome in Outcome
    assert classify_log(text.encode("utf-8", "surrogatepass").decode("latin-1")).outcome in Outcome
    list(lines_of(text))


@given(
    st.lists(
        st.lists(
            st.sampled_from(
                [
                    "out of memory",
                    "Tried to allocate",
                    "1.2.3 GiB",
                    "(GPU 2;",
                    "total capacity",
                    "[rank3]:",
                    "\x1b[31m",
                    "Error:",
                ]
            ),
            max_size=8,
        ).map(" ".join),
        max_size=6,
    ).map("\n".join)
)
@settings(max_examples=200)
def test_no_mixture_of_its_own_words_breaks_it(text) -> None:
    assert classify_log(text).outcome in Outcome


NOISE = st.lists(
    st.sampled_from(
        [
            "step 17 | loss 2.345 | 812 ms",
            "[rank1]: loading shard 3 of 12",
            "INFO: saved a checkpoint",
            "\x1b[32mepoch 1\x1b[0m  40%|####      | 4/10\r",
            "UserWarning: deprecated",
            "2031-01-01 08:59:59,000 [rank0]: tokens per second 12345",
            "\x00\ufffd\ufffd\x7f",
            "[rank0]: NCCL version 2.21.5+cuda12.4",
            "0: memory: see the documentation",
        ]
    ),
    max_size=30,
).map(lambda lines: "".join(line + "\n" for line in lines))
SURE = [row for row in ALLOCATORS if row[2] != "unknown"] + [("", text, label, None) for text, label in TEXTS]


@given(st.sampled_from(SURE), NOISE, NOISE)
@settings(max_examples=300)
def test_unrelated_lines_before_and_after_change_nothing(row, before, after) -> None:
    _, text, label, bound_gib = row
    ending = classify_log(before + text + "\n" + after)
    assert ending.label == label
    assert ending.bound_gib == (None if bound_gib is None else pytest.approx(bound_gib, abs=1e-6))


def test_an_error_is_found_inside_an_endless_line() -> None:
    for before in (10, MAX_LINE - 100, 5 * MAX_LINE + 17):
        ending = classify_log("[rank3]: " + "x" * before + " " + oom() + " " + "y" * 50_000)
        assert (ending.label, ending.rank) == ("device_oom/torch", 3)
        assert "out of memory" in ending.evidence
        assert len(ending.evidence) <= 400
    pieces = [line.text for raw in raw_lines("z" * 100_000) for line in read_line(raw)]
    assert max(map(len, pieces)) <= MAX_LINE


HARD = [
    "srun: error: " * 2,
    "loss : ' " * 2,
    "Out of memory Tried to allocate ",
    "a.A" * 5,
    "1 GiB allowed ",
    "error\n",
    "[rank1]:" * 3,
]


@pytest.mark.parametrize("piece", HARD)
def test_time_grows_with_length_alone(piece) -> None:
    def seconds(num_chars: int) -> float:
        text = piece * (num_chars // len(piece))
        taken = []
        for _ in range(3):  # the best of three: what else the machine does only adds
            start = time.process_time()
            classify_log(text)
            taken.append(time.process_time() - start)
        return min(taken)

    short, long = max(seconds(100_000), 0.02), seconds(800_000)
    assert long < 40 * short, "naive patterns would take 64 times as long"
