"""Honest ways to write the same work are counted as the same work; work that is left out is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from infrarsi_hpc.edges.agent.products import BEHIND, count_products  # noqa: E402

pytestmark = pytest.mark.training

T, H, O, VOCABULARY, HEADS, EXPERTS = 12, 16, 24, 32, 4, 4  # noqa: E741
LINEAR = 2.0 * T * H * O


def counted(parameters: Any, run: Callable[[], Any], declared: dict[str, Any] | None = None) -> Any:
    counter = count_products(torch, declared or {})
    counter.begin(list(parameters))
    try:
        run()
    finally:
        counter.end()
    return counter


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# ---- a linear layer

#: x (T, H) times w (O, H) transposed, plus b (O).
LINEARS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "F.linear": lambda x, w, b: F.linear(x, w, b),
    "matmul": lambda x, w, b: x @ w.T + b,
    "mm": lambda x, w, b: torch.mm(x, w.t()) + b,
    "addmm": lambda x, w, b: torch.addmm(b, x, w.t()),
    "einsum": lambda x, w, b: torch.einsum("th,oh->to", x, w) + b,
    "einsum, heads apart": lambda x, w, b: torch.einsum("th,nkh->tnk", x, w.view(4, -1, H)).flatten(1) + b,
    "tensordot": lambda x, w, b: torch.tensordot(x, w, dims=([1], [1])) + b,
    "inner": lambda x, w, b: torch.inner(x, w) + b,
    "transposed": lambda x, w, b: (w @ x.T).T + b,
    "a convolution of width one": lambda x, w, b: F.conv1d(x.T[None], w[:, :, None], b)[0].T,
    "a 1 x 1 convolution": lambda x, w, b: F.conv2d(x.T[None, :, :, None], w[:, :, None, None], b)[0, :, :, 0].T,
    "bmm over stacked weights": lambda x, w, b: (
        torch.bmm(x.expand(3, T, H), torch.stack(w.chunk(3)).transpose(1, 2)).transpose(0, 1).flatten(1) + b
    ),
    "baddbmm over stacked weights": lambda x, w, b: (
        torch.baddbmm(b.view(3, 1, -1), x.expand(3, T, H), torch.stack(w.chunk(3)).transpose(1, 2))
        .transpose(0, 1)
        .flatten(1)
    ),
    "addbmm over slices of the width": lambda x, w, b: torch.addbmm(
        b.expand(T, O), torch.stack(x.chunk(2, 1)), torch.stack(w.chunk(2, 1)).transpose(1, 2)
    ),
    "row by row": lambda x, w, b: torch.stack([torch.mv(w, row) for row in x]) + b,
    "row by row, with the bias": lambda x, w, b: torch.stack([torch.addmv(b, w, row) for row in x]),
    "output by output": lambda x, w, b: torch.stack([x @ column for column in w.unbind()], 1) + b,
    "in chunks": lambda x, w, b: torch.cat([F.linear(part, w, b) for part in x.chunk(5)]),
    "a cast copy of the weight": lambda x, w, b: F.linear(x.double(), w.double(), b.double()),
    "under autocast": lambda x, w, b: _autocast(x, w, b),
    "a contiguous transposed copy": lambda x, w, b: x @ w.t().contiguous() + b,
    "weights copied into one buffer": lambda x, w, b: _buffered(x, w, b),
    "normalised weights": lambda x, w, b: F.linear(x, w / w.norm(dim=1, keepdim=True), b),
    "vmap": lambda x, w, b: torch.vmap(lambda row: w @ row + b)(x),
    "multiplied and summed": lambda x, w, b: (x[:, None, :] * w).sum(-1) + b,
    "checkpointed": lambda x, w, b: checkpoint(F.linear, x, w, b, use_reentrant=False),
    "checkpointed the old way": lambda x, w, b: checkpoint(F.linear, x.requires_grad_(), w, b, use_reentrant=True),
    "an own function": lambda x, w, b: _Own.apply(x, w) + b,
    "grouped": lambda x, w, b: _grouped(x, w) + b,
}


def _autocast(x: Any, w: Any, b: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(x, w, b)


def _buffered(x: Any, w: Any, b: Any) -> Any:
    buffer = torch.empty(O, H)
    for into, part in zip(buffer.chunk(3), w.detach().chunk(3), strict=True):
        into.copy_(part)
    return F.linear(x, buffer, b)


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        out = torch.empty(x.shape[0], w.shape[0])
        torch.mm(x, w.t(), out=out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None


def _grouped(x: Any, w: Any) -> Any:
    ends = torch.tensor([4, 8, T], dtype=torch.int32)
    stacked = w.t().bfloat16().expand(3, H, O)
    return torch._grouped_mm(x.bfloat16(), stacked, offs=ends).float()


@pytest.mark.parametrize("write", LINEARS.values(), ids=LINEARS.keys())
def test_a_linear_layer_is_the_same_work_however_it_is_written(write: Callable[[Any, Any, Any], Any]) -> None:
    layer = nn.Linear(H, O)
    x = torch.randn(T, H)
    seen = counted(layer.parameters(), lambda: write(x, layer.weight, layer.bias))
    assert (seen.weight_flops, seen.other_flops, dict(seen.uncounted)) == (LINEAR, 0.0, {})


# ---- attention and the loss

SCORES_AND_VALUES = 2 * 2.0 * T * T * H


def _math(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def _in_blocks(q: Any, k: Any, v: Any) -> Any:
    return torch.cat([_math(part, k, v) for part in q.chunk(3, -2)], -2)


ATTENTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "scores kept": _math,
    "fused": F.scaled_dot_product_attention,
    "fused and causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "einsum": lambda q, k, v: torch.einsum(
        "bhqk,bhkd->bhqd", torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k), -1), v
    ),
    "baddbmm": lambda q, k, v: torch.bmm(
        torch.softmax(torch.baddbmm(torch.zeros(HEADS, T, T), q[0], k[0].transpose(1, 2)), -1), v[0]
    ),
    "in blocks of queries": _in_blocks,
    "head by head": lambda q, k, v: torch.stack([_math(q[:, h], k[:, h], v[:, h]) for h in range(HEADS)], 1),
}


@pytest.mark.parametrize("attend", ATTENTIONS.values(), ids=ATTENTIONS.keys())
def test_attention_is_no_product_with_weights_and_the_same_work(attend: Callable[[Any, Any, Any], Any]) -> None:
    joint = nn.Linear(H, 3 * H, bias=False)
    x = torch.randn(1, T, H)

    def run() -> None:
        attend(*(part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in joint(x).chunk(3, -1)))

    seen = counted(joint.parameters(), run)
    assert (seen.weight_flops, seen.other_flops, dict(seen.uncounted)) == (3 * 2.0 * T * H * H, SCORES_AND_VALUES, {})


def test_a_table_of_embeddings_gives_activations_and_its_transpose_is_a_weight() -> None:
    table = nn.Embedding(VOCABULARY, H)
    tokens = torch.randint(VOCABULARY, (1, T))

    def run(look_up: Callable[[Any], Any]) -> Any:
        x = look_up(tokens)
        scores = x @ x.transpose(-2, -1)
        return F.cross_entropy(((scores @ x) @ table.weight.T).flatten(0, 1), tokens.flatten())

    for look_up in (table, lambda t: table.weight[t], lambda t: table.weight.index_select(0, t[0])[None]):
        seen = counted(table.parameters(), lambda look_up=look_up: run(look_up))
        assert (seen.weight_flops, seen.other_flops) == (2.0 * T * H * VOCABULARY, SCORES_AND_VALUES)
        assert not seen.uncounted


def test_a_loss_in_chunks_that_brings_the_last_layer_along_is_the_same_work() -> None:
    head = nn.Linear(H, VOCABULARY, bias=False)
    x, targets = torch.randn(T, H), torch.randint(VOCABULARY, (T,))

    def in_chunks() -> Any:
        parts = zip(x.chunk(4), targets.chunk(4), strict=True)
        return sum(
            checkpoint(lambda a, t: F.cross_entropy(head(a), t, reduction="sum"), a, t, use_reentrant=False)
            for a, t in parts
        )

    whole = counted(head.parameters(), lambda: F.cross_entropy(head(x), targets))
    assert counted(head.parameters(), in_chunks).weight_flops == whole.weight_flops == 2.0 * T * H * VOCABULARY


# ---- experts


def test_experts_are_the_same_work_one_by_one_gathered_or_grouped() -> None:
    experts = nn.Parameter(torch.randn(EXPERTS, H, O))
    x = torch.randn(T, H)
    chosen = torch.arange(T) % EXPERTS

    def one_by_one() -> None:
        for number in range(EXPERTS):
            x[chosen == number] @ experts[number]

    def gathered() -> None:
        torch.bmm(x[:, None, :], experts[chosen])

    def padded() -> None:
        torch.bmm(x[torch.argsort(chosen, stable=True)].view(EXPERTS, -1, H), experts)

    def grouped() -> None:
        ends = torch.bincount(chosen, minlength=EXPERTS).cumsum(0).int()
        order = torch.argsort(chosen, stable=True)
        torch._grouped_mm(x[order].bfloat16(), experts.bfloat16(), offs=ends)

    for run in (one_by_one, gathered, padded, grouped):
        seen = counted([experts], run)
        assert (seen.weight_flops, seen.other_flops, dict(seen.uncounted)) == (LINEAR, 0.0, {}), run.__name__
    half = counted([experts], lambda: torch.bmm(x[:6, None, :], experts[chosen[:6]]))
    assert half.weight_flops == LINEAR / 2


# ---- what is missing is missing, and what nobody can count is named


def test_less_work_is_less() -> None:
    layer = nn.Linear(H, O)
    x = torch.randn(T, H)
    assert counted(layer.parameters(), lambda: layer(x[: T // 2])).weight_flops == LINEAR / 2
    assert counted(layer.parameters(), lambda: F.linear(x, layer.weight[: O // 4])).weight_flops == LINEAR / 4
    padded = counted(layer.parameters(), lambda: x @ torch.randn(H, O))
    assert (padded.weight_flops, padded.other_flops) == (0.0, LINEAR), "naive: any product counts"
    own = counted(layer.parameters(), lambda: layer.weight @ layer.weight.T)
    assert own.weight_flops == 0.0, "weights among themselves are no work on tokens"


@pytest.fixture(scope="module")
def library() -> Any:
    """Operators of a program's own, as fused kernels register them."""
    made = torch.library.Library("infrarsi_test", "FRAGMENT")
    made.define("mlp(Tensor x, Tensor up, Tensor down) -> Tensor")
    made.define("copied(Tensor x, Tensor(a!) out) -> ()")
    made.impl("mlp", lambda x, up, down: (x @ up.T) @ down.T, "CPU")

    def copied(x: Any, out: Any) -> None:
        out.copy_(x)

    made.impl("copied", copied, "CPU")
    return made


MLP = {"infrarsi_test::mlp": {"arguments": ["th", "fh", "hf"], "products": ["thf", "tfh"]}}


def test_a_custom_operator_is_named_unless_the_contract_has_its_formula(library: Any) -> None:
    up, down = nn.Parameter(torch.randn(O, H)), nn.Parameter(torch.randn(H, O))
    x = torch.randn(2, T, H)

    def run() -> None:
        torch.ops.infrarsi_test.mlp(x, up, down)

    with torch.no_grad():
        unknown = counted([up, down], run)
        declared = counted([up, down], run, MLP)
        wrong = counted([up, down], run, {"infrarsi_test::mlp": {"arguments": ["thx"], "products": ["th"]}})
    assert unknown.weight_flops == 0.0
    assert list(unknown.uncounted) == ["infrarsi_test::mlp"]
    assert (declared.weight_flops, dict(declared.uncounted)) == (2 * 2 * LINEAR, {})
    assert wrong.weight_flops != declared.weight_flops

    def into_buffer() -> None:
        out = torch.empty(2, T, H)
        torch.ops.infrarsi_test.copied(x, out)
        out.relu()

    assert list(counted([], into_buffer).uncounted) == ["infrarsi_test::copied"], "its schema says what it writes"


def test_a_formula_that_does_not_fit_is_no_formula(library: Any) -> None:
    up, down = torch.randn(O, H), torch.randn(H, O)
    declared = {"infrarsi_test::mlp": {"arguments": ["th", "hf"], "products": ["thf"]}}
    seen = counted([up, down], lambda: torch.ops.infrarsi_test.mlp(torch.randn(T, H), up, down), declared)
    assert list(seen.uncounted) == ["infrarsi_test::mlp"]


def test_memory_that_a_kernel_fills_behind_the_dispatcher_is_named() -> None:
    layer = nn.Linear(H, O)
    x = torch.randn(T, H)

    def run() -> None:
        out = torch.empty(T, O)
        out.numpy()[:] = x.numpy() @ layer.weight.detach().numpy().T  # as a kernel that is launched by its pointer
        out.relu()

    seen = counted(layer.parameters(), run)
    assert list(seen.uncounted) == [BEHIND]
    filled = counted(layer.parameters(), lambda: torch.empty(T, O).normal_().relu())
    assert not filled.uncounted


def test_an_operator_that_takes_a_matrix_of_weights_and_has_no_formula_is_named() -> None:
    bilinear = nn.Bilinear(H, H, O)
    seen = counted(bilinear.parameters(), lambda: bilinear(torch.randn(T, H), torch.randn(T, H)))
    assert list(seen.uncounted) == ["aten::_trilinear"]


def test_everyday_operators_are_not_suspected() -> None:
    norm, table = nn.LayerNorm((T, H)), nn.Embedding(VOCABULARY, H)
    gain = nn.Parameter(torch.randn(T, H))
    tokens = torch.randint(VOCABULARY, (3, T))

    def run() -> None:
        x = norm(table(tokens)) * gain + torch.cat([gain[None], torch.randn(2, T, H)])
        x = F.dropout(F.gelu(x), 0.1)
        x = torch.where(x > 0, x, gain)
        x = x.index_put((torch.tensor([0]),), gain[None])
        F.cross_entropy(x.flatten(0, 1), tokens.flatten() % H)

    seen = counted([*norm.parameters(), *table.parameters(), gain], run)
    assert (seen.weight_flops, dict(seen.uncounted)) == (0.0, {})


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_is_counted_and_still_runs() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (torch.randn(1, HEADS, T, H // HEADS) for _ in range(3))
    seen = counted([], lambda: flex_attention(q, k, v))
    assert (seen.other_flops, dict(seen.uncounted)) == (SCORES_AND_VALUES, {})


def test_a_mode_of_the_programs_own_that_is_still_open_is_not_disturbed() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

    class Theirs(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    layer = nn.Linear(H, O)
    counter = count_products(torch, {})
    counter.begin(list(layer.parameters()))
    with Theirs() as theirs:
        layer(torch.randn(T, H))
        counter.end()
        assert _get_current_dispatch_mode() is theirs
        layer(torch.randn(T, H))
    counter.end()
    assert _get_current_dispatch_mode() is None
    assert counter.weight_flops == LINEAR


def test_a_compiled_layer_is_counted_as_it_is_written() -> None:
    layer = nn.Linear(H, O)
    compiled = torch.compile(layer, backend="eager")
    x = torch.randn(T, H)
    compiled(x)
    seen = counted(layer.parameters(), lambda: compiled(x))
    assert (seen.weight_flops, dict(seen.uncounted)) == (LINEAR, {})


# ---- weights that lie in pieces


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_weights_in_shards_are_still_the_weights(one_rank: Any) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    x = torch.randn(T, H)
    tensor_parallel = parallelize_module(nn.Linear(H, O), one_rank, ColwiseParallel())
    gathered = fully_shard(nn.Linear(H, O), mesh=one_rank)
    for layer in (tensor_parallel, gathered):
        seen = counted(layer.parameters(), lambda layer=layer: layer(x))
        assert (seen.weight_flops, seen.other_flops, dict(seen.uncounted)) == (LINEAR, 0.0, {})


def test_code_that_must_compile_as_one_graph_is_counted_too() -> None:
    layer = nn.Linear(H, O)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x = torch.randn(T, H)
    compiled(x)
    assert counted(layer.parameters(), lambda: compiled(x)).weight_flops == LINEAR
    compiled(x)  # and runs compiled again
