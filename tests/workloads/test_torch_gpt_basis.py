import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.models.memory import fit_peak_memory
from infrarsi_hpc.models.normal import separate
from infrarsi_hpc.workloads import BASES
from infrarsi_hpc.workloads.torch_gpt_knobs import DEFAULTS

SHAPE = Shape(layers=4, hidden=256, heads=8, feed_forward=1024, vocabulary=512, sequence_length=256, global_batch=16)
VALUES = {
    "micro_batch": [1, 2, 4, 8],
    "ranks": [1, 2],
    "threads": [1, 2],
    "attention": ["math", "sdpa"],
    "recompute": ["none", "attention", "full"],
    "compile": ["off", "on"],
    "precision": ["fp32", "bf16"],
    "optimizer": ["loop", "foreach", "fused"],
    "gradient_sync": ["every", "last"],
    "data_workers": [0, 1, 2],
    "bucket_mib": [1, 8, 25],
    "allocator": ["default", "retain"],
}
CONFIGURATIONS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})
BASIS = BASES["torch-gpt"]


def total(what: str, configuration: dict[str, object], device: str = "cpu") -> float:
    basis = BASIS.on(device)
    parts = basis.memory_components if what == "memory" else basis.time_components
    return float(sum(np.sum(v) for v in parts({**DEFAULTS, **configuration}, SHAPE).values()))


@settings(max_examples=60)
@given(CONFIGURATIONS, st.sampled_from(["cpu", "cuda"]))
def test_components_are_finite_positive_and_the_same_alone_as_in_a_column(configuration: dict, device: str) -> None:
    basis = BASIS.on(device)
    for components, priors in (
        (basis.memory_components, basis.memory_priors),
        (basis.time_components, basis.time_priors),
    ):
        alone = components(configuration, SHAPE)
        column = components({name: np.array([value] * 2) for name, value in configuration.items()}, SHAPE)
        assert set(alone) == set(priors)
        for name, part in alone.items():
            assert np.isfinite(part)
            assert part >= 0
            np.testing.assert_allclose(np.broadcast_to(column[name], 2), part)
        assert sum(float(v) for v in alone.values()) > 0


@settings(max_examples=40)
@given(CONFIGURATIONS, st.floats(0.05, 4.0), st.floats(0.05, 4.0))
def test_a_larger_micro_batch_is_never_more_likely_to_fit(configuration: dict, peak: float, capacity: float) -> None:
    priors = BASIS.memory_priors

    def matrix(micro_batches: list[int]) -> np.ndarray:
        rows = [BASIS.memory_components({**configuration, "micro_batch": m}, SHAPE) for m in micro_batches]
        return np.array([[float(row[name]) for name in priors] for row in rows])

    model = fit_peak_memory(matrix([2]), np.array([peak]), np.zeros(1), separate(list(priors.values())))
    fits = model.probability_fits(matrix([1, 2, 4, 8]), capacity)
    assert (np.diff(fits) <= 1e-12).all()


SAVERS = {
    "full recompute": ({"recompute": "full"}, {"recompute": "none"}),
    "recompute of attention": ({"recompute": "attention"}, {"recompute": "none"}),
    "full recompute against attention's": ({"recompute": "full"}, {"recompute": "attention"}),
    "fused attention": ({"attention": "sdpa"}, {"attention": "math"}),
    "a fused optimizer": ({"optimizer": "fused"}, {"optimizer": "foreach"}),
    "one rank (no buckets)": ({"ranks": 1}, {"ranks": 2}),
    "memory given back": ({"allocator": "default"}, {"allocator": "retain"}),
    "bf16 activations": ({"precision": "bf16", "attention": "sdpa"}, {"precision": "fp32", "attention": "sdpa"}),
}


@pytest.mark.parametrize(("less", "more"), SAVERS.values(), ids=SAVERS.keys())
def test_savers_save(less: dict[str, object], more: dict[str, object]) -> None:
    assert total("memory", {"micro_batch": 8, **less}) < total("memory", {"micro_batch": 8, **more})


FASTER = {
    "no recompute": ({"recompute": "none"}, {"recompute": "full"}),
    "two ranks": ({"ranks": 2, "gradient_sync": "last"}, {"ranks": 1}),
    "one synchronisation a step": ({"ranks": 2, "gradient_sync": "last"}, {"ranks": 2, "gradient_sync": "every"}),
    "large buckets": ({"ranks": 2, "bucket_mib": 25}, {"ranks": 2, "bucket_mib": 1}),
    "fused attention": ({"attention": "sdpa"}, {"attention": "math"}),
    "a fused optimizer": ({"optimizer": "fused"}, {"optimizer": "loop"}),
    "kept pages": ({"allocator": "retain"}, {"allocator": "default"}),
    "fewer passes": ({"micro_batch": 8, "allocator": "retain"}, {"micro_batch": 1, "allocator": "retain"}),
}


@pytest.mark.parametrize(("fast", "slow"), FASTER.values(), ids=FASTER.keys())
def test_what_is_known_to_be_faster_is(fast: dict[str, object], slow: dict[str, object]) -> None:
    assert total("time", fast) < total("time", slow)


def test_the_nominal_step_is_near_what_one_core_measured() -> None:
    """4 layers, width 256, sequence 256, global batch 16 took 1.3 to 1.7 s on one AVX-512 core, one rank."""
    assert 0.6 < total("time", {"micro_batch": 4}) < 4.0


def test_weights_count_where_they_are_inside_the_axis() -> None:
    # CPU: growth after set-up; CUDA: everything reserved
    gib = 4 * (4 * (4 * 256**2 + 2 * 256 * 1024) + 256 * (512 + 256)) / 2**30
    assert total("memory", {}, "cuda") - total("memory", {}) == pytest.approx(gib)


RULES = {
    "halves divide": ({"micro_batch": 8, "ranks": 2}, None, []),
    "three does not divide": ({"micro_batch": 3}, None, ["micro_batch x ranks does not divide the global batch of 16"]),
    "too many ranks": ({"micro_batch": 8, "ranks": 4}, None, ["does not divide"]),
    "more threads than cores": ({"ranks": 2, "threads": 2}, 2, ["more than the 2 cores"]),
    "as many threads as cores": ({"ranks": 2, "threads": 2}, 4, []),
    "cores unknown": ({"ranks": 2, "threads": 2}, None, []),
    "nothing at all": ({"micro_batch": 0}, None, ["at least 1"]),
}


@pytest.mark.parametrize(("configuration", "cores", "reasons"), RULES.values(), ids=RULES.keys())
def test_rules_say_why_in_plain_words(configuration: dict[str, object], cores: int | None, reasons: list[str]) -> None:
    found = BASIS.rules(configuration, SHAPE, cores)
    assert len(found) == len(reasons)
    for reason, text in zip(reasons, found, strict=True):
        assert reason in text
    assert bool(BASIS.allowed(configuration, SHAPE, cores)) is not bool(found)


def test_cores_do_not_limit_ranks_on_gpus() -> None:
    assert BASIS.on("cuda").rules({"ranks": 8, "threads": 2}, SHAPE, cores=2) == []


def test_a_word_where_the_formulas_take_a_number_is_refused() -> None:
    with pytest.raises(InputRefused, match="micro_batch"):
        BASIS.memory_components({"micro_batch": "auto"}, SHAPE)


def test_unknown_knobs_become_open_factors_and_known_ones_stay_near_their_formulas() -> None:
    assert BASIS.time_factor("gelu").width > BASIS.time_factor("optimizer").width > 0
    assert BASIS.memory_factor("gelu").width > 0
    assert BASIS.memory_factor("micro_batch").width == BASIS.memory_factor("micro_batch").trend_width == 0


def test_a_workload_without_formulas_has_one_component_and_no_rules() -> None:
    generic = BASES["torch"].on("cuda")
    settings_ = {"a": np.array([1, 2, 3]), "b": np.array(["x", "y", "x"])}
    assert generic.memory_components(settings_, SHAPE)["total"].tolist() == [1.0, 1.0, 1.0]
    assert generic.time_components({"a": 1}, SHAPE)["total"] == 1.0
    assert generic.rules({"a": 1}, SHAPE) == []
    assert generic.allowed(settings_, SHAPE).all()


def test_formulas_extrapolate_where_a_log_linear_model_does_not() -> None:
    """Peaks at micro-batches 1 and 2, asked at 8: static memory makes log-linear growth far too steep or too flat."""
    scale = {"activations": 1.3, "attention_scores": 0.8, "logits": 1.2, "optimizer_state": 1.1}

    def components(micro_batch: int) -> dict[str, float]:
        parts = BASIS.memory_components({**DEFAULTS, "micro_batch": micro_batch}, SHAPE)
        return {name: float(part) for name, part in parts.items()}

    def peak(micro_batch: int) -> float:
        return sum(scale.get(name, 1.0) * part for name, part in components(micro_batch).items())

    matrix = np.array([list(components(m).values()) for m in (1, 2, 8)])
    peaks = np.array([peak(m) for m in (1, 2, 8)])
    physics = fit_peak_memory(matrix[:2], peaks[:2], np.zeros(2), separate(list(BASIS.memory_priors.values())))
    slope, start = np.polyfit(np.log([1, 2]), np.log(peaks[:2]), 1)
    truth = np.log(peaks[2])
    assert abs(physics.predict(matrix[2:])[0][0] - truth) < 0.12
    assert abs(start + slope * np.log(8) - truth) > 0.25
