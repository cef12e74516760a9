"""Every profile comes through one strict door: problems have their line and field, and nothing is half-read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.shipped import shipped
from infrarsi_hpc.edges.site_text import line_of, profile_toml, user_toml
from infrarsi_hpc.edges.site_trust import FILE, remember_import
from infrarsi_hpc.edges.sites import Refusal, check_name, parse, profile_paths, read_file, read_profile
from infrarsi_hpc.errors import ProfileError, UsageError

HEAD = 'schema_version = 1\nname = "mine"\n'


def own_folder(home: Path) -> Path:
    folder = home / ".config" / "infrarsi" / "sites"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


REFUSED = {
    "a future schema": (
        'schema_version = 2\nname = "mine"\nnew = { x = 1 }\n',
        ["schema 2; this version reads up to 1"],
    ),
    "a schema in quotes": ('schema_version = "1"\nname = "mine"\n', ["schema_version (line 1)", "'1'"]),
    "a true schema": ('schema_version = true\nname = "mine"\n', ["schema_version (line 1)"]),
    "schema nought": ('schema_version = 0\nname = "mine"\n', ["schema_version (line 1)"]),
    "no schema": ('name = "mine"\n', ["schema_version: is missing"]),
    "a key twice": (HEAD + 'name = "mine"\n', ["not valid TOML", "line 3", "stands twice"]),
    "a key twice in a list of tables": (
        HEAD + '\n[[partition]]\nname = "a"\nname = "b"\n',
        ["line 6", "stands twice"],
    ),
    "a table twice": (HEAD + "[limits]\n[limits]\n", ["line 4", "stands twice"]),
    "an open string": (HEAD + 'description = "x\n', ["not valid TOML", "line 3"]),
    "nothing but brackets": ("[" * 100_000, ["not valid TOML"]),
    "a number without end": (HEAD + "[limits]\narray_size = " + "9" * 5000 + "\n", ["not valid TOML"]),
    "a text for a number": (HEAD + '[limits]\npoll_seconds = "5"\n', ["limits.poll_seconds (line 4)", "'5'"]),
    "a number for a text": (HEAD + "description = 5\n", ["description (line 3)", "found 5"]),
    "a truth for a number": (HEAD + "[limits]\narray_size = true\n", ["limits.array_size (line 4)"]),
    "a list for a text": ('schema_version = 1\nname = ["mine"]\n', ["name (line 2)", "found a list"]),
    "a time without quotes": (
        HEAD + '[[partition]]\nname = "a"\nmax_time = 12:30:00\n',
        ["partition.0.max_time (line 5)", '"12:30:00"'],
    ),
    "no time at all": (HEAD + '[[partition]]\nname = "a"\nmax_time = "soon"\n', ["partition.0.max_time (line 5)"]),
    "a time with a newline": (HEAD + '[[partition]]\nname = "a"\nmax_time = "30\\n"\n', ["partition.0.max_time"]),
    "a newline in a setup line": (HEAD + '[environment]\nsetup = ["a\\nb"]\n', ["environment.setup.0", "newline"]),
    "a newline in a partition": (
        HEAD + '[[partition]]\nname = "a\\n#SBATCH --account=x"\n',
        ["partition.0.name (line 4)", "newline"],
    ),
    "a direction mark in a setup line": (HEAD + '[environment]\nsetup = ["a\\u202eb"]\n', ["environment.setup.0"]),
    "a command in a folder": (HEAD + '[storage]\nscratch = "/tmp/$(id)"\n', ["storage.scratch (line 4)"]),
    "an unknown table": (HEAD + "[surprise]\nx = 1\n", ["surprise (line 3): unknown key"]),
    "an unknown key": (HEAD + "[limits]\nx = 1\n", ["limits.x (line 4): unknown key"]),
    "another name": ('schema_version = 1\nname = "other"\n', ["calls itself 'other'"]),
    "Slurm without partitions": (HEAD + '[scheduler]\nkind = "slurm"\n', ["needs at least one [[partition]]"]),
    "two defaults": (
        HEAD + '[[partition]]\nname = "a"\nis_default = true\n[[partition]]\nname = "b"\nis_default = true\n',
        ["more than one partition is the default"],
    ),
    "a container without an image": (HEAD + '[launch]\nkind = "pyxis"\n', ["launch (line 3)", "needs image"]),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_bad_profile_is_refused_with_its_place(tmp_path: Path, fault: str) -> None:
    text, words = REFUSED[fault]
    (own_folder(tmp_path) / "mine.toml").write_text(text)
    with pytest.raises(ProfileError) as caught:
        read_profile("mine", {}, tmp_path)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.fix


def test_a_file_that_is_too_large_or_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"#" * 300_000)
    with pytest.raises(ProfileError, match="larger than"):
        read_file(path)
    path.write_bytes(HEAD.encode() + b'description = "\xff"\n')
    with pytest.raises(ProfileError, match="not UTF-8"):
        read_file(path)
    with pytest.raises(ProfileError, match="cannot be read"):
        read_file(tmp_path)


@pytest.mark.parametrize("name", ["../local", "/etc/passwd", "local.toml", "Local", "", "a\nb", "mine.user"])
def test_a_name_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    (own_folder(tmp_path).parent / "local.toml").write_text(HEAD)
    with pytest.raises(ProfileError, match="there is no site profile"):
        read_profile(name, {}, tmp_path)


@pytest.mark.parametrize("name", ["../x", "", "A", "x.user", "a b", "x" * 65])
def test_a_name_that_could_be_no_file_of_ours_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


def test_the_users_part_wins_over_the_profile_key_by_key_and_never_counts_as_a_profile(tmp_path: Path) -> None:
    own = own_folder(tmp_path)
    (own / "mine.toml").write_text(HEAD + '[user]\naccount = "old"\nqos = "night"\n')
    (own / "mine.user.toml").write_text('schema_version = 1\n[user]\naccount = "lab"\n')
    user = read_profile("mine", {}, tmp_path).user
    assert (user.account, user.qos) == ("lab", "night")
    assert "mine.user" not in profile_paths({}, tmp_path)


def test_a_shipped_profile_takes_the_users_part_too(tmp_path: Path) -> None:
    (own_folder(tmp_path) / "testbed.user.toml").write_text('schema_version = 1\n[user]\naccount = "lab"\n')
    assert read_profile("testbed", {}, tmp_path).user.account == "lab"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('schema_version = 1\n[user]\naccount = "a b"\n', "user.account"),
        ("schema_version = 1\n[limits]\npoll_seconds = 1\n", "limits (line 2): unknown key"),
        ("schema_version = 3\n[user]\n", "schema 3"),
        ("[user]\n", "schema_version"),
    ],
)
def test_the_users_part_is_read_as_strictly(tmp_path: Path, text: str, words: str) -> None:
    own = own_folder(tmp_path)
    (own / "mine.toml").write_text(HEAD)
    (own / "mine.user.toml").write_text(text)
    with pytest.raises(ProfileError) as caught:
        read_profile("mine", {}, tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize("path", sorted(shipped("site_profiles").glob("*.toml")), ids=lambda p: p.stem)
def test_a_profile_written_is_the_profile_read(path: Path) -> None:
    profile = read_file(path)
    again = parse(profile_toml(profile, heading=("a\nb = 1", "\x1b[31m"), remarks={"limits.array_size": "x\ny = 1"}))
    assert again == profile


def test_remarks_stand_beside_their_values_even_at_defaults() -> None:
    profile = SiteProfile.model_validate({"schema_version": 1, "name": "x", "partition": [{"name": "a"}]})
    text = profile_toml(
        profile, remarks={"partition.0.is_default": "guess: nobody said", "request.memory": "guess: so"}
    )
    assert "is_default = false # guess: nobody said\n" in text
    assert 'memory = "mem" # guess: so\n' in text


def test_what_is_the_users_own_is_not_in_the_first_file() -> None:
    profile = SiteProfile.model_validate({"schema_version": 1, "name": "x", "user": {"account": "lab"}})
    assert "lab" not in profile_toml(profile)
    assert 'account = "lab"' in user_toml({"account": "lab"})
    assert 'account = "lab"' in profile_toml(profile, with_user=True)


PLACED = """schema_version = 1
name = "x"
[[partition]]
name = "a"
[[partition]]
qos = [
  "n",
]
max_time = "1"
[environment.variables]
A = "1"
[environment]
"setup" = []
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("name",), 2),
        (("partition", 0, "name"), 4),
        (("partition", 1, "qos", 0), 6),
        (("partition", 1, "max_time"), 9),
        (("partition", 1, "name"), 5),
        (("environment", "variables", "A"), 11),
        (("environment", "setup", 3), 13),
        (("nowhere",), None),
    ],
)
def test_a_field_is_found_again_in_its_text(place: tuple[str | int, ...], line: int | None) -> None:
    assert line_of(PLACED, place) == line


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    assert isinstance(parse(text), Refusal)
    line_of(text, ("partition", 0, "name"))


# ---- what came from elsewhere is not used before its owner agreed

RUNNING = HEAD + '[environment]\nsetup = ["module load cuda"]\n'


def test_an_own_profile_needs_no_agreement(tmp_path: Path) -> None:
    (own_folder(tmp_path) / "mine.toml").write_text(RUNNING)
    assert read_profile("mine", {}, tmp_path).environment.setup == ("module load cuda",)


def test_a_received_profile_is_refused_for_use_until_agreed_to_and_again_after_an_edit(tmp_path: Path) -> None:
    own = own_folder(tmp_path)
    path = own / "mine.toml"
    path.write_text(RUNNING)
    remember_import(own, read_file(path), agreed=False)
    with pytest.raises(ProfileError, match="infrarsi site trust mine") as caught:
        read_profile("mine", {}, tmp_path)
    assert "module load cuda" in str(caught.value)
    assert read_profile("mine", {}, tmp_path, for_use=False).name == "mine"
    remember_import(own, read_file(path), agreed=True)
    assert read_profile("mine", {}, tmp_path).name == "mine"
    path.write_text(RUNNING + 'variables = { LD_PRELOAD = "/tmp/x.so" }\n')
    with pytest.raises(ProfileError, match="LD_PRELOAD"):
        read_profile("mine", {}, tmp_path)
    path.write_text(RUNNING + "[limits]\npoll_seconds = 9\n")
    assert read_profile("mine", {}, tmp_path).limits.poll_seconds == 9, "what runs nothing may be edited freely"


def test_a_broken_record_of_trust_is_no_trust(tmp_path: Path) -> None:
    own = own_folder(tmp_path)
    (own / "mine.toml").write_text(RUNNING)
    (own / FILE).write_text("{")
    with pytest.raises(ProfileError, match=r"trusted.json"):
        read_profile("mine", {}, tmp_path)


def test_the_private_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    from infrarsi_hpc.stages.site.detect import write_private

    path = tmp_path / "x.user.toml"
    write_private(path, "x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "x"
