"""Verdicts: every cheat is one row, with what it shows and the reason expected; and honest work is believed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.outcome import Ending, Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.domain.trial import PatchFile, Run, StepEvidence
from infrarsi_hpc.domain.verdict import Belief, Verdict
from infrarsi_hpc.verify.checks import judge
from infrarsi_hpc.verify.ending import classify
from infrarsi_hpc.verify.precision import lowest, short_name
from infrarsi_hpc.verify.readings import read
from infrarsi_hpc.verify.reference import reference_of_pair, reference_of_seed

Judge = Callable[..., Verdict]


@pytest.fixture
def verdict_of(contract, doctor, make_result, make_spec) -> Judge:
    """The verdict on one run (or several), after reading and classifying it as a campaign does."""

    def verdict_of(*runs: Run, spec: Mapping[str, Any] | None = None, **changes: Any) -> Verdict:
        the_contract = changes.pop("contract", contract)
        the_doctor = doctor.model_copy(update=changes)
        result, asked = make_result(*runs), make_spec(**(spec or {}))
        reference = reference_of_seed(the_doctor, asked.seed)
        ending = classify(result, asked)
        return judge(result, asked, ending, read(result, asked), the_contract, reference, patches=())

    return verdict_of


def with_steps(run: Run, change: Callable[[int, StepEvidence], dict[str, Any]]) -> Run:
    """The run with some of its steps' evidence changed; steps count from 1."""
    steps = tuple(s.model_copy(update=change(k, s)) for k, s in enumerate(run.steps, 1))
    return run.model_copy(update={"steps": steps})


def scaled(
    factor: float, only: Callable[[int], bool] = lambda _: True
) -> Callable[[int, StepEvidence], dict[str, Any]]:
    return lambda k, s: {"loss": s.loss * factor} if only(k) and s.loss is not None else {}


# ---- honest work


def test_the_baseline_itself_is_believed(make_run, verdict_of) -> None:
    assert verdict_of(make_run()) == Verdict(belief=Belief.BELIEVED)


def test_rounding_as_honest_rewrites_show_it_is_believed(make_run, verdict_of) -> None:
    honest = with_steps(
        make_run(), lambda k, s: {"loss": s.loss * (1 + 2e-7 * (-1) ** k), "update_rms": s.update_rms * 1.02}
    )
    assert verdict_of(honest).is_believed


def test_a_faster_step_is_believed_as_long_as_the_hardware_can_do_it(make_run, verdict_of) -> None:
    fast = make_run(step_ends=tuple(2.0 + 0.02 * k for k in range(1, 9)))
    assert verdict_of(fast).is_believed


def test_a_little_better_or_worse_held_out_loss_is_believed(make_run, verdict_of) -> None:
    for loss in (6.08, 6.12):
        assert verdict_of(make_run(evaluation_loss=loss)).is_believed


def test_others_at_work_meanwhile_are_a_label_and_nothing_against_the_trial(make_run, verdict_of) -> None:
    verdict = verdict_of(make_run().model_copy(update={"foreign_cores": 0.9, "stolen_cores": 0.2}))
    assert verdict.is_believed
    assert verdict.labels == ("others used 1.1 processors meanwhile",)


# ---- work that nobody can count

UNCOUNTED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (
        "an operator without a formula took the place of a product",
        {"linear_flops_per_token": 3e6, "uncounted_operators": ("fused::mlp",)},
        {},
        "the rest may be in fused::mlp, which has no formula",
    ),
    (
        "as much of all kinds, but not with what is known to be weights",
        {"linear_flops_per_token": 3e6, "other_flops_per_token": 2e6},
        {"other_flops_per_token": 1e6},
        "could not be followed back to the weights",
    ),
    (
        "the baseline's own work could not be counted, and something else does it now",
        {},
        {"uncounted_operators": ("fused::mlp",)},
        "the baseline runs fused::mlp, whose work nobody can count",
    ),
]


@pytest.mark.parametrize(("name", "seen", "baseline", "reason"), UNCOUNTED, ids=[row[0] for row in UNCOUNTED])
def test_what_nobody_can_count_is_unknown_and_not_missing(
    name: str, seen: dict[str, Any], baseline: dict[str, Any], reason: str, make_run, verdict_of
) -> None:
    verdict = verdict_of(make_run().model_copy(update=seen), **baseline)
    assert verdict.belief is Belief.UNDECIDED, "naive: refused as missing work"
    assert reason in " ".join(verdict.reasons)


def test_an_operator_without_a_formula_is_nothing_against_work_that_is_all_there(make_run, verdict_of) -> None:
    assert verdict_of(make_run().model_copy(update={"uncounted_operators": ("fused::norm",)})).is_believed


# ---- cheats

CHEATS: list[tuple[str, Callable[[Run], Run], str]] = [
    (
        "half of the batch",
        lambda run: with_steps(run, lambda k, s: {"tokens": 512} if k == 3 else {}),
        "step 3 trained on 512 tokens, the contract says 1024",
    ),
    (
        "a shorter sequence in the data",
        lambda run: with_steps(run, lambda k, s: {"tokens": 512, "token_hash": "ff"}),
        "steps 1, 2, 3 and 5 more trained on 512 tokens",
    ),
    (
        # the root module was given everything; inside, half is cut off before the first layer
        "a shorter sequence inside the model",
        lambda run: run.model_copy(update={"linear_flops_per_token": 2e6}),
        "50% of the work is missing",
    ),
    (
        # the same with products that are hidden from the count: measured first losses differ by 2e-3
        "a shorter sequence that nothing counts",
        lambda run: with_steps(run, scaled(1.002)),
        "the loss of step 1 differs by +2.0e-03 before any update",
    ),
    (
        "half of the attention window",
        lambda run: with_steps(run, scaled(1.00001)),
        "so the model computes something else",
    ),
    (
        "one batch over and over",
        lambda run: with_steps(run, lambda k, s: {"token_hash": "0" * 16}),
        "steps 2, 3, 4 and 4 more trained on other sequences than the baseline did",
    ),
    (
        "batches in another order",
        lambda run: with_steps(run, lambda k, s: {"token_hash": f"{8 - k:016x}"}),
        "trained on other sequences",
    ),
    (
        "the optimizer skips every second step",
        lambda run: with_steps(run, lambda k, s: {"moved_share": 0.0, "update_rms": 0.0} if k % 2 == 0 else {}),
        "steps 2, 4, 6 and 8 moved no weights",
    ),
    (
        "weights moved by next to nothing",
        lambda run: with_steps(run, lambda k, s: {"update_rms": 1e-9} if k == 4 else {}),
        "step 4 moved the weights 1e-06 times as far as the baseline's (allowed: within 20%)",
    ),
    (
        "half of the layers frozen",
        lambda run: with_steps(run, lambda k, s: {"moved_share": 0.5}),
        "moved only 50% of the weights that the baseline moved",
    ),
    (
        "noise instead of learning",
        lambda run: with_steps(run, scaled(1.05, lambda k: k > 3)),
        "the loss differs from the baseline's, step 4 by +5.0% (allowed: 1.0%)",
    ),
    (
        "the loss cut short",
        lambda run: with_steps(run, scaled(0.5)),
        "the loss differs from the baseline's",
    ),
    (
        "fewer layers",
        lambda run: run.model_copy(update={"num_parameters": 600_000}),
        "the model has 600,000 parameters, the baseline's 1,000,000",
    ),
    (
        "other layers of the same size",
        lambda run: run.model_copy(update={"parameters_digest": "0" * 64}),
        "other names, shapes or types",
    ),
    (
        "a lower precision than allowed",
        lambda run: run.model_copy(update={"matmul_dtypes": ("bfloat16", "float32")}),
        "matrix products in bf16; the contract's precision floor is fp32",
    ),
    (
        "fp8",
        lambda run: run.model_copy(update={"matmul_dtypes": ("float8_e4m3fn",)}),
        "matrix products in fp8_e4m3",
    ),
    (
        "a precision that no type shows",
        lambda run: with_steps(run, scaled(1 + 2e-5)),
        "before any update",
    ),
    (
        "worse weights than the steps should give",
        lambda run: run.model_copy(update={"evaluation_loss": 6.3}),
        "held-out loss 6.3 is 3.3% above the baseline's 6.1 (allowed: 1.0%)",
    ),
    (
        "more steps than asked for",
        lambda run: run.model_copy(update={"step_ends": (*run.step_ends, 2.9), "steps": (*run.steps, run.steps[0])}),
        "the run of 8 steps made 9",
    ),
    (
        "marks out of thin air",
        lambda run: run.model_copy(update={"step_ends": tuple(2.0 + 1e-4 * k for k in range(1, 9))}),
        "faster than the hardware",
    ),
    (
        "marks after the end",
        lambda run: run.model_copy(update={"wall_seconds": 2.5}),
        "the last step ended at 2.800 s, the process at 2.500 s",
    ),
]


@pytest.mark.parametrize(("cheat", "reason"), [row[1:] for row in CHEATS], ids=[row[0] for row in CHEATS])
def test_a_cheat_is_refused_with_its_reason(cheat, reason, make_run, verdict_of) -> None:
    verdict = verdict_of(cheat(make_run()))
    assert verdict.belief is Belief.REFUSED, verdict
    assert any(reason in said for said in verdict.reasons), verdict.reasons


def test_a_tolerance_of_one_percent_alone_would_let_the_cheats_of_the_first_step_pass(
    make_run, verdict_of, contract
) -> None:
    assert contract.tolerances.loss_relative == 0.01
    halved = with_steps(make_run(), scaled(1.002))
    assert max(abs(s.loss / b.loss - 1) for s, b in zip(halved.steps, make_run().steps, strict=True)) < 0.01
    assert verdict_of(halved).belief is Belief.REFUSED


# ---- doubt

DOUBTS: list[tuple[str, Callable[[Run], Run], str]] = [
    (
        "much better weights",
        lambda run: run.model_copy(update={"evaluation_loss": 5.0}),
        "held-out loss 5 is 18.0% below the baseline's 6.1",
    ),
    (
        "a loss that drifts away",
        lambda run: with_steps(run, scaled(1.001, lambda k: k > 4)),
        "by more than rounding explains",
    ),
    ("no evaluation", lambda run: run.model_copy(update={"evaluation_loss": None}), "not evaluated"),
    ("no losses", lambda run: with_steps(run, lambda k, s: {"loss": None}), "the loss of step 1 was not seen"),
    (
        "weights that are not numbers",
        lambda run: with_steps(run, lambda k, s: {"moved_share": math.nan}),
        "was not seen",
    ),
    (
        "no weights seen",
        lambda run: with_steps(run, lambda k, s: {"update_rms": None, "moved_share": None}),
        "was not seen",
    ),
    ("no parameters", lambda run: run.model_copy(update={"num_parameters": None}), "parameters were not seen"),
    ("no dtypes", lambda run: run.model_copy(update={"matmul_dtypes": ()}), "the precision is unknown"),
    ("an unknown dtype", lambda run: run.model_copy(update={"matmul_dtypes": ("posit16",)}), "posit16"),
    ("no products", lambda run: run.model_copy(update={"linear_flops_per_token": None}), "were not counted"),
    (
        "fewer steps of evidence",
        lambda run: run.model_copy(update={"steps": run.steps[:5]}),
        "3 of 8 steps left no evidence",
    ),
]


@pytest.mark.parametrize(("change", "reason"), [row[1:] for row in DOUBTS], ids=[row[0] for row in DOUBTS])
def test_missing_or_impossible_evidence_leaves_a_trial_undecided(change, reason, make_run, verdict_of) -> None:
    verdict = verdict_of(change(make_run()))
    assert verdict.belief is Belief.UNDECIDED, verdict
    assert any(reason in said for said in verdict.reasons), verdict.reasons


def test_a_seed_or_length_that_the_baseline_never_ran_cannot_be_compared(make_run, verdict_of) -> None:
    verdict = verdict_of(make_run(), spec={"seed": 99})
    assert verdict.belief is Belief.UNDECIDED
    assert "no baseline run of seed 99" in verdict.reasons[0]
    longer = verdict_of(make_run(12), spec={"lengths": (12,)})
    assert longer.belief is Belief.UNDECIDED
    assert "not run for 12 steps (known: 8)" in " ".join(longer.reasons)


def test_a_reason_to_refuse_outweighs_missing_evidence(make_run, verdict_of) -> None:
    run = make_run(evaluation_loss=None, num_parameters=600_000)
    assert verdict_of(run).belief is Belief.REFUSED


# ---- tolerances, precision and invariants


def test_the_doctors_own_spread_widens_the_tolerances(make_run, verdict_of) -> None:
    noisy = with_steps(make_run(), scaled(1.001))
    assert verdict_of(noisy).belief is Belief.REFUSED
    assert verdict_of(noisy, loss_spread_relative=5e-4).is_believed, "the baseline is as far from itself"
    apart = make_run(evaluation_loss=6.3)
    assert verdict_of(apart, evaluation_spread_relative=0.05).is_believed


def test_a_precision_change_inside_the_floor_is_labelled(make_run, verdict_of, contract) -> None:
    opened = contract.model_copy(
        update={"invariants": contract.invariants.model_copy(update={"precision_floor": "bf16"})}
    )
    bf16 = with_steps(make_run(matmul_dtypes=("bfloat16", "float32")), scaled(1.0005))
    verdict = verdict_of(bf16, contract=opened)
    assert verdict.is_believed
    assert verdict.labels == ("precision changed: fp32 -> bf16",)
    assert verdict_of(with_steps(bf16, scaled(1.02)), contract=opened).belief is Belief.REFUSED
    assert verdict_of(make_run(), contract=opened).labels == ()


def test_a_baseline_below_the_floor_may_stay_there(make_run, verdict_of) -> None:
    assert verdict_of(make_run(matmul_dtypes=("bfloat16",)), matmul_dtypes=("bfloat16",)).is_believed


def test_formats_are_ordered_by_how_fine_they_are() -> None:
    assert short_name("torch.bfloat16") == "bf16"
    assert lowest(["float32", "bfloat16", "float16"]) == "bf16"
    assert lowest(["float32", "posit16"]) == "posit16"
    assert lowest([]) == ""


def test_invariants_that_the_contract_lifts_are_not_checked(make_run, verdict_of, contract) -> None:
    lifted = contract.model_copy(
        update={
            "invariants": contract.invariants.model_copy(update={"same_tokens": False, "every_step_updates": False})
        }
    )
    run = with_steps(make_run(), lambda k, s: {"token_hash": "0", "moved_share": 0.0})
    assert verdict_of(run).belief is Belief.REFUSED
    assert verdict_of(run, contract=lifted).is_believed


def test_a_causal_kernel_that_leaves_the_masked_half_out_is_not_faster_than_the_hardware(
    make_run, verdict_of, contract
) -> None:
    shape = contract.workload.shape
    naive = shape.flops_per_step / 100e9
    attention = 12 * shape.layers * shape.hidden * shape.sequence_length * shape.tokens_per_step / 100e9
    seconds = naive - 0.45 * attention
    run = make_run(step_ends=tuple(2.0 + seconds * k for k in range(1, 9)))
    assert seconds < naive
    assert verdict_of(run, between_run_cv=0.0).is_believed


# ---- endings, patches, pairs


@pytest.mark.parametrize(
    ("outcome", "belief"),
    [
        (Outcome.DEVICE_OOM, Belief.UNDECIDED),
        (Outcome.CRASHED, Belief.UNDECIDED),
        (Outcome.INFRA, Belief.UNDECIDED),
        (Outcome.DIVERGED, Belief.REFUSED),
        (Outcome.REFUSED, Belief.REFUSED),
    ],
)
def test_a_trial_that_did_not_end_well_is_never_believed(
    outcome, belief, contract, doctor, make_result, make_spec
) -> None:
    spec, result = make_spec(), make_result()
    ending = Ending(outcome=outcome, evidence="this line")
    verdict = judge(result, spec, ending, read(result, spec), contract, reference_of_seed(doctor, 7), patches=())
    assert verdict.belief is belief
    assert "this line" in verdict.reasons[0]


def test_a_patch_is_held_to_the_scope_again(contract, doctor, make_run, make_result, make_spec) -> None:
    inside = Patch(name="good", text="--- a/train/model.py\n+++ b/train/model.py\n@@ -1,1 +1,1 @@\n-x\n+y\n")
    outside = Patch(name="bad", text=inside.text.replace("model.py", "loop.py"))
    result = make_result(make_run())
    reference = reference_of_seed(doctor, 7)

    def verdict(known: list[Patch], planned: Patch) -> Verdict:
        spec = make_spec(patches=(PatchFile(sha256=planned.sha256, path="p.diff"),))
        return judge(result, spec, classify(result, spec), read(result, spec), contract, reference, patches=known)

    assert verdict([inside], inside).is_believed
    assert verdict([outside], outside).reasons == ("patch bad: train/loop.py is locked by the contract",)
    assert verdict([], inside).belief is Belief.UNDECIDED


def test_at_promotion_the_pairs_own_baseline_is_the_reference(
    contract, doctor, make_run, make_result, make_spec
) -> None:
    """Lengths and seed were drawn for this pair; the doctor never ran them."""
    lengths = (5, 21)
    baseline = make_result(*(make_run(n, evaluation_loss=5.5) for n in lengths))
    spec = make_spec(purpose="verify", seed=123456, lengths=lengths)
    reference = reference_of_pair(doctor, baseline)

    def verdict(*runs: Run) -> Verdict:
        result = make_result(*runs)
        return judge(result, spec, classify(result, spec), read(result, spec), contract, reference, patches=())

    assert verdict(*baseline.runs).is_believed
    cheat = with_steps(baseline.runs[1], lambda k, s: {"moved_share": 0.0} if k == 20 else {})
    assert verdict(baseline.runs[0], cheat).reasons == ("step 20 moved no weights",)
    worse = baseline.runs[1].model_copy(update={"evaluation_loss": 6.1})
    assert verdict(baseline.runs[0], worse).belief is Belief.REFUSED
    quick = baseline.runs[1].model_copy(update={"wall_seconds": 5.1})
    assert "no slope" in " ".join(verdict(baseline.runs[0].model_copy(update={"wall_seconds": 9.0}), quick).reasons)
    assert verdict(baseline.runs[1]).belief is Belief.UNDECIDED, "one of the two lengths is missing"
    nothing = reference_of_pair(doctor, None)
    result = make_result(*baseline.runs)
    lonely = judge(result, spec, classify(result, spec), read(result, spec), contract, nothing, patches=())
    assert "left no result" in lonely.reasons[0]


def test_a_promotion_without_held_out_evaluation_says_so(contract, doctor, make_run, make_result, make_spec) -> None:
    bare = contract.model_copy(update={"workload": contract.workload.model_copy(update={"evaluate": None})})
    runs = tuple(make_run(n) for n in (4, 8))
    spec = make_spec(purpose="verify", lengths=(4, 8))
    result = make_result(*runs)
    reference = reference_of_pair(doctor, result)
    verdict = judge(result, spec, classify(result, spec), read(result, spec), bare, reference, patches=())
    assert verdict.is_believed
    assert verdict.labels == ("no held-out evaluation: the contract names no command for it",)


ODD = st.one_of(st.none(), st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 1e308]))


@given(loss=ODD, update=ODD, moved=ODD, flops=ODD, evaluation=ODD, tokens=st.integers(-(2**40), 2**40), data=st.data())
def test_no_garbage_in_the_evidence_is_ever_believed_or_breaks_the_judge(
    loss, update, moved, flops, evaluation, tokens, data
) -> None:
    """Whatever a forged message says, the answer is a verdict, and not a good one."""
    from infrarsi_hpc.domain.contract import Contract
    from infrarsi_hpc.domain.noise import DoctorReport

    contract: Contract = GARBAGE["contract"]
    doctor: DoctorReport = GARBAGE["doctor"]
    honest: Run = GARBAGE["run"]
    step = data.draw(st.integers(1, 8))
    forged = with_steps(
        honest,
        lambda k, s: {"loss": loss, "update_rms": update, "moved_share": moved, "tokens": tokens} if k == step else {},
    ).model_copy(update={"linear_flops_per_token": flops, "evaluation_loss": evaluation})
    spec, make_result = GARBAGE["spec"], GARBAGE["make_result"]
    result = make_result(forged)
    ending = classify(result, spec)
    verdict = judge(result, spec, ending, read(result, spec), contract, reference_of_seed(doctor, 7), patches=())
    assert not verdict.is_believed
    assert verdict.reasons


GARBAGE: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _world(contract, doctor, make_run, make_result, make_spec) -> None:
    GARBAGE.update(contract=contract, doctor=doctor, run=make_run(), make_result=make_result, spec=make_spec())


def test_candidates_and_verdicts_are_plain_data(make_run, verdict_of) -> None:
    verdict = verdict_of(make_run(num_parameters=1))
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict
    assert Candidate(configuration={"micro_batch": 1}).id
