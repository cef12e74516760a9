"""Replays of sweeps: tables are read strictly, every method gets the same chances, figures are what they say."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import replay_methods
import replay_tables
from replay_figures import FIGURES, curve, figures_of, summarise
from replay_methods import METHODS, Forest, Given, Random, Run, chosen_methods, lacks, replay
from replay_store import UNKNOWN_SPREAD, overlaps, spread_of, write_store
from replay_tables import Measured, Table, merge, read_table

from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.edges.store import folder as store
from infrarsi_hpc.errors import InfrarsiError, InputRefused, UsageError
from infrarsi_hpc.workloads.transformer_columns import workload_of
from infrarsi_hpc.workloads.transformer_workload import TransformerWorkload

REPLAY = Path(__file__).resolve().parents[2] / "tools" / "replay"
WORKLOAD: dict[str, Any] = {
    "framework": "invented",
    "model": {"layers": 16, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 32000},
    "seq_len": 2048,
    "global_batch": 128,
    "gpus": 16,
    "gpu": {"name": "A100-SXM4-80GB", "memory_gib": 80, "peak_tflops_bf16": 312},
}
HEAD = "trial_id,tp,micro_batch,step_time_s,mfu,peak_gib,outcome"
#: Peers are optional: those that are installed are tested like ours.
INSTALLED = [name for name in METHODS if not lacks(name)]


def sweep() -> list[str]:
    """Rows by a formula: bubbles, traffic and memory as a child would draw them; sorted by speed, as tables are."""
    rows = []
    for i, (tp, pp, mb, kernel) in enumerate(itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4), ("flash 2", "plain"))):
        seconds = (2 + 0.3 * (tp - 1) + 0.2 * (pp - 1) + 0.4 / mb) * (1.0 if kernel == "flash 2" else 1.3)
        peak = 100 / (tp * pp) + 12 * mb * (1 if kernel == "flash 2" else 1.5)
        if (tp, pp) == (4, 4) and mb == 4:
            rows.append((9e9, f"{i},{tp},{pp},{mb},{kernel},,,,error"))
        elif peak > 76:
            rows.append((8e9, f"{i},{tp},{pp},{mb},{kernel},,,,oom"))
        else:
            rows.append((seconds, f"{i},{tp},{pp},{mb},{kernel},{seconds:.4f},{1.1 / seconds:.4f},{peak:.2f},ok"))
    return [row for _, row in sorted(rows)]


def write(folder: Path, lines: Sequence[str] | bytes, workload: object = WORKLOAD, name: str = "sweep.csv") -> Path:
    path = folder / name
    path.write_bytes(lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode())
    if workload is not None:
        text = workload if isinstance(workload, str) else json.dumps(workload)
        path.with_suffix(".json").write_text(text)
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    head = "trial_id,tp,pp,micro_batch,kernel,step_time_s,mfu,peak_gib,outcome"
    return read_table(write(tmp_path_factory.mktemp("tables"), [head, *sweep()]))


def of(*rows: tuple[str, float | None], broken: Sequence[int] = ()) -> Table:
    """A table of one knob from outcomes and times."""
    measured = tuple(Measured({"tp": i}, outcome, seconds) for i, (outcome, seconds) in enumerate(rows))
    rules = tuple(("a rule",) if i in broken else () for i in range(len(rows)))
    return Table("small", {}, measured, measured, 0, rules)


# --- tables ---

OK = "1,1,1,2.0,0.4,20,ok"
FAULTS: dict[str, tuple[Sequence[str] | bytes, object, str]] = {
    "no workload": ([HEAD, OK], None, "no workload beside it"),
    "a workload that is no JSON": ([HEAD, OK], "{", "not valid JSON"),
    "a workload that is a list": ([HEAD, OK], [1], "holds no JSON object"),
    "a workload nested without end": ([HEAD, OK], "[" * 100_000, "not valid JSON"),
    "a workload without layers": ([HEAD, OK], WORKLOAD | {"model": {"hidden": 1}}, "model.layers cannot be used"),
    "an empty file": (b"", WORKLOAD, "is empty"),
    "blank lines": (["", ""], WORKLOAD, "is empty"),
    "names alone": ([HEAD], WORKLOAD, "no row"),
    "bytes": (HEAD.encode() + b"\n\xff\xfe\n", WORKLOAD, "not UTF-8"),
    "an open quote": ([HEAD, '1,"1,1,2.0,0.4,20,ok'], WORKLOAD, "no CSV"),
    "a time that is NaN": ([HEAD, "1,1,1,nan,0.4,20,ok"], WORKLOAD, "line 2, has step_time_s 'nan'"),
    "a negative time": ([HEAD, OK, "1,2,1,-2,0.4,20,ok"], WORKLOAD, "line 3, has step_time_s '-2'"),
    "no time at all": ([HEAD, "1,1,1,0,0.4,20,ok"], WORKLOAD, "has step_time_s '0'"),
    "an endless time": ([HEAD, "1,1,1,inf,0.4,20,ok"], WORKLOAD, "has step_time_s 'inf'"),
    "a time beyond floats": ([HEAD, "1,1,1,1e999,0.4,20,ok"], WORKLOAD, "has step_time_s '1e999'"),
    "a time that is a word": ([HEAD, "1,1,1,2 s,0.4,20,ok"], WORKLOAD, "has step_time_s '2 s'"),
    "a peak that is NaN": ([HEAD, "1,1,1,2.0,0.4,NaN,ok"], WORKLOAD, "has peak_gib 'NaN'"),
    "a negative peak": ([HEAD, "1,1,1,2.0,0.4,-3,ok"], WORKLOAD, "has peak_gib '-3'"),
    "a peak of nothing": ([HEAD, "1,1,1,2.0,0.4,0.0,ok"], WORKLOAD, "has peak_gib '0.0'"),
    "an endless peak": ([HEAD, "1,1,1,2.0,0.4,-inf,ok"], WORKLOAD, "has peak_gib '-inf'"),
    "a peak in MiB": ([HEAD, "1,1,1,2.0,0.4,20480,ok"], WORKLOAD, "another unit?"),
    "an outcome of others": ([HEAD, OK, "1,2,1,,,,killed"], WORKLOAD, "outcome 'killed'"),
    "ok without a time": ([HEAD, "1,1,1,,0.4,20,ok"], WORKLOAD, "is `ok` and has no step_time_s"),
    "seconds and milliseconds": ([HEAD, OK, "1,2,1,2000,0.4,20,ok"], WORKLOAD, "more than one unit"),
    "fractions and percent": ([HEAD, OK, "1,2,1,2.0,41,20,ok"], WORKLOAD, "more than one unit"),
    "nothing that ran": ([HEAD, "1,1,1,,,,oom"], WORKLOAD, "no `ok` row"),
    "a row that is too short": ([HEAD, "1,1,1"], WORKLOAD, "line 2, has 3 cells"),
    "a knob without a value": ([HEAD, "1,,1,2.0,0.4,20,ok"], WORKLOAD, "has tp ''"),
    "a knob beyond numbers": ([HEAD, "1,1e300,1,2.0,0.4,20,ok"], WORKLOAD, "below 2^53"),
    "a column twice": ([HEAD.replace("micro_batch", "tp"), OK], WORKLOAD, "a column twice"),
    "a knob with a strange name": ([HEAD.replace("tp", "Tensor parallel"), OK], WORKLOAD, "'Tensor parallel'"),
    "no outcome": (["tp,step_time_s", "1,2.0"], WORKLOAD, "no column outcome"),
    "no knob": (["step_time_s,outcome", "2.0,ok"], WORKLOAD, "no column of a knob"),
    "words where formulas take numbers": ([HEAD, "1,two,1,2.0,0.4,20,ok"], WORKLOAD, "knob tp has the value two"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_table_that_cannot_be_is_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    lines, workload, said = FAULTS[name]
    with pytest.raises(InputRefused) as caught:
        read_table(write(tmp_path, lines, workload))
    assert said in str(caught.value)
    assert "sweep" in caught.value.what


@pytest.mark.parametrize(("bound", "said"), [("MAX_BYTES", "larger than"), ("MAX_ROWS", "more than 1 rows")])
def test_a_table_beyond_the_bounds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, said: str
) -> None:
    path = write(tmp_path, [HEAD, OK, OK])
    assert len(read_table(path).rows) == 2
    monkeypatch.setattr(replay_tables, bound, 1)
    with pytest.raises(InputRefused, match=said):
        read_table(path)


def test_a_table_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="cannot be read"):
        read_table(tmp_path / "none.csv")


def test_a_mark_at_the_start_and_crlf_are_no_fault(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeff".encode() + f"{HEAD}\r\n{OK}\r\n".encode())
    assert read_table(path).rows[0] == Measured({"tp": 1, "micro_batch": 1}, "ok", 2.0, 20.0)


def test_repeats_are_averaged_before_the_best_is_taken(tmp_path: Path) -> None:
    lines = [
        HEAD,
        "1,1,1,1.0,,30,ok",
        "2,1,1,3.0,,,ok",
        "3,1,1,,,,oom",
        "4,2,1,1.5,,20,ok",
        "5,4,1,,,,error",
        "6,4,1,,,,oom",
    ]
    found = read_table(write(tmp_path, lines))
    assert found.configurations == (
        Measured({"tp": 1, "micro_batch": 1}, "ok", 2.0, 30.0),
        Measured({"tp": 2, "micro_batch": 1}, "ok", 1.5, 20.0),
        Measured({"tp": 4, "micro_batch": 1}, "oom"),
    )
    assert found.num_contradictory == 2
    assert found.facts()["repeated_rows"] == 3
    assert found.best_seconds == 1.5
    assert min(row.step_seconds for row in found.rows if row.step_seconds) == 1.0  # what a lucky repeat would say


def test_words_are_kept_as_a_store_may_keep_them_and_numbers_among_words_are_words(
    table: Table, tmp_path: Path
) -> None:
    assert {row.configuration["kernel"] for row in table.configurations} == {"flash_2", "plain"}
    mixed = read_table(write(tmp_path, ["kernel,step_time_s,outcome", "1,2.0,ok", "flash + norm,2.0,ok"]))
    assert [row.configuration["kernel"] for row in mixed.rows] == ["1", "flash_+_norm"]


def test_rules_are_asked_for_every_configuration(tmp_path: Path) -> None:
    path = write(tmp_path, [HEAD, OK, "2,3,1,,,,error", "3,4,1,,,,error"])
    found = read_table(path)
    assert [bool(rules) for rules in found.broken_rules] == [False, True, False]
    assert found.facts()["errors_that_rules_predict"] == 1


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["ok", "oom", "error"]), st.floats(0.1, 10)), min_size=1))
def test_merging_twice_is_merging_once(rows: list[tuple[int, str, float]]) -> None:
    measured = [Measured({"tp": tp}, o, s if o == "ok" else None) for tp, o, s in rows]
    once, _ = merge(measured)
    assert merge(once) == (once, 0)
    assert len(once) == len({tp for tp, _, _ in rows})


# --- methods ---


@pytest.mark.parametrize("method", INSTALLED)
def test_every_method_tries_rows_once_and_the_same_again(
    method: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forest, "num_trees", 10)
    budget = 13 if method in ("tpe", "gp") else 10  # their models come after ten trials, ours and the others' earlier
    run = replay(table, method, 3, batch=4, budget=budget)
    assert len(run.places) == len(set(run.places)) == budget
    assert replay(table, method, 3, batch=4, budget=budget).places == run.places
    assert run.mean_seconds > 0
    # ours begins with what the formulas say, whatever the seed
    assert method == "ours" or replay(table, method, 4, batch=4, budget=4).places != run.places[:4]


@pytest.mark.parametrize("method", INSTALLED)
def test_every_method_bears_tables_with_little_to_find(method: str) -> None:
    one = of(("ok", 1.0))
    assert replay(one, method, 0, batch=4, budget=8).places == (0,)
    hard = of(*[("oom", None)] * 15, ("ok", 1.0))
    assert sorted(replay(hard, method, 0, batch=3, budget=32).places) == list(range(16))


def test_no_method_profits_from_the_order_of_a_table(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    class First(Random):
        def propose(self) -> int:
            return self.open[0]

    monkeypatch.setitem(METHODS, "first", First)
    trials = [
        figures_of(replay(table, "first", seed, batch=4, budget=32), table, 32)["trials_to_1_percent"]
        for seed in range(20)
    ]
    naive = figures_of(Run(table.name, "first", 0, tuple(range(32)), 0, 0), table, 32)["trials_to_1_percent"]
    assert naive == 1  # the table is sorted: who takes it from the top is told the answer
    assert np.mean(trials) > 8


@pytest.mark.parametrize("found", [[0, 0], [99], [-1]])
def test_a_method_that_proposes_what_it_may_not_is_found_out(found: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Random):
        def ask(self, n: int) -> list[int]:
            return found

    monkeypatch.setitem(METHODS, "wrong", Wrong)
    with pytest.raises(InfrarsiError, match="wrong proposed"):
        replay(of(("ok", 1.0), ("ok", 2.0)), "wrong", 0, batch=2, budget=2)


def test_the_nearest_row_counts_steps_of_numbers_and_differing_words() -> None:
    configurations = [{"tp": tp, "kernel": k} for tp in (1, 2, 8) for k in ("a", "b")]
    peer = Random(Given(configurations, {}, 0, 8))
    assert peer.nearest([1, 1]) == 3
    peer.open.remove(3)
    assert configurations[peer.nearest([1, 1])]["kernel"] == "b"  # half the range of tp is less than another word


def test_methods_are_chosen_by_name_or_by_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_methods("random, ours,random") == (["random", "ours"], [])
    with pytest.raises(UsageError, match="no method 'annealing'"):
        chosen_methods("annealing")
    monkeypatch.setattr(replay_methods, "find_spec", lambda _: None)
    methods, remarks = chosen_methods(None)
    assert methods == ["ours", "random"]
    assert remarks[0] == "tpe is left out: optuna is not installed"
    with pytest.raises(UsageError, match="smac needs smac"):
        chosen_methods("ours,smac")


# --- figures ---


def test_figures_of_a_run_by_hand() -> None:
    rows = [
        ("oom", None),
        ("error", None),
        ("error", None),
        ("ok", 2.0),
        ("ok", 1.04),
        ("ok", 4.0),
        ("ok", 1.0),
        ("oom", None),
    ]
    small = of(*rows, broken=[1])
    found = figures_of(Run("small", "x", 0, tuple(range(8)), 0.0, 0.0), small, 8)
    assert found["trials_to_5_percent"] == 5
    assert found["trials_to_1_percent"] == 7
    assert found["best_after_8"] == found["best_after_16"] == 1.0
    assert found["failed_8"] == 3 / 8  # two out of memory, one that a rule predicts; counting every failure says 4 / 8
    assert found["error_8"] == 1 / 8
    early = figures_of(Run("small", "x", 0, (0, 1, 3), 0.0, 0.0), small, 3)
    assert early["trials_to_5_percent"] == early["trials_to_1_percent"] == 4  # never: the budget and one
    assert curve(Run("small", "x", 0, (0, 3, 6), 0.0, 0.0), small, 5).tolist() == [4.0, 2.0, 1.0, 1.0, 1.0]


@given(st.permutations(range(6)), st.integers(6, 12))
def test_a_regret_curve_falls_to_the_best(order: list[int], budget: int) -> None:
    small = of(("oom", None), ("ok", 3.0), ("ok", 2.0), ("error", None), ("ok", 1.0), ("ok", 5.0))
    found = curve(Run("small", "x", 0, tuple(order), 0.0, 0.0), small, budget)
    assert len(found) == budget
    assert np.all(np.diff(found) <= 0)
    assert found[-1] == 1.0


def test_means_over_tables_count_each_table_once_and_ratios_as_logarithms() -> None:
    first, second = of(("ok", 1.0), ("ok", 4.0)), of(("ok", 1.0), ("ok", 1.0))
    second = Table("other", {}, second.rows, second.configurations, 0, second.broken_rules)
    runs = [Run(name, "x", seed, (1,), 0.5, 1.0 + seed) for name in ("small", "other") for seed in (0, 1)]
    summary = summarise(runs, [first, second], 1)
    found = summary["overall"]["x"]["figures"]
    assert found["best_after_8"]["value"] == pytest.approx(2.0)  # the mean of ratios would say 2.5
    assert found["best_after_8"]["low"] == pytest.approx(1.0)
    assert found["best_after_8"]["high"] == pytest.approx(4.0)
    assert (found["proposal_seconds_mean"], found["proposal_seconds_max"]) == (0.5, 2.0)
    assert summary["by_table"]["small"]["x"]["regret"]["mean_log"] == pytest.approx([np.log(4)])
    assert set(FIGURES) < set(found)
    assert summarise(runs, [first, second], 1) == summary


def test_more_seeds_narrow_an_interval() -> None:
    small = of(*[("ok", 1.0 + i) for i in range(16)])

    def width(num: int) -> float:
        runs = [Run("small", "x", seed, (seed % 16,), 0.0, 0.0) for seed in range(num)]
        found = summarise(runs, [small], 1)["overall"]["x"]["figures"]["best_after_8"]
        assert found["low"] <= found["value"] <= found["high"]
        return float(np.log(found["high"] / found["low"]))

    assert width(160) < 0.5 * width(16)


# --- the store ---


def test_a_table_becomes_experience_that_is_read_back(table: Table, tmp_path: Path) -> None:
    path = write_store(tmp_path, table)
    assert write_store(tmp_path, table) == path
    assert store.device_keys(tmp_path) == ["nvidia-a100-80gib-sxm4"]
    loaded = store.load(tmp_path, "nvidia-a100-80gib-sxm4", workload_kind="transformer")
    assert loaded.skipped == []
    assert len(loaded.trials) == len(table.rows)
    row = loaded.campaigns["sweep"]
    read = workload_of(row.shape, row.versions)
    wanted = TransformerWorkload.model_validate(WORKLOAD | {"model": WORKLOAD["model"] | {"kv_heads": 16}})
    assert read == wanted
    assert row.between_run_cv == UNKNOWN_SPREAD
    of_outcome = [trial.observation.outcome for trial in loaded.trials]
    assert of_outcome.count(Outcome.DEVICE_OOM) == sum(r.outcome == "oom" for r in table.rows) > 0
    fastest = min(t.observation.step_seconds for t in loaded.trials if t.observation.step_seconds is not None)
    assert fastest == table.best_seconds


def test_experience_of_the_same_workload_is_named(table: Table, tmp_path: Path) -> None:
    write_store(tmp_path, table)
    other = Table("other", WORKLOAD | {"gpus": 32}, table.rows, table.configurations, 0, table.broken_rules)
    assert overlaps([tmp_path], [table, other]) == ["sweep"]
    assert overlaps([], [table]) == []


@pytest.mark.parametrize(
    ("workload", "said"),
    [({"memory_gib": 80}, "has no model"), (WORKLOAD | {"gpu": WORKLOAD["gpu"] | {"name": ""}}, "filed by card")],
)
def test_what_is_no_transformer_or_names_no_card_stays_out(
    workload: Any, said: str, table: Table, tmp_path: Path
) -> None:
    with pytest.raises(InputRefused, match=said):
        write_store(tmp_path, Table("x", workload, table.rows, table.configurations, 0, table.broken_rules))
    assert list(tmp_path.iterdir()) == []


def test_the_spread_of_repeats_is_pooled_around_each_configuration() -> None:
    rows = [Measured({"tp": tp}, "ok", base * factor) for tp, base in ((1, 1.0), (2, 8.0)) for factor in (0.98, 1.02)]
    naive = float(np.std(np.log([row.step_seconds for row in rows if row.step_seconds]), ddof=1))
    assert spread_of(rows) == pytest.approx(0.0283, rel=0.01)
    assert naive > 1  # the spread over configurations is not that of runs


# --- the command ---


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(REPLAY), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)


def test_the_command_says_and_writes_what_it_found(table: Table, tmp_path: Path) -> None:
    head = "trial_id,tp,pp,micro_batch,kernel,step_time_s,mfu,peak_gib,outcome"
    path = write(tmp_path, [head, *sweep()])
    outs = {name: tmp_path / f"out.{name}" for name in ("json", "markdown", "plot")}
    words = [word for name, out in outs.items() for word in (f"--{name}", out)]
    done = command(
        path, "--methods", "ours,random", "--seeds", 2, "--budget", 10, *words, "--write-store", tmp_path / "store"
    )
    assert done.returncode == 0, done.stderr
    assert "54 configurations" in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:]] == ["ours", "random"]
    found = json.loads(outs["json"].read_text())
    assert found["tables"]["sweep"]["configurations"] == 54
    assert len(found["overall"]["ours"]["regret"]["mean_log"]) == 10
    assert len(found["runs"]) == 4
    assert "| random |" in outs["markdown"].read_text()
    assert "regret-1" in outs["plot"].read_text()
    assert store.device_keys(tmp_path / "store") == ["nvidia-a100-80gib-sxm4"]
    assert table.name == "sweep"


WRONG: dict[str, tuple[Callable[[Path], list[object]], int, str]] = {
    "a bad table": (lambda folder: [write(folder, b"")], 3, "is empty"),
    "a table twice": (lambda folder: [write(folder, [HEAD, OK])] * 2, 2, "two tables are called sweep"),
    "no trials": (lambda folder: [write(folder, [HEAD, OK]), "--budget", 0], 2, "--budget is 0"),
    "no store": (lambda folder: [write(folder, [HEAD, OK]), "--experience", folder / "x"], 2, "no experience store"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_ends_with_a_reason_and_no_trace(name: str, tmp_path: Path) -> None:
    arguments, code, said = WRONG[name]
    done = command(*arguments(tmp_path))
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
