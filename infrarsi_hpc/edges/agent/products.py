"""Which floating-point products a stretch of a program really runs, and which of them are products with weights.

Counted at torch's dispatcher, where every operator passes however the program writes it, by torch's own formulas
(`torch.utils.flop_counter`) and those that it lacks. A product is one with weights where one operand is a parameter, or
was made of parameters alone (a view, cast, stack, reshape or any function of them), and the other was not.

Loaded by path beside the probe, with the workload's own torch.

Covers: products written as any of torch's operators, as a broadcast multiplication with a sum, or as a custom operator
whose formula the contract declares. What has no formula is named, and so are kernels that fill memory behind the
dispatcher's back and replayed CUDA graphs: where something is named, a smaller count proves nothing.
Does not cover: values computed by other libraries (numpy) that come in as tensors made outside.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

#: Namespaces of operators whose arithmetic is known: without a formula they do no products, see `_may_hide_a_product`.
_KNOWN_NAMESPACES = frozenset(
    ["aten", "prims", "prim", "c10d", "_c10d_functional", "c10d_functional", "fsdp", "profiler", "rngprims", "streams"]
)
#: Operators that take matrices of weights beside activations and do not multiply them.
_NO_PRODUCT = re.compile(
    r"cat|concat|stack|where|(_unsafe_)?(index|masked_index)(_put|_add|_copy|_fill|_reduce)?_?|.*scatter.*|copy_?|"
    r"masked_.*|.*embedding.*|.*norm.*|.*loss.*|_foreach_.*|set_|_local_scalar_dense|equal|allclose|pad|constant_pad_nd"
)
#: Operators whose result has the shape of what they are given and not its values.
_FACTORY = re.compile(r"(empty|new_|zeros|ones|full|rand|bernoulli|normal|uniform|exponential).*")
_EMPTY = re.compile(r"(new_)?empty(_like|_strided|_permuted|_quantized)?")
#: Where an operator's first factor stands, if not at the front.
_FIRST_FACTOR = {"addmm": 1, "baddbmm": 1, "addbmm": 1, "addmv": 1, "_addmm_activation": 1}
BEHIND = "(a kernel that torch's dispatcher does not see)"
REPLAYED = "(a replayed CUDA graph)"


def count_products(torch: Any, declared: Mapping[str, Mapping[str, Any]]) -> Any:
    """A dispatch mode with `begin`, `end` and what was counted.

    `declared` has formulas of custom operators, `{"library::name": {"arguments": ["th", "fh"], "products": ["thf"]}}`:
    a letter is a size, as in Einstein's notation, and a product of sizes t, h and f takes 2 t h f operations.
    """
    from torch._subclasses import FakeTensor
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

    # taken before the program runs: what it registers itself is its own word
    formulas = _formulas(torch)
    by_contract = {name: _declared(torch, d["arguments"], d["products"]) for name, d in declared.items()}
    is_composite: dict[Any, bool] = {}

    class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
        supports_higher_order_operators = True

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.weight_flops = self.other_flops = 0.0
            self.num_tokens = 0
            self.dtypes: set[str] = set()
            self.uncounted: Counter[str] = Counter()
            self.is_active = self.has_begun = self._is_entered = False
            self._parameters: dict[int, Any] = {}
            self._weights: dict[int, Any] = {}
            self._unwritten: dict[int, Any] = {}
            self._replay: Any = None
            self._stance: Any = None

        # ---- from when to when

        def begin(self, parameters: Sequence[Any]) -> None:
            """Count from here; `parameters` are the weights."""
            self.has_begun = self.is_active = True
            for parameter in parameters:
                for plain in _plain(torch, parameter):
                    self._mark(self._parameters, plain)
            self._watch_replays()
            if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
                # compiled code runs as it is written for these few passes: its fused kernels show no products, and what
                # must compile as one graph refuses to run under a dispatch mode
                self._stance = torch.compiler.set_stance("force_eager")
            self._is_entered = True
            self.__enter__()  # type: ignore[no-untyped-call]

        def end(self) -> None:
            """Count no further. A mode that the program has entered since stays undisturbed: asked again later."""
            if self.is_active:
                self.is_active = False
                self._parameters, self._weights, self._unwritten = {}, {}, {}
                if self._replay is not None:
                    torch.cuda.CUDAGraph.replay = self._replay
                if self._stance is not None:
                    self._stance.__exit__(None, None, None)
            if self._is_entered and _get_current_dispatch_mode() is self:
                self._is_entered = False
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

        def _watch_replays(self) -> None:
            graph = getattr(torch.cuda, "CUDAGraph", None)
            replay = getattr(graph, "replay", None)
            if graph is None or replay is None:
                return

            def replayed(itself: Any) -> Any:
                self.uncounted[REPLAYED] += 1
                return replay(itself)

            self._replay, graph.replay = replay, replayed

        # ---- every operator

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if not self.is_active:
                return func(*args, **kwargs)
            if any(hasattr(kind, "__tensor_flatten__") for kind in types):
                return NotImplemented  # tensors made of tensors take themselves apart first
            formula = formulas.get(getattr(func, "_overloadpacket", func)) or by_contract.get(_name(func))
            if formula is None:
                if func not in is_composite:
                    is_composite[func] = _is_composite(torch, func)
                if is_composite[func]:  # seen whole where no gradients are kept (inference mode)
                    with self:
                        result = func.decompose(*args, **kwargs)
                    if result is not NotImplemented:
                        return result
            result = func(*args, **kwargs)
            if any(t.is_meta or isinstance(t, FakeTensor) for t in _tensors(torch, (args, kwargs, result))):
                return result  # only shapes are worked out
            try:
                self._note(func, formula, args, kwargs, result)
            except Exception:  # whatever a tensor does not know of itself: what is not counted is said
                self.uncounted[_name(func)] += 1
            return result

        def _note(self, func: Any, formula: Any, args: Any, kwargs: Any, result: Any) -> None:
            reads, writes = _reads_and_writes(torch, func, args, kwargs)
            if not getattr(func, "is_view", False):
                for tensor in reads:
                    if (key := _storage(tensor)) in self._unwritten and tensor.numel():
                        self.uncounted[BEHIND] += 1
                        del self._unwritten[key]
            for tensor in writes:
                self._unwritten.pop(_storage(tensor), None)
            if formula is not None:
                self._count(func, formula, args, kwargs, result)
            elif not isinstance(func, torch._ops.OpOverload):
                self.uncounted[_name(func)] += 1
            else:
                self._follow(func, reads, writes, list(_tensors(torch, result)))

        def _count(self, func: Any, formula: Any, args: Any, kwargs: Any, result: Any) -> None:
            flops = float(formula(*args, **kwargs, out_val=result))
            name = _name(func)
            if name.startswith("aten::"):
                first = _FIRST_FACTOR.get(name.removeprefix("aten::"), 0)
                factors = list(_tensors(torch, args[first : first + 2]))
            else:
                factors = [t for t in _tensors(torch, args) if t.is_floating_point()]
            self.dtypes |= {str(factor.dtype).removeprefix("torch.") for factor in factors}
            self._add(flops, factors)

        def _add(self, flops: float, factors: Sequence[Any]) -> None:
            is_weight = [self._is_weight(factor) for factor in factors]
            if any(is_weight) and not all(is_weight):
                self.weight_flops += flops
            else:
                self.other_flops += flops

        def _follow(self, func: Any, reads: Sequence[Any], writes: Sequence[Any], results: Sequence[Any]) -> None:
            """What an operator without products does to the knowledge of who is a weight."""
            namespace, _, name = _name(func).partition("::")
            values = [t for t in reads if t.is_floating_point() and t.numel() > 1]
            if _EMPTY.fullmatch(name):
                for tensor in results:
                    if tensor.is_floating_point() and tensor.numel():
                        self._mark(self._unwritten, tensor)
                return
            is_of_weights = bool(values) and all(self._is_weight(t) for t in values) and not _FACTORY.fullmatch(name)
            if is_of_weights and any(not t.is_floating_point() and t.dtype != torch.bool for t in reads):
                # rows of a table are activations (an embedding), whole matrices of a stack are weights (experts)
                is_of_weights = max(t.dim() for t in values) >= 3
            if not getattr(func, "is_view", False):
                for tensor in writes:
                    if not _is_in_place(func):
                        self._set_weight(tensor, is_of_weights)
                    elif values and not is_of_weights:
                        self._set_weight(tensor, False)
                if is_of_weights:
                    for tensor in results:
                        self._mark(self._weights, tensor)
            if name.rstrip("_") == "mul" and len(values) == 2 and results:
                # (m, k, 1) times (1, k, n): a product whose sum comes next
                if results[0].numel() > max(t.numel() for t in values):
                    self._add(2.0 * results[0].numel(), values)
            elif namespace not in _KNOWN_NAMESPACES:
                if any(t.is_floating_point() for t in (*reads, *writes, *results)):
                    self.uncounted[_name(func)] += 1
            elif self._may_hide_a_product(func, name, values):
                self.uncounted[_name(func)] += 1

        def _may_hide_a_product(self, func: Any, name: str, values: Sequence[Any]) -> bool:
            """A matrix of weights and something else go in, and nothing tells that they are not multiplied."""
            if torch.Tag.pointwise in func.tags or _NO_PRODUCT.fullmatch(name) or getattr(func, "is_view", False):
                return False
            matrices = [t for t in values if self._is_weight(t) and sum(size > 1 for size in t.shape) >= 2]
            return bool(matrices) and not all(self._is_weight(t) for t in values)

        # ---- who is a weight

        def _is_weight(self, tensor: Any) -> bool:
            key = _storage(tensor)
            return key in self._parameters or key in self._weights

        def _set_weight(self, tensor: Any, is_weight: bool) -> None:
            if is_weight:
                self._mark(self._weights, tensor)
            else:
                self._weights.pop(_storage(tensor), None)

        def _mark(self, among: dict[int, Any], tensor: Any) -> None:
            key = _storage(tensor)
            if key >= 0:
                # the reference keeps the storage's number from being given to another, not its memory
                among[key] = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]

    return Products()


# ---- what operators say of themselves


def _name(func: Any) -> str:
    """`aten::mm`, without the overload."""
    return str(func.name() if callable(getattr(func, "name", None)) else func).partition(".")[0]


def _is_composite(torch: Any, func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )


def _is_in_place(func: Any) -> bool:
    """Whether what is written is also read: `add_`, but not `copy_` or `out=`."""
    name = func._schema.name.partition("::")[2]
    return bool(name.endswith("_")) and name != "copy_" and func.namespace == "aten"


def _reads_and_writes(torch: Any, func: Any, args: Any, kwargs: Any) -> tuple[list[Any], list[Any]]:
    """The tensors that go in, and those that an operator's schema says are written."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return list(_tensors(torch, (args, kwargs))), []
    reads: list[Any] = []
    writes: list[Any] = []
    for index, argument in enumerate(schema.arguments):
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        (writes if is_written else reads).extend(_tensors(torch, value))
    return reads, writes


def _tensors(torch: Any, value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(torch, item)
    elif isinstance(value, dict):
        yield from _tensors(torch, list(value.values()))


def _plain(torch: Any, value: Any) -> Iterator[Any]:
    """The tensors that a tensor is made of: its shards, say; itself if it is a plain one."""
    if hasattr(value, "__tensor_flatten__"):
        for name in value.__tensor_flatten__()[0]:
            yield from _plain(torch, getattr(value, name))
    elif isinstance(value, torch.Tensor):
        yield value


def _storage(tensor: Any) -> int:
    """A number that tensors share exactly if they share memory; -1 for kinds that have no plain memory."""
    with contextlib.suppress(NotImplementedError, RuntimeError):
        return int(tensor.untyped_storage()._cdata)
    return -1


# ---- formulas


def _formulas(torch: Any) -> dict[Any, Callable[..., float]]:
    """torch's own, and those that it lacks; by operator."""
    from torch.utils import flop_counter

    formulas: dict[Any, Callable[..., float]] = dict(flop_counter.flop_registry)
    own: dict[str, Callable[..., float]] = {
        "linear": lambda x, w, *_, **__: 2.0 * x.numel() * w.shape[0],
        "mv": lambda a, _x, **_: 2.0 * a.numel(),
        "addmv": lambda _y, a, _x, **_: 2.0 * a.numel(),
        "dot": lambda a, _b, **_: 2.0 * a.numel(),
        "vdot": lambda a, _b, **_: 2.0 * a.numel(),
        "addbmm": lambda _c, a, b, **_: 2.0 * a.numel() * b.shape[2],
        "_addmm_activation": lambda _c, a, b, **_: 2.0 * a.numel() * b.shape[1],
        "_int_mm": lambda a, b, **_: 2.0 * a.numel() * b.shape[1],
        "_grouped_mm": _grouped,
        "_scaled_grouped_mm": _grouped,
        "_scaled_dot_product_flash_attention_for_cpu": _attention,
        "_scaled_dot_product_fused_attention_overrideable": _attention,
    }
    for name, formula in own.items():
        packet = getattr(torch.ops.aten, name, None)  # versions differ in what they have
        if packet is not None:
            formulas.setdefault(packet, formula)
    return formulas


def _declared(torch: Any, arguments: Sequence[str], products: Sequence[str]) -> Callable[..., float]:
    """A formula from sizes by letter; leading dimensions without a letter belong to the first one."""

    def formula(*args: Any, out_val: Any, **kwargs: Any) -> float:
        del out_val
        sizes: dict[str, int] = {}
        for tensor, letters in zip(_tensors(torch, (args, kwargs)), arguments, strict=False):
            shape = list(tensor.shape)
            folded = len(shape) - len(letters) + 1
            if folded < 1:
                raise ValueError(f"{len(shape)} dimensions for {letters}")
            for letter, size in zip(letters, [math.prod(shape[:folded]), *shape[folded:]], strict=True):
                if sizes.setdefault(letter, size) != size:
                    raise ValueError(f"{letter} is {sizes[letter]} and {size}")
        return sum(2.0 * math.prod(sizes[letter] for letter in product) for product in products)

    return formula


def _grouped(a: Any, b: Any, *_: Any, **__: Any) -> float:
    """One product a group: whichever side is not stacked is cut by offsets that together cover it."""
    if a.dim() == 3 and b.dim() == 2:
        return float(2 * a.shape[1] * b.numel())
    return float(2 * a.numel() * b.shape[-1])


def _attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> float:
    """Scores and values, as if nothing were hidden by a mask: (batch, heads, length, width) each."""
    return float(2 * k.shape[-2] * (q.numel() + q[..., 0].numel() * v.shape[-1]))
