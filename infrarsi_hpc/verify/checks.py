"""May a trial's measurement be believed? Its evidence against the baseline's, step by step. Pure.

Covers: skipped, shortened or repeated data (tokens and their hashes), work left out inside the model (products a token,
and the first loss, which the same weights and tokens fix up to rounding), skipped or faked updates, another model,
another precision, worse or impossible held-out loss, times that do not add up or that the hardware cannot reach.
Does not cover: a program that forges the probe's messages in memory (promotion times whole processes and evaluates the
saved weights elsewhere), work done after the last step (the slope at promotion has it), a compromised node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeGuard

from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.diff import parse_diff
from infrarsi_hpc.domain.noise import BaselineStep
from infrarsi_hpc.domain.outcome import RETRIED, Ending, Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.domain.reading import Reading
from infrarsi_hpc.domain.trial import Run, StepEvidence, TrialResult, TrialSpec
from infrarsi_hpc.domain.verdict import Belief, Verdict
from infrarsi_hpc.errors import PatchError
from infrarsi_hpc.verify.precision import BITS, ROUNDING, lowest, short_name
from infrarsi_hpc.verify.reference import Reference
from infrarsi_hpc.verify.scope import check_scope

#: Products of activations with weights may fall short by this much (a last chunk).
_PRODUCTS_SHARE = 0.98
#: A repeat may be this many times farther away than the doctor's few repeats were from each other.
_SPREADS = 10.0
#: Others' work, in processors, that is worth a word beside a time.
BUSY_CORES = 0.3
#: Between-run standard deviations by which a step may beat the measured ceiling.
_CEILING_SIGMAS = 3.0


class Findings:
    """Reasons against, reasons for doubt and labels, as the checks find them."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.missing: list[str] = []
        self.labels: list[str] = []

    def verdict(self) -> Verdict:
        """Refused outweighs undecided, and that outweighs believed."""
        labels = tuple(dict.fromkeys(self.labels))
        if self.refused:
            return Verdict(belief=Belief.REFUSED, reasons=tuple(dict.fromkeys(self.refused)), labels=labels)
        if self.missing:
            return Verdict(belief=Belief.UNDECIDED, reasons=tuple(dict.fromkeys(self.missing)), labels=labels)
        return Verdict(belief=Belief.BELIEVED, labels=labels)


def judge(
    result: TrialResult,
    spec: TrialSpec,
    ending: Ending,
    reading: Reading,
    contract: Contract,
    reference: Reference,
    *,
    patches: Sequence[Patch],
) -> Verdict:
    """Decide whether a trial's numbers count, with reasons in plain words.

    `reference` comes from `reference_of_seed` (search) or `reference_of_pair` (promotion); `patches` are the ones that
    the trial was planned with. A trial that did not end well has no numbers to believe: it is refused where it broke
    the contract or diverged, else undecided.
    """
    if ending.outcome is not Outcome.OK:
        return _of_ending(ending)
    found = Findings()
    if ending.is_tainted:
        found.labels.append(ending.evidence)
    _check_patches(spec, contract, patches, found)
    _check_runs(result, spec, found)
    _check_model(result, reference, found)
    _check_precision(result, contract, reference, found)
    _check_products(result, reference, found)
    for run in result.runs:
        _check_steps(run, contract, reference, found)
    _check_evaluation(result, spec, contract, reference, found)
    _check_times(result, spec, reading, contract, reference, found)
    return found.verdict()


def _of_ending(ending: Ending) -> Verdict:
    is_breach = ending.outcome in (Outcome.REFUSED, Outcome.DIVERGED)
    text = (
        f"nothing was measured: {ending.label}" if ending.outcome not in RETRIED else f"no result yet: {ending.label}"
    )
    reason = f"{text}: {ending.evidence}" if ending.evidence else text
    return Verdict(belief=Belief.REFUSED if is_breach else Belief.UNDECIDED, reasons=(reason,))


# ---- what ran


def _check_patches(spec: TrialSpec, contract: Contract, patches: Sequence[Patch], found: Findings) -> None:
    given = {patch.sha256: patch for patch in patches}
    for entry in spec.patches:
        patch = given.get(entry.sha256)
        if patch is None:
            found.missing.append(f"the text of patch {entry.sha256[:12]} is not here, so its scope cannot be checked")
            continue
        try:
            reasons = check_scope(parse_diff(patch.text), contract.scope)
        except PatchError as error:
            reasons = [error.what]
        found.refused += [f"patch {patch.name}: {reason}" for reason in reasons]


def _check_runs(result: TrialResult, spec: TrialSpec, found: Findings) -> None:
    lengths = tuple(run.length for run in result.runs)
    if lengths != spec.lengths:
        found.missing.append(f"runs of {_list(lengths)} steps came back, {_list(spec.lengths)} were asked for")
    for run in result.runs:
        if len(run.step_ends) > run.length:
            found.refused.append(f"the run of {run.length} steps made {len(run.step_ends)}")
        if len(run.exit_codes) != spec.ranks:
            found.missing.append(f"{len(run.exit_codes)} ranks came back, the configuration says {spec.ranks}")
        if len(run.steps) < len(run.step_ends):
            missing = len(run.step_ends) - len(run.steps)
            found.missing.append(f"{missing} of {len(run.step_ends)} steps left no evidence")


def _check_model(result: TrialResult, reference: Reference, found: Findings) -> None:
    doctor = reference.doctor
    for run in result.runs:
        if run.num_parameters is None or run.parameters_digest is None:
            found.missing.append("the model's parameters were not seen")
        elif run.num_parameters != doctor.num_parameters:
            found.refused.append(
                f"the model has {run.num_parameters:,} parameters, the baseline's {doctor.num_parameters:,}"
            )
        elif run.parameters_digest != doctor.parameters_digest:
            found.refused.append("the model's parameters have other names, shapes or types than the baseline's")


def _check_precision(result: TrialResult, contract: Contract, reference: Reference, found: Findings) -> None:
    baseline = reference.matmul_dtypes
    for run in result.runs:
        if not run.matmul_dtypes:
            if baseline:
                found.missing.append("no matrix product was seen, so the precision is unknown")
            continue
        unknown = [dtype for dtype in run.matmul_dtypes if short_name(dtype) not in BITS]
        if unknown:
            found.missing.append(f"matrix products in {_list(unknown)}: a type whose precision is not known here")
            continue
        worst = lowest(run.matmul_dtypes)
        floor = contract.invariants.precision_floor
        was = lowest(baseline) if baseline else floor
        if BITS[worst] < min(BITS[floor], BITS.get(was, 0)):
            found.refused.append(f"matrix products in {worst}; the contract's precision floor is {floor}")
        elif BITS[worst] < BITS.get(was, 0):
            found.labels.append(f"precision changed: {was} -> {worst}")


def _check_products(result: TrialResult, reference: Reference, found: Findings) -> None:
    """No less arithmetic with the weights than the baseline's.

    Less of it is work that is missing only if everything was counted. Where an operator has no formula, or as much was
    done as ever but not with what could be followed back to a weight, nobody knows.
    """
    expected = reference.linear_flops_per_token
    if not expected:
        return
    expected_in_all = expected + (reference.other_flops_per_token or 0.0)
    for run in result.runs:
        done = run.linear_flops_per_token
        if not _is_number(done):
            found.missing.append("the products of a step were not counted")
            continue
        unseen = sorted(set(run.uncounted_operators))
        lost = sorted(set(reference.uncounted_operators) - set(unseen))
        if lost:
            found.missing.append(
                f"the baseline runs {_list(lost)}, whose work nobody can count; this does not, and what it does "
                "instead is unknown (workload.operators in the contract declares formulas)"
            )
        if done >= _PRODUCTS_SHARE * expected:
            continue
        said = (
            f"a step did {done / 1e6:.3g} MFLOP of products with weights a token before its first backward pass, the "
            f"baseline's does {expected / 1e6:.3g}"
        )
        in_all = done + (run.other_flops_per_token or 0.0)
        if unseen:
            found.missing.append(
                f"{said}; the rest may be in {_list(unseen)}, which has no formula (workload.operators in the contract "
                "declares one)"
            )
        elif reference.other_flops_per_token is not None and in_all >= _PRODUCTS_SHARE * expected_in_all:
            found.missing.append(
                f"{said}, but as many of all kinds: with what it multiplied could not be followed back to the weights"
            )
        else:
            found.refused.append(f"{said}: {1 - done / expected:.0%} of the work is missing")


# ---- step by step


def _check_steps(run: Run, contract: Contract, reference: Reference, found: Findings) -> None:
    _check_tokens(run, contract, found)
    if reference.missing:
        found.missing.append(reference.missing)
        return
    expected = reference.steps.get(run.length)
    if expected is None:
        known = _list(sorted(reference.steps))
        found.missing.append(f"the baseline was not run for {run.length} steps (known: {known}), so nothing compares")
        return
    pairs = list(zip(run.steps, expected, strict=False))
    if len(run.steps) > len(expected):
        found.missing.append(f"the baseline's run of {run.length} steps has evidence for {len(expected)}")
    if contract.invariants.same_tokens:
        other = [k for k, (step, base) in enumerate(pairs, 1) if step.token_hash != base.token_hash]
        if other:
            found.refused.append(f"{_which(other)} trained on other sequences than the baseline did")
    if contract.invariants.every_step_updates:
        _check_updates(pairs, contract, reference, found)
    _check_losses(pairs, (*run.matmul_dtypes, *reference.matmul_dtypes), contract, reference, found)


def _check_tokens(run: Run, contract: Contract, found: Findings) -> None:
    promised = contract.workload.shape.tokens_per_step
    wrong = {k: step.tokens for k, step in enumerate(run.steps, 1) if step.tokens != promised}
    if wrong:
        first = next(iter(wrong.values()))
        seen = f"{first}" if len(set(wrong.values())) == 1 else f"{min(wrong.values())} to {max(wrong.values())}"
        found.refused.append(f"{_which(wrong)} trained on {seen} tokens, the contract says {promised}")


def _check_updates(
    pairs: Sequence[tuple[StepEvidence, BaselineStep]], contract: Contract, reference: Reference, found: Findings
) -> None:
    """Every step must move the weights, about as many of them and about as far as the baseline's step did."""
    tolerance = max(contract.tolerances.update_relative, reference.doctor.update_spread_relative)
    still: list[int] = []
    frozen: list[tuple[int, float]] = []
    far: list[tuple[int, float]] = []
    for k, (step, base) in enumerate(pairs, 1):
        if not (_is_number(step.moved_share) and _is_number(step.update_rms)):
            if base.moved_share is not None:
                found.missing.append(f"how far step {k} moved the weights was not seen")
            continue
        if base.moved_share and (step.moved_share <= 0 or step.update_rms <= 0):
            still.append(k)
        elif base.moved_share and step.moved_share < (1 - tolerance) * base.moved_share:
            frozen.append((k, step.moved_share / base.moved_share))
        elif base.update_rms and not _is_within(step.update_rms, base.update_rms, tolerance):
            far.append((k, step.update_rms / base.update_rms))
    if still:
        found.refused.append(f"{_which(still)} moved no weights")
    if frozen:
        share = min(share for _, share in frozen)
        found.refused.append(
            f"{_which(k for k, _ in frozen)} moved only {share:.0%} of the weights that the baseline moved"
        )
    if far:
        ratio = max((r for _, r in far), key=lambda r: abs(math.log(r)))
        found.refused.append(
            f"{_which(k for k, _ in far)} moved the weights {ratio:.3g} times as far as the baseline's "
            f"(allowed: within {tolerance:.0%})"
        )


def _check_losses(
    pairs: Sequence[tuple[StepEvidence, BaselineStep]],
    dtypes: Sequence[str],
    contract: Contract,
    reference: Reference,
    found: Findings,
) -> None:
    """Losses within the contract's tolerance, and as near as rounding explains.

    Before the first update nothing but the computation itself can change the loss: the same weights and tokens give
    the same number. Measured on a 1 M parameter GPT over 24 steps: honest rewrites in fp32 (attention kernels, fused
    optimizers, micro-batches) differ by at most 2e-7, bf16 by 2e-5, half of the attention window by 1e-5 to 3e-4, half
    of the sequence by 2e-3 and more. A tolerance of 1% would let all of them pass at the first step.
    """
    spread = reference.doctor.loss_spread_relative
    tolerance = max(contract.tolerances.loss_relative, spread)
    rounding = min(tolerance, max(ROUNDING.get(lowest(dtypes), tolerance), _SPREADS * spread))
    outside: list[tuple[int, float]] = []
    unexplained: list[tuple[int, float]] = []
    for k, (step, base) in enumerate(pairs, 1):
        if not _is_number(base.loss) or base.loss == 0:
            continue
        if step.loss is None:
            found.missing.append(f"the loss of step {k} was not seen")
            continue
        change = step.loss / base.loss - 1
        if not math.isfinite(change) or abs(change) > tolerance:
            outside.append((k, change))
        elif abs(change) > rounding * (1 if k == 1 else _SPREADS):
            unexplained.append((k, change))
    if outside:
        k, change = max(outside, key=lambda item: abs(item[1]))
        found.refused.append(
            f"{_which(k for k, _ in outside)}: the loss differs from the baseline's, step {k} by {change:+.1%} "
            f"(allowed: {tolerance:.1%})"
        )
    elif unexplained and unexplained[0][0] == 1:
        found.refused.append(
            f"the loss of step 1 differs by {unexplained[0][1]:+.1e} before any update: the same weights and tokens "
            f"give the same loss up to rounding ({rounding:.0e}), so the model computes something else"
        )
    elif unexplained:
        k, change = max(unexplained, key=lambda item: abs(item[1]))
        found.missing.append(
            f"{_which(k for k, _ in unexplained)}: the loss differs from the baseline's by more than rounding explains"
            f", step {k} by {change:+.1e} (rounding: {_SPREADS * rounding:.0e})"
        )


# ---- the result


def _check_evaluation(
    result: TrialResult, spec: TrialSpec, contract: Contract, reference: Reference, found: Findings
) -> None:
    if spec.evidence.evaluation_seed is None or contract.workload.evaluate is None:
        if spec.purpose == "verify":
            found.labels.append("no held-out evaluation: the contract names no command for it")
        return
    run = result.runs[-1]
    base = reference.evaluation_losses.get(run.length)
    loss = run.evaluation_loss
    if not _is_number(loss):
        found.missing.append("the final weights were not evaluated on held-out data")
        return
    if base is None or base <= 0:
        found.missing.append(f"the baseline has no held-out loss after {run.length} steps to compare with")
        return
    tolerance = max(contract.tolerances.evaluation_relative, reference.doctor.evaluation_spread_relative)
    change = loss / base - 1
    if change > tolerance:
        found.refused.append(
            f"held-out loss {loss:.4g} is {change:.1%} above the baseline's {base:.4g} (allowed: {tolerance:.1%})"
        )
    elif change < -tolerance:
        found.missing.append(
            f"held-out loss {loss:.4g} is {-change:.1%} below the baseline's {base:.4g}: the same steps on the same "
            "tokens do not give that; look at what was trained on"
        )


def _check_times(
    result: TrialResult,
    spec: TrialSpec,
    reading: Reading,
    contract: Contract,
    reference: Reference,
    found: Findings,
) -> None:
    if reading.step_seconds is None and not spec.evidence.profile:
        found.missing.append("no step time could be read from the marks")
    if spec.purpose == "verify" and reading.slope_seconds is None:
        found.missing.append("whole-process wall time has no slope over the lengths that were run")
    for run in result.runs:
        ends = run.step_ends
        if not (math.isfinite(run.wall_seconds) and all(math.isfinite(end) for end in ends)):
            found.missing.append("a time is not a number")
        elif any(later < earlier for earlier, later in pairwise(ends)):
            found.refused.append("marks of later steps came before those of earlier ones")
        elif ends and ends[-1] > run.wall_seconds:
            found.refused.append(f"the last step ended at {ends[-1]:.3f} s, the process at {run.wall_seconds:.3f} s")
    if reading.foreign_cores is not None and reading.foreign_cores > BUSY_CORES:
        found.labels.append(f"others used {reading.foreign_cores:.1f} processors meanwhile")
    _check_ceiling(reading, contract, reference, found)


def _check_ceiling(reading: Reading, contract: Contract, reference: Reference, found: Findings) -> None:
    """No step is faster than the model's arithmetic at the best rate that the hardware was seen to reach.

    Counted with half of the attention products: a causal kernel may leave out what the mask hides.
    """
    doctor, shape = reference.doctor, contract.workload.shape
    if doctor.matmul_ceiling_flops <= 0:
        return
    hidden_by_mask = 6.0 * shape.layers * shape.hidden * shape.sequence_length * shape.tokens_per_step
    fastest = (shape.flops_per_step - hidden_by_mask) / doctor.matmul_ceiling_flops
    allowed = fastest * math.exp(-_CEILING_SIGMAS * doctor.between_run_cv)
    for name, seconds in (("a step", reading.step_seconds), ("a step by wall time", reading.slope_seconds)):
        if seconds is not None and seconds < allowed:
            found.refused.append(
                f"faster than the hardware: {name} took {1000 * seconds:.3g} ms, its matrix products alone need "
                f"{1000 * fastest:.3g} ms at the measured {doctor.matmul_ceiling_flops / 1e9:.4g} GFLOP/s"
            )


# ---- words


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _is_within(value: float, base: float, tolerance: float) -> bool:
    return math.isfinite(value) and abs(value / base - 1) <= tolerance


def _which(numbers: Iterable[int]) -> str:
    """`step 3`, `steps 2, 4 and 6`, `steps 2, 4, 6 and 13 more`."""
    listed = list(numbers)
    if len(listed) == 1:
        return f"step {listed[0]}"
    if len(listed) <= 4:
        return f"steps {', '.join(map(str, listed[:-1]))} and {listed[-1]}"
    return f"steps {', '.join(map(str, listed[:3]))} and {len(listed) - 3} more"


def _list(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values) or "none"
