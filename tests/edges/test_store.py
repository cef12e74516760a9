"""The experience store: what goes in comes out, once; what is broken is left out with its reason."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi_hpc.domain.campaign import replay
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import RETRIED, Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.edges.store import folder as store
from infrarsi_hpc.edges.store import format as store_format
from infrarsi_hpc.edges.store.audit import inspect_file
from infrarsi_hpc.edges.store.format import SegmentRefused
from infrarsi_hpc.edges.store.rows import (
    CampaignRow,
    StoredTrial,
    campaigns_of,
    patches_of,
    round_trials,
    to_tables,
    trials_of,
)
from infrarsi_hpc.errors import StoreError

KEY = "cpu-epyc-2core"
SHAPE = {"layers": 2, "hidden": 64, "global_batch": 8}
PATCH = Patch(name="fused", title="fused attention é", text="--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n")


def campaign(name: str = "night", **changes: Any) -> CampaignRow:
    fields: dict[str, Any] = {
        "campaign": name,
        "contract_sha256": "ab" * 32,
        "workload_kind": "torch-gpt",
        "shape": SHAPE,
        "versions": {"torch": "2.13.0"},
        "memory_kind": "vmdata_growth",
        "capacity_gib": 4.0,
        "step_seconds": 0.8,
        "within_run_cv": 0.02,
        "between_run_cv": 0.01,
        "detectable_speedup": 1.02,
    }
    return CampaignRow(**{**fields, **changes})


def trial(name: str = "t-0001", number: int = 3, of: str = "night", **changes: Any) -> StoredTrial:
    fields: dict[str, Any] = {
        "trial": name,
        "configuration": {"micro_batch": 4, "recompute": "on", "fraction": 0.5},
        "patches": (PATCH.sha256,),
        "outcome": Outcome.OK,
        "step_seconds": 0.5,
        "step_noise": 0.01,
        "peak_gib": 1.25,
        "device_seconds": 12.5,
        "source": "model",
    }
    purpose = changes.pop("purpose", "search")
    observation = Observation(**{**fields, **changes})
    return StoredTrial(
        campaign=of, round=number, candidate="0" * 12, purpose=purpose, observation=observation, finished_at=1.7e9
    )


def oom(name: str, **changes: Any) -> StoredTrial:
    fields = {
        "outcome": Outcome.DEVICE_OOM,
        "detail": "limit",
        "step_seconds": None,
        "peak_gib": None,
        "bound_gib": 4.0,
    }
    return trial(name, **{**fields, **changes})


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """One good file of three trials and a patch."""
    rows = [trial("t-0001"), oom("t-0002"), trial("t-0003", outcome=Outcome.CRASHED, step_seconds=None, peak_gib=None)]
    return store.append(tmp_path / "store", KEY, campaign(), 3, rows, [PATCH])


def test_what_goes_in_comes_out(segment: Path, tmp_path: Path) -> None:
    loaded = store.load(tmp_path / "store", KEY)
    assert loaded.skipped == []
    assert [t.observation.trial for t in loaded.trials] == ["t-0001", "t-0002", "t-0003"]
    assert loaded.trials[0] == trial("t-0001")
    assert loaded.trials[1].observation.bound_gib == 4.0
    assert loaded.trials[1].censoring == "right"
    assert loaded.patches == {PATCH.sha256: PATCH}
    assert loaded.campaigns == {"night": campaign()}
    assert segment.name == "night-abababab-r0003.h5"
    assert sorted(p.name for p in segment.parent.iterdir()) == [segment.name]


def test_a_small_round_takes_little_space_and_its_columns_are_compressed_with_units(segment: Path) -> None:
    assert segment.stat().st_size < 40_000
    with h5py.File(segment, "r") as file:
        column = file["trials/peak_gib"]
        assert column.compression == "gzip"
        assert bytes(column.attrs["unit"]) == b"GiB"
        assert all(int(c.attrs["schema_version"]) == 1 for table in file.values() for c in table.values())


def test_the_same_round_again_gives_the_same_file_and_another_content_is_an_error(
    segment: Path, tmp_path: Path
) -> None:
    rows = list(store.load(tmp_path / "store", KEY).trials)
    before = segment.read_bytes()
    assert store.append(tmp_path / "store", KEY, campaign(), 3, rows, [PATCH]) == segment
    with pytest.raises(StoreError, match="other content"):
        store.append(tmp_path / "store", KEY, campaign(), 3, rows[:2], [PATCH])
    assert segment.read_bytes() == before


def test_a_trial_is_not_stored_in_two_rounds(segment: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"t-0001 .* is in night-abababab-r0003\.h5 already"):
        store.append(tmp_path / "store", KEY, campaign(), 4, [trial("t-0001", 4)])
    assert store.append(tmp_path / "store", KEY, campaign(), 4, [trial("t-0004", 4)]).exists()


def test_a_trial_in_two_files_counts_once_and_a_contradiction_is_told(segment: Path, tmp_path: Path) -> None:
    shutil.copy(segment, segment.with_name("copy.h5"))
    other = to_tables([campaign()], [trial("t-0001", step_seconds=0.25)], [])
    segment.with_name("aa-told-otherwise.h5").write_bytes(store_format.encode(KEY, other))
    loaded = store.load(tmp_path / "store", KEY)
    assert len(loaded.trials) == 3
    assert {s.code for s in loaded.skipped} == {"contradiction"}


def test_a_round_without_trials_is_kept_too(tmp_path: Path) -> None:
    path = store.append(tmp_path, KEY, campaign(), 1, [])
    assert path == store.append(tmp_path, KEY, campaign(), 1, [])
    assert store.load(tmp_path, KEY) == store.Loaded()


def test_a_row_that_cannot_be_is_refused_when_it_is_written(tmp_path: Path) -> None:
    for bad in ({"step_seconds": math.nan}, {"peak_gib": -1.0}, {"peak_gib": 72908.0}, {"source": "a\0b"}):
        with pytest.raises(StoreError):
            store.append(tmp_path, KEY, campaign(), 3, [trial(**bad)])
    assert list(tmp_path.rglob("*.h5")) == []


@pytest.mark.parametrize("key", ["../x", "A100", "", "a/b", ".hidden", "a\n"])
def test_a_device_key_never_names_another_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(StoreError):
        store.load(tmp_path, key)


def test_the_users_store_is_where_the_environment_says(tmp_path: Path) -> None:
    home = tmp_path
    assert store.default_store({}, home) == home / ".local/share/infrarsi/store"
    assert store.default_store({"XDG_DATA_HOME": "/data"}, home) == Path("/data/infrarsi/store")
    assert store.default_store({"XDG_DATA_HOME": "relative"}, home) == home / ".local/share/infrarsi/store"
    assert store.default_store({"XDG_DATA_HOME": "/data", "INFRARSI_STORE": "/s"}, home) == Path("/s")


def test_a_rounds_rows_come_from_the_ledger_and_lost_attempts_are_none() -> None:
    def plan(name: str) -> dict[str, Any]:
        return {"trial": name, "candidate": {"configuration": {"micro_batch": 2}}, "lengths": [8], "seed": 1}

    events: list[dict[str, Any]] = [
        {"event": "planned", "round": 1, "purpose": "search", "trials": [plan(n) for n in ("t1", "t2", "t3")]},
        {"event": "planned", "round": 2, "purpose": "search", "trials": [plan("t4")]},
    ]
    for name, outcome in (("t1", "ok"), ("t2", "infra"), ("t3", "ok"), ("t4", "ok")):
        reading = {"step_seconds": 0.5, "peak_gib": 1.0} if outcome == "ok" else None
        events.append(
            {"event": "finished", "trial": name, "attempt": 1, "ending": {"outcome": outcome}, "reading": reading}
        )
        belief = "refused" if name == "t3" else "believed"
        events.append({"event": "judged", "trial": name, "verdict": {"belief": belief}})
    state = replay({"seq": n, "time": 1e9 + n, **event} for n, event in enumerate(events, start=1))
    rows = round_trials(state, "night-1", 1)
    assert [(row.observation.trial, row.observation.outcome, row.observation.step_seconds) for row in rows] == [
        ("t1", Outcome.OK, 0.5),
        ("t3", Outcome.REFUSED, None),
    ]
    assert rows[0].finished_at == 1e9 + 3


# --- faults: each is a change to a good file, and the reason expected ---


def _replace(path: str, make: Callable[[Any, str], None]) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file[path]
        make(file, path)

    return change


def _attribute(path: str, name: str, value: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        file[path].attrs[name] = value

    return change


def _drop_attribute(file: Any, name: str) -> None:
    del file.attrs[name]


def _make_reference(file: Any, path: str) -> None:
    file.create_dataset(path, data=np.array([file["trials"].ref] * 3, dtype=h5py.ref_dtype))


def _make_virtual(file: Any, path: str) -> None:
    layout = h5py.VirtualLayout(shape=(3,), dtype="<f8")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", shape=(3,))
    file.create_virtual_dataset(path, layout)


def _make_external(file: Any, path: str) -> None:
    file.create_dataset(path, shape=(3,), dtype="<f8", external=[("/etc/passwd", 0, 24)])


def _make_huge(file: Any, path: str) -> None:
    file.create_dataset(path, shape=(10**15,), dtype="<f8", chunks=(1000,), compression="gzip")


def _make_unfilled(file: Any, path: str) -> None:
    file.create_dataset(path, shape=(100_000,), dtype="<f8", chunks=(1000,), compression="gzip")


def _make_huge_chunk(file: Any, path: str) -> None:
    file.create_dataset(path, shape=(3,), maxshape=(None,), dtype="<f8", chunks=(2**27,), compression="gzip")


def _ring(file: Any) -> None:
    file["trials/again"] = file["trials"]


FAULTS: dict[str, tuple[Callable[[Any], None], str]] = {
    "external link": (
        _replace("trials/peak_gib", lambda f, p: f.__setitem__(p, h5py.ExternalLink("/etc/passwd", "/"))),
        "external_link",
    ),
    "external link as a table": (
        _replace("patches", lambda f, p: f.__setitem__(p, h5py.ExternalLink("x.h5", "/"))),
        "external_link",
    ),
    "soft link": (
        _replace("trials/peak_gib", lambda f, p: f.__setitem__(p, h5py.SoftLink("/trials/bound_gib"))),
        "soft_link",
    ),
    "object references": (_replace("trials/peak_gib", _make_reference), "object_reference"),
    "reference in an attribute": (lambda f: f.attrs.create("format", f["trials"].ref), "foreign_layout"),
    "virtual data set": (_replace("trials/peak_gib", _make_virtual), "external_link"),
    "data in another file": (_replace("trials/peak_gib", _make_external), "external_link"),
    "claims a petabyte": (_replace("trials/peak_gib", _make_huge), "claimed_size"),
    "claims rows it does not store": (_replace("trials/peak_gib", _make_unfilled), "claimed_size"),
    "claims a chunk of a gigabyte": (_replace("trials/peak_gib", _make_huge_chunk), "claimed_size"),
    "text of variable length": (
        _replace("trials/outcome", lambda f, p: f.create_dataset(p, data=["ok"] * 3)),
        "odd_type",
    ),
    "compound type": (
        _replace("trials/peak_gib", lambda f, p: f.create_dataset(p, data=np.zeros(3, "i4,f4"))),
        "odd_type",
    ),
    "opaque type": (_replace("trials/peak_gib", lambda f, p: f.create_dataset(p, data=np.zeros(3, "V8"))), "odd_type"),
    "single precision": (
        _replace("trials/peak_gib", lambda f, p: f.create_dataset(p, data=np.zeros(3, "<f4"))),
        "odd_type",
    ),
    "another filter": (
        _replace("trials/peak_gib", lambda f, p: f.create_dataset(p, data=np.zeros(3), compression="lzf")),
        "odd_type",
    ),
    "named type": (lambda f: f["trials"].__setitem__("kind", np.dtype("<f8")), "odd_type"),
    "two dimensions": (
        _replace("trials/peak_gib", lambda f, p: f.create_dataset(p, data=np.zeros((3, 1)))),
        "claimed_size",
    ),
    "name outside the schema": (lambda f: f["trials"].create_dataset("log", data=np.zeros(3)), "unknown_name"),
    "attribute outside the schema": (lambda f: f.attrs.__setitem__("user", np.bytes_(b"jroe")), "unknown_name"),
    "name with a control character": (lambda f: f["trials"].create_group("a\x1b[2J"), "odd_name"),
    "name that climbs": (lambda f: f["trials"].create_group("..\u2028"), "odd_name"),
    "too many objects": (lambda f: [f.create_group(f"g{i}") for i in range(1001)], "too_large"),
    "a ring of groups": (_ring, "too_large"),
    "column missing": (lambda f: f["trials"].__delitem__("peak_gib"), "incomplete"),
    "end mark missing": (lambda f: _drop_attribute(f, "end_mark"), "incomplete"),
    "checksum missing": (lambda f: _drop_attribute(f, "sha256"), "incomplete"),
    "columns of different lengths": (
        _replace("trials/is_believed", lambda f, p: _put(f, p, np.ones(2, "u1"), "1")),
        "incomplete",
    ),
    "newer schema": (_attribute("/", "schema_version", np.int64(2)), "newer_schema"),
    "newer schema of one column": (_attribute("trials/peak_gib", "schema_version", np.int64(2)), "newer_schema"),
    "another layout": (_attribute("/", "format", np.bytes_(b"other")), "foreign_layout"),
    "memory in MiB": (_attribute("trials/peak_gib", "unit", np.bytes_(b"MiB")), "wrong_unit"),
    "an edited number": (lambda f: f["trials/peak_gib"].__setitem__(0, 1.0), "checksum"),
    "another device's key": (_attribute("/", "device_key", np.bytes_(b"nvidia-h100")), "checksum"),
    "an edited flag": (lambda f: f["trials/is_believed"].__setitem__(0, 7), "odd_type"),
}


def _put(file: Any, path: str, data: Any, unit: str) -> None:
    column = file.create_dataset(path, data=data)
    column.attrs["schema_version"], column.attrs["unit"] = np.int64(1), np.bytes_(unit.encode())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused_with_its_reason_and_costs_its_own_file_alone(
    segment: Path, tmp_path: Path, name: str
) -> None:
    change, code = FAULTS[name]
    bad = segment.with_name("received.h5")
    shutil.copy(segment, bad)
    with h5py.File(bad, "r+") as file:
        change(file)
    with pytest.raises(SegmentRefused) as caught:
        store_format.read(bad)
    assert caught.value.code == code
    loaded = store.load(tmp_path / "store", KEY)
    assert len(loaded.trials) == 3
    assert [(s.file, s.code) for s in loaded.skipped] == [("received.h5", code)]
    report = inspect_file(bad)
    assert (report["outcome"], report["detail"]) == ("refused", code)


NOT_HDF5: dict[str, tuple[bytes, str]] = {
    "zero bytes": (b"", "empty"),
    "web page": (b"\n <!doctype html><html>404</html>", "html"),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "pointer"),
    "git-annex pointer": (b"/annex/objects/SHA256E-s1--00.h5\n", "pointer"),
    "text": (b"hello", "not_hdf5"),
    "pickle": (b"\x80\x04cos\nsystem\n", "not_hdf5"),
    "signature alone": (b"\x89HDF\r\n\x1a\n", "damaged"),
}


@pytest.mark.parametrize("name", NOT_HDF5)
def test_what_is_no_hdf5_is_called_what_it_is(segment: Path, tmp_path: Path, name: str) -> None:
    content, code = NOT_HDF5[name]
    segment.with_name("received.h5").write_bytes(content)
    loaded = store.load(tmp_path / "store", KEY)
    assert [(s.file, s.code) for s in loaded.skipped] == [("received.h5", code)]
    assert len(loaded.trials) == 3


def test_a_file_cut_off_anywhere_is_refused(segment: Path) -> None:
    whole = segment.read_bytes()
    bad = segment.with_name("received.h5")
    for length in [8, 48, 100, len(whole) // 2, len(whole) - 1]:
        bad.write_bytes(whole[:length])
        with pytest.raises(SegmentRefused) as caught:
            store_format.read(bad)
        assert caught.value.code in {"truncated", "damaged"}


def test_a_link_a_folder_and_an_oversized_file_are_refused(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = segment.with_name("link.h5")
    link.symlink_to(segment)
    folder = segment.with_name("folder.h5")
    folder.mkdir()
    for path in (link, folder, segment.with_name("missing.h5")):
        with pytest.raises(SegmentRefused) as caught:
            store_format.read(path)
        assert caught.value.code == "not_a_file"
    monkeypatch.setattr(store_format, "MAX_FILE_BYTES", 1000)
    with pytest.raises(SegmentRefused) as caught:
        store_format.read(segment)
    assert caught.value.code == "too_large"


def test_a_file_left_open_by_a_killed_writer_is_refused(segment: Path) -> None:
    content = bytearray(segment.read_bytes())
    code = "import h5py, sys, os\nf = h5py.File(sys.argv[1], 'r+', libver='latest'); f.flush(); os._exit(0)\n"
    subprocess.run([sys.executable, "-B", "-c", code, segment], check=True, timeout=300)
    assert bytes(content) != segment.read_bytes()
    with pytest.raises(SegmentRefused) as caught:
        store_format.read(segment)
    assert caught.value.code == "open_for_write"


def test_flipped_bytes_never_change_what_is_read(segment: Path) -> None:
    # every 37th byte of the file, one at a time: refused, or (padding) exactly the same content
    whole = segment.read_bytes()
    expected = store_format.read(segment)
    bad = segment.with_name("received.h5")
    refused = 0
    for place in range(0, len(whole), 97):
        content = bytearray(whole)
        content[place] ^= 0xFF
        bad.write_bytes(content)
        try:
            assert store_format.read(bad) == expected
        except SegmentRefused:
            refused += 1
    assert refused > len(whole) // 97 // 4


def test_a_file_of_another_device_is_left_out(segment: Path, tmp_path: Path) -> None:
    (tmp_path / "store" / "nvidia-h100").mkdir()
    shutil.copy(segment, tmp_path / "store" / "nvidia-h100")
    loaded = store.load(tmp_path / "store", "nvidia-h100")
    assert loaded.trials == []
    assert [s.code for s in loaded.skipped] == ["device_key"]
    assert store.device_keys(tmp_path / "store") == [KEY, "nvidia-h100"]


# --- rows: a file with a right checksum may still hold values that cannot be ---

BAD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "NaN": ({"step_seconds": math.nan}, "step_seconds is nan"),
    "infinite": ({"peak_gib": math.inf}, "peak_gib is inf"),
    "negative": ({"device_seconds": -1.0}, "device_seconds is negative"),
    "minus one for unknown": ({"peak_gib": -1.0}, "peak_gib is negative"),
    "MiB under GiB": ({"peak_gib": 72908.0}, "another unit"),
    "more than the device holds": ({"peak_gib": 5.2}, "another unit"),
    "step of zero": ({"step_seconds": 0.0}, "step_seconds is 0"),
    "value with a flag against it": ({"has_bound_gib": 0, "bound_gib": 2.0}, "flag that says it has none"),
    "half a record": ({"outcome": ""}, "half a record"),
    "outcome outside the list": ({"outcome": "great"}, "great"),
    "outcome that teaches nothing": ({"outcome": "infra"}, "never stored"),
    "censoring against the outcome": ({"censoring": "right"}, "contradicts"),
    "settings that are no JSON": ({"configuration": "{"}, ""),
    "settings that name a knob twice": ({"configuration": '{"a": 1, "a": 2}'}, "twice"),
    "settings with NaN": ({"configuration": '{"a": NaN}'}, "NaN"),
    "settings with a list": ({"configuration": '{"a": [1]}'}, ""),
    "a shell line as a value": ({"configuration": '{"a": "x; rm -rf /"}'}, "not a short word"),
    "a knob's name with a blank": ({"configuration": '{"a b": 1}'}, "no knob's name"),
    "nested without end": ({"configuration": "[" * 16000}, "nested too deeply"),
    "a campaign without a row": ({"campaign": "unknown"}, "no row of its own"),
    "a trial id with a path": ({"trial": "../t"}, ""),
    "a negative round": ({"round": -1}, "round"),
    "a purpose outside the list": ({"purpose": "fun"}, "purpose"),
    "a detail with markup": ({"detail": "<b>"}, "not a short word"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_that_cannot_be_is_dropped_and_counted_and_the_others_stay(tmp_path: Path, name: str) -> None:
    changes, reason = BAD_ROWS[name]
    tables = to_tables([campaign()], [trial("t-0001"), trial("t-0002")], [])
    for column, value in changes.items():
        tables["trials"][column][1] = value
    (tmp_path / KEY).mkdir()
    path = tmp_path / KEY / "x.h5"
    path.write_bytes(store_format.encode(KEY, tables))
    loaded = store.load(tmp_path, KEY)
    assert [t.observation.trial for t in loaded.trials] == ["t-0001"]
    assert [s.code for s in loaded.skipped] == ["bad_row"]
    assert reason in loaded.skipped[0].reason
    assert inspect_file(path)["detail"] == "bad_row"


def test_a_patch_that_is_not_what_its_digest_says_is_dropped(tmp_path: Path) -> None:
    tables = to_tables([campaign()], [trial()], [PATCH])
    tables["patches"]["text"][0] += "+import os\n"
    (tmp_path / KEY).mkdir()
    (tmp_path / KEY / "x.h5").write_bytes(store_format.encode(KEY, tables))
    loaded = store.load(tmp_path, KEY)
    assert loaded.patches == {}
    assert "digest" in loaded.skipped[0].reason


def test_a_thousand_bad_rows_are_ten_reports_and_a_count(tmp_path: Path) -> None:
    tables = to_tables([campaign()], [trial(f"t-{i}") for i in range(1000)], [])
    tables["trials"]["outcome"] = [""] * 1000
    (tmp_path / KEY).mkdir()
    (tmp_path / KEY / "x.h5").write_bytes(store_format.encode(KEY, tables))
    skipped = store.load(tmp_path, KEY).skipped
    assert len(skipped) == 11
    assert "990 more" in skipped[-1].reason


# --- experience of others ---


def test_experience_is_what_other_campaigns_measured_campaign_by_campaign(tmp_path: Path) -> None:
    for name in ("mine", "zebra", "ant"):
        trials = [trial("t-0001", of=name), trial("t-0002", of=name, purpose="verify")]
        store.append(tmp_path, KEY, campaign(name), 3, trials)
    told = store.by_campaign(store.load(tmp_path, KEY), without="mine")
    assert [row.campaign for row, _ in told] == ["ant", "zebra"]
    assert [[row.trial for row in rows] for _, rows in told] == [["ant/t-0001"], ["zebra/t-0001"]]
    assert told[0][1][0].source == "experience:ant"


def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert store.load(tmp_path / "none", KEY) == store.Loaded()
    assert store.device_keys(tmp_path / "none") == []


def test_no_more_trials_are_read_than_asked_for(tmp_path: Path) -> None:
    for number in range(3):
        store.append(tmp_path, KEY, campaign(), number, [trial(f"t-{number}", number)])
    loaded = store.load(tmp_path, KEY, max_trials=2)
    assert len(loaded.trials) == 2
    assert [s.code for s in loaded.skipped] == ["limit"]


def test_an_append_killed_at_any_moment_leaves_whole_rounds_and_can_be_repeated(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[2])\n"
        "from test_store import *\n"
        "print('ready', flush=True)\n"
        "for number in range(200):\n"
        "    store.append(pathlib.Path(sys.argv[1]), KEY, campaign(), number, [trial(f't-{number}', number)])\n"
    )
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-B", "-c", code, tmp_path, Path(__file__).parent], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        before = len(list((tmp_path / KEY).glob("*.h5"))) if (tmp_path / KEY).exists() else 0
        while not (tmp_path / KEY).exists() or len(list((tmp_path / KEY).glob("*.h5"))) < before + 3:
            assert child.poll() is None
            os.sched_yield()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        loaded = store.load(tmp_path, KEY)
        assert loaded.skipped == []
        assert len(loaded.trials) == len(list((tmp_path / KEY).glob("*.h5")))
    store.append(tmp_path, KEY, campaign(), 999, [trial("t-999", 999)], wait_seconds=0)


# --- laws ---

_words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
_settings = st.dictionaries(
    _words,
    st.one_of(
        st.integers(-(10**9), 10**9), st.floats(-1e9, 1e9), st.from_regex(r"[a-z][a-z0-9.]{0,6}", fullmatch=True)
    ),
    max_size=5,
)
_reals = st.one_of(st.none(), st.floats(1e-6, 3.9))


@st.composite
def _trials(draw: Any) -> list[StoredTrial]:
    names = draw(st.lists(st.from_regex(r"[a-z][0-9a-z-]{0,12}", fullmatch=True), unique=True, max_size=6))
    outcomes = st.sampled_from([o for o in Outcome if o not in RETRIED])
    return [
        trial(
            name,
            outcome=draw(outcomes),
            configuration=draw(_settings),
            step_seconds=draw(_reals),
            peak_gib=draw(_reals),
            bound_gib=draw(_reals),
            step_noise=draw(_reals),
            is_believed=draw(st.booleans()),
            source=draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)),
        )
        for name in names
    ]


@settings(max_examples=40)
@given(rows=_trials())
def test_reading_what_was_encoded_is_the_identity(
    rows: list[StoredTrial], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("law") / "x.h5"
    path.write_bytes(store_format.encode(KEY, to_tables([campaign()], rows, [PATCH])))
    tables = store_format.read(path).tables
    campaigns, bad = campaigns_of(tables["campaigns"])
    read, bad_trials = trials_of(tables["trials"], {c.campaign: c for c in campaigns})
    patches, bad_patches = patches_of(tables["patches"])
    assert (campaigns, read, patches) == ([campaign()], rows, [PATCH])
    assert [*bad, *bad_trials, *bad_patches] == []


# --- files of another making ---

FOREIGN: dict[str, tuple[Callable[[Any], None], set[str]]] = {
    "a trial without an outcome": (lambda f: f.create_group("a100/trials/0"), {"half_record"}),
    "numbers without a unit": (lambda f: f.create_dataset("a100/step_ms", data=[1.0, 2.0]), {"no_unit"}),
    "NaN, infinite and negative": (
        lambda f: f.create_dataset("x", data=[math.nan, math.inf, -1.0]),
        {"bad_value", "no_unit"},
    ),
    "mixed units": (
        lambda f: [f.create_dataset(f"trials/t{i}/peak", data=v) for i, v in enumerate((71.2, 72908.0))],
        {"unit_mix", "half_record", "no_unit"},
    ),
    "a person": (lambda f: f.attrs.__setitem__("user", "jroe"), {"personal_data"}),
    "a path": (
        lambda f: f.create_dataset("log", data="/home/jroe/run.sh on login2.willow.example.edu"),
        {"personal_data", "odd_type"},
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_making_is_refused_and_what_it_lacks_is_listed(tmp_path: Path, name: str) -> None:
    make, codes = FOREIGN[name]
    path = tmp_path / "other.h5"
    with h5py.File(path, "w") as file:
        make(file)
    report = inspect_file(path)
    assert (report["outcome"], report["detail"]) == ("refused", "foreign_layout")
    assert {f["code"] for f in report["findings"]} == codes


def test_a_good_files_facts_are_told(segment: Path) -> None:
    report = inspect_file(segment)
    assert (report["outcome"], report["detail"]) == ("ok", None)
    assert {f["where"]: f["text"] for f in report["findings"]}["trials"] == "3"
