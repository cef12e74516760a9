"""What sits inside the workload's process: it reads torch's own hooks and reports over a private pipe.

Loaded before the program. It says when set-up ends (and waits there while the agent sets the memory limit), ends
each step with a mark that the agent stamps by its own clock, and sends evidence of what was really executed: tokens
and their hashes, loss, how far the weights moved, and the products of one step that the agent drew, from its first
forward pass to its first backward pass (products.py), so that a loss that brings its own last layer is counted too.

Covers: programs that train a torch module whose first forward argument is the token tensor, with torch optimizers.
Does not cover: a program that rewrites this module's hooks in memory; promotion therefore rests on outside evidence.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import sys
from typing import Any

SAMPLE_SIZE = 4096
#: Files in memory that are named; who opens more has been seen already.
MAX_OPENED = 1000
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def install(out_fd: int, in_fd: int, options: dict[str, Any]) -> None:
    """Set the hooks.

    `options`: length, evidence_step, profile (bool), weights (path or null), rank, device, operators (formulas).
    """
    import torch

    Probe(torch, out_fd, in_fd, options).attach()


class Probe:
    """The hooks' state in one rank."""

    def __init__(self, torch: Any, out_fd: int, in_fd: int, options: dict[str, Any]) -> None:
        self.torch, self._out, self._in, self.options = torch, out_fd, in_fd, options
        self._pid = os.getpid()
        self.root: Any = None
        self.step = 0
        self._tokens = 0
        self._token_hash = 0
        self._losses: list[Any] = []
        self._parameters: list[Any] = []
        self._sample: Any = None
        self._pointers: list[int] = []
        self._views: list[Any] = []
        self._depth = 0
        self._optimizer: Any = None
        self._first_hook: Any = None
        # made before set-up ends, so that its own allocations do not lie between the program's
        self._products: Any = _beside("products").count_products(torch, options.get("operators") or {})
        self._profiler: Any = None
        self._spans: dict[str, Any] = {}
        self._opened: set[str] = set()

    # ---- wiring

    def attach(self) -> None:
        """Register torch's global hooks and wrap what computes gradients."""
        from torch.nn.modules import module
        from torch.optim import optimizer

        if self.options.get("memory_mounts"):
            sys.addaudithook(self._audited)
        self._first_hook = module.register_module_forward_pre_hook(self._first_forward)
        optimizer.register_optimizer_step_pre_hook(self._before_update)
        optimizer.register_optimizer_step_post_hook(self._after_update)
        backward = self.torch.autograd.backward

        def recorded(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            for tensor in (tensors,) if isinstance(tensors, self.torch.Tensor) else tensors:
                if tensor.numel() == 1:
                    self._losses.append(tensor.detach().clone())  # cloned: some frameworks scale the loss in place
            self._products.end()
            self._enter("backward")
            try:
                return backward(tensors, *args, **kwargs)
            finally:
                self._leave("backward")

        grad = self.torch.autograd.grad

        def ended(*args: Any, **kwargs: Any) -> Any:
            self._products.end()
            return grad(*args, **kwargs)

        self.torch.autograd.backward, self.torch.autograd.grad = recorded, ended

    def _audited(self, event: str, args: Any) -> None:
        """Name every file in a memory file system that the program opens to write (PEP 578)."""
        if event != "open" or not isinstance(args[0], str | bytes) or not (args[2] or 0) & _WRITES:
            return
        path = os.path.realpath(os.fsdecode(args[0]))
        is_in_memory = path.startswith(tuple(f"{mount.rstrip('/')}/" for mount in self.options["memory_mounts"]))
        if is_in_memory and path not in self._opened and len(self._opened) < MAX_OPENED:
            self._opened.add(path)
            self._say(event="file", path=path)

    def _say(self, **message: Any) -> None:
        if os.getpid() == self._pid:  # a forked data worker must not speak for its rank
            data = json.dumps(message).encode() + b"\n"
            while data:
                data = data[os.write(self._out, data) :]

    # ---- set-up ends at the first forward pass

    def _first_forward(self, root: Any, args: Any) -> None:
        if not any(_is_tokens(self.torch, value) for value in args):
            return  # a part of the model, called on its own while it is set up (to compile it, say)
        self._first_hook.remove()
        self.root = root
        named = [(_bare(name), parameter) for name, parameter in root.named_parameters()]
        self._parameters = [parameter for _, parameter in named]
        shapes = sorted((name, list(p.shape), str(p.dtype)) for name, p in named)
        digest = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()
        self._say(event="setup", parameters=sum(p.numel() for p in self._parameters), digest=digest)
        os.read(self._in, 1)
        if self.options["device"] == "cuda":
            limit = self.options.get("memory_gib")
            if limit is not None:
                total = self.torch.cuda.get_device_properties(0).total_memory
                self.torch.cuda.set_per_process_memory_fraction(min(1.0, limit * 2**30 / total))
            self.torch.cuda.reset_peak_memory_stats()
        root.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        root.register_forward_hook(self._after_forward, always_call=True)
        self._sample = self._look_at_weights()
        self._before_forward(root, args, {})  # hooks set during a call see the next one only

    # ---- forward

    def _before_forward(self, module: Any, args: Any, kwargs: Any) -> None:
        if not (module.training and self.torch.is_grad_enabled()):
            return
        tokens = next((a for a in (*args, *kwargs.values()) if _is_tokens(self.torch, a)), None)
        if tokens is not None:
            self._tokens += tokens.numel()
            rows = tokens.detach().to("cpu", self.torch.int64).contiguous().reshape(tokens.shape[0], -1).numpy()
            for row in rows:
                value = int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little")
                self._token_hash = (self._token_hash + value) % 2**64
            if not self._products.has_begun and self.step + 1 == self.options["evidence_step"]:
                self._products.begin(self._parameters)
            if self._products.is_active:
                self._products.num_tokens += tokens.numel()
        if self.options.get("profile"):
            self._profile()
        self._enter("forward")

    def _after_forward(self, module: Any, args: Any, output: Any) -> None:
        self._leave("forward")

    # ---- the optimizer's step ends a step

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._products.end()
        self._depth += 1
        if self._depth == 1:
            self._enter("optimizer")

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        self._leave("optimizer")
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is not self._optimizer:  # several optimizers a step: the first one seen marks it
            return
        if self.options["device"] == "cuda":
            self.torch.cuda.synchronize()
        self.step += 1
        loss = float(sum(self._losses)) if self._losses else None
        sample = self._look_at_weights()
        update, moved = None, None
        if sample is not None and self._sample is not None and sample.numel() == self._sample.numel():
            change = sample - self._sample
            update = float(change.square().mean().sqrt())
            moved = float((change != 0).float().mean())
        self._sample = sample
        self._say(
            event="step",
            step=self.step,
            tokens=self._tokens,
            hash=self._token_hash,
            loss=loss if loss is None or math.isfinite(loss) else str(loss),
            update=update if update is None or math.isfinite(update) else None,
            moved=moved,
        )
        self._tokens, self._token_hash, self._losses = 0, 0, []
        if self.step == self.options["length"]:
            self._finish()

    def _look_at_weights(self) -> Any:
        """A fixed, evenly spread sample of all parameters, as one float tensor on the CPU."""
        torch = self.torch
        pointers = [p.data_ptr() for p in self._parameters]
        if pointers != self._pointers:
            total = sum(p.numel() for p in self._parameters)
            stride = max(1, total // SAMPLE_SIZE)
            self._views = [p.detach().reshape(-1)[:: min(stride, max(1, p.numel() // 4))] for p in self._parameters]
            self._pointers = pointers
        if not self._views:
            return None
        return torch.cat([v.float() for v in self._views]).cpu()

    def _finish(self) -> None:
        products = self._products
        message: dict[str, Any] = {"event": "end"}
        if products.num_tokens:
            message["products"] = {
                "weight_flops": products.weight_flops,
                "other_flops": products.other_flops,
                "tokens": products.num_tokens,
                "dtypes": sorted(products.dtypes),
                "uncounted": [name[:120] for name, _ in products.uncounted.most_common(20)],
            }
        if self.options["device"] == "cuda":
            message["reserved_bytes"] = self.torch.cuda.max_memory_reserved()
        if self._profiler is not None:
            message["phases"] = self._phases()
        self._say(**message)
        if self.options.get("weights") and self.options["rank"] == 0:
            state = {_bare(name): value.detach().cpu() for name, value in self.root.state_dict().items()}
            self.torch.save(state, self.options["weights"])
        self._say(event="saved")

    # ---- phases, in profiled runs alone

    def _profile(self) -> None:
        if self._profiler is None and self.step == 3:
            activities = [self.torch.profiler.ProfilerActivity.CPU]
            self._profiler = self.torch.profiler.profile(activities=activities)
            self._profiler.__enter__()

    def _enter(self, name: str) -> None:
        if self._profiler is not None:
            span = self.torch.profiler.record_function(f"infrarsi::{name}")
            span.__enter__()
            self._spans[name] = span

    def _leave(self, name: str) -> None:
        span = self._spans.pop(name, None)
        if span is not None:
            span.__exit__(None, None, None)

    def _phases(self) -> dict[str, float]:
        """Seconds a step by phase; `data` is what lies between the phases."""
        self._profiler.__exit__(None, None, None)
        seconds: dict[str, float] = {}
        communication = 0.0
        first, last = math.inf, 0.0
        for event in self._profiler.events():
            start, end = event.time_range.start, event.time_range.end
            if event.name.startswith("infrarsi::"):
                name = event.name.removeprefix("infrarsi::")
                seconds[name] = seconds.get(name, 0.0) + (end - start) / 1e6
                first, last = min(first, start), max(last, end)
            elif event.name.startswith(("gloo:", "nccl:")):
                communication += (end - start) / 1e6
        steps = max(1, self.step - 3)
        total = (last - first) / 1e6 if last else 0.0
        seconds["data"] = max(0.0, total - sum(seconds.values()))
        seconds["communication"] = communication
        return {name: value / steps for name, value in seconds.items()}


def _bare(name: str) -> str:
    """A parameter's name without the wrappers' prefixes (DistributedDataParallel, torch.compile)."""
    return ".".join(part for part in name.split(".") if part not in ("module", "_orig_mod"))


def _is_tokens(torch: Any, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() >= 1 and not value.dtype.is_floating_point


def _beside(name: str) -> Any:
    """A module of this folder, loaded by path as this one is: the workload's Python need not know infrarsi."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")  # noqa: PTH100, PTH118, PTH120
    spec = importlib.util.spec_from_file_location(f"infrarsi_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
