"""Diffs: what is read, what is repaired and said, what is refused; and that no repair is silent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.diff import NO_NEWLINE, Diff, FileChange, Hunk, parse_diff, render_diff
from infrarsi_hpc.domain.diff_apply import apply_diff, hunks_between, with_context
from infrarsi_hpc.domain.diff_repair import repair_diff
from infrarsi_hpc.errors import PatchError

TARGET = "a = 1\nb = 2\nc = 3\nd = 4\n"
HEAD = "--- a/target.py\n+++ b/target.py\n"
GOOD = HEAD + "@@ -1,4 +1,4 @@\n a = 1\n-b = 2\n+b = 20\n c = 3\n d = 4\n"
WANTED = TARGET.replace("b = 2", "b = 20")


def change_of(text: str) -> FileChange:
    return parse_diff(text).files[0]


def applied(text: str, files: dict[str, str] | None = None) -> dict[str, str | None]:
    return apply_diff(files or {"target.py": TARGET}, parse_diff(text))[0]


# ---- reading


def test_a_plain_diff_is_read_line_by_line() -> None:
    diff = parse_diff(GOOD)
    assert diff.paths == ("target.py",)
    assert (diff.num_added, diff.num_removed) == (1, 1)
    assert diff.files[0].hunks[0] == Hunk(1, 4, 1, 4, (" a = 1", "-b = 2", "+b = 20", " c = 3", " d = 4"))


def test_a_count_that_is_left_out_means_one() -> None:
    hunk = change_of(HEAD + "@@ -2 +2 @@\n-b = 2\n+b = 20\n").hunks[0]
    assert (hunk.old_count, hunk.new_count, hunk.has_context) == (1, 1, False)


KINDS = [
    ("new file", "--- /dev/null\n+++ b/x.py\n@@ -0,0 +1,1 @@\n+x\n", "add", (None, "x.py"), (None, "100644")),
    ("deleted", "--- a/x.py\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n", "delete", ("x.py", None), ("100644", None)),
    (
        "new link",
        "diff --git a/x.py b/x.py\nnew file mode 120000\n--- /dev/null\n+++ b/x.py\n@@ -0,0 +1 @@\n+../y\n"
        + NO_NEWLINE
        + "\n",
        "add",
        (None, "x.py"),
        (None, "120000"),
    ),
    (
        "rename",
        "diff --git a/x.py b/y.py\nsimilarity index 100%\nrename from x.py\nrename to y.py\n",
        "rename",
        ("x.py", "y.py"),
        (None, None),
    ),
    (
        "mode",
        "diff --git a/x.py b/x.py\nold mode 100644\nnew mode 100755\n",
        "modify",
        ("x.py", "x.py"),
        ("100644", "100755"),
    ),
    (
        "content of a link",
        "diff --git a/x b/x\nindex 1234567..89abcde 120000\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        "modify",
        ("x", "x"),
        ("120000", "120000"),
    ),
]


@pytest.mark.parametrize(("text", "kind", "paths", "modes"), [row[1:] for row in KINDS], ids=[row[0] for row in KINDS])
def test_what_happens_to_a_file_is_read_from_its_headers(text, kind, paths, modes) -> None:
    change = change_of(text)
    assert (change.kind, (change.old_path, change.new_path), (change.old_mode, change.new_mode)) == (kind, paths, modes)
    assert parse_diff(render_diff(Diff((change,)))).files[0] == change


def test_links_submodules_modes_and_binary_parts_are_flagged() -> None:
    assert change_of(KINDS[2][1]).is_symlink
    assert change_of(KINDS[4][1]).changes_mode
    assert change_of(KINDS[5][1]).is_symlink
    assert change_of(
        "diff --git a/m b/m\nindex 1111111..2222222 160000\n--- a/m\n+++ b/m\n@@ -1 +1 @@\n-S 1\n+S 2\n"
    ).is_submodule
    assert change_of("diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n").is_binary
    assert change_of("diff --git a/x b/x\nGIT binary patch\nliteral 3\nKc\n\nliteral 0\nHc\n\n").is_binary


def test_names_that_git_quotes_are_read() -> None:
    old, new = '"a/caf\\303\\251.py"', '"b/caf\\303\\251.py"'
    text = f"diff --git {old} {new}\n--- {old}\n+++ {new}\n@@ -1 +1 @@\n-a\n+b\n"
    assert change_of(text).path == "café.py"


REFUSED = [
    ("empty", "", "empty"),
    ("no end", GOOD[:-1], "the last line has no end"),
    ("prose before", "Here:\n" + GOOD, "not part of a diff"),
    ("prose after", GOOD + "This should help.\n", "not part of a diff"),
    ("CR LF", GOOD.replace("\n", "\r\n"), "CR LF"),
    ("too few lines", GOOD.replace("1,4 +1,4", "1,9 +1,7"), "5 old and 3 new lines more"),
    ("too many lines", GOOD.replace("1,4 +1,4", "1,3 +1,3"), "more lines than it says"),
    ("empty line as context", HEAD + "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", "an empty line"),
    ("nothing changes", HEAD + "@@ -1,1 +1,1 @@\n a = 1\n", "changes nothing"),
    ("no hunk", HEAD, "no hunk"),
    (
        "no prefix",
        GOOD.replace("a/target.py", "target.py").replace("b/target.py", "target.py"),
        "does not begin with a/",
    ),
    ("two names", GOOD.replace("b/target", "b/other"), "without `rename from`"),
    ("header lies", "diff --git a/safe.py b/safe.py\n" + GOOD, "names other files"),
    ("mode lies", "diff --git a/target.py b/target.py\nnew file mode 100644\n" + GOOD, "disagree"),
    ("odd name", GOOD.replace("target.py", "tar\\get.py"), "cannot be a path"),
]


@pytest.mark.parametrize(("text", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_not_strict_is_refused_with_its_line(text, words) -> None:
    with pytest.raises(PatchError, match=r"line \d+ of the diff") as error:
        parse_diff(text)
    assert words in error.value.what + error.value.why


# ---- repairing


REPAIRED = [
    ("abbreviated", HEAD + "@@ -2 +2 @@\n-b = 2\n+b = 20\n", "context lines were added"),
    ("CR LF", GOOD.replace("\n", "\r\n"), "CR LF line ends became LF"),
    ("fenced", f"Here is the change:\n```diff\n{GOOD}```\nThis should help.\n", "fence"),
    ("no final newline", GOOD[:-1], "given its end"),
    ("wrong counts", GOOD.replace("1,4 +1,4", "1,9 +1,7"), "recounted, 4 old and 4 new lines instead of 9 and 7"),
    ("wrong line", GOOD.replace("1,4 +1,4", "40,4 +40,4"), "belongs to line 1, not 40"),
    ("no line numbers", GOOD.replace("@@ -1,4 +1,4 @@", "@@ ... @@"), "has no line numbers"),
    ("no prefixes", GOOD.replace("a/target", "target").replace("b/target", "target"), "became a/target.py"),
    ("mnemonic prefixes", GOOD.replace("a/target", "i/target").replace("b/target", "w/target"), "became a/target.py"),
    ("byte order mark", "\ufeff" + GOOD, "byte order mark"),
    ("prose", "Sure!\n\n" + GOOD + "\nThis should help.\n", "2 lines that belong to no file's section"),
    ("mail", "From 1 Mon Sep 17\nSubject: x\n---\n target.py | 2 +-\n\n" + GOOD + "-- \n2.39.5\n", "left out"),
]


@pytest.mark.parametrize(("text", "note"), [row[1:] for row in REPAIRED], ids=[row[0] for row in REPAIRED])
def test_a_loose_diff_is_repaired_and_says_how(text, note) -> None:
    repaired = repair_diff(text, {"target.py": TARGET})
    assert any(note in said for said in repaired.notes), repaired.notes
    assert applied(repaired.text) == {"target.py": WANTED}
    assert repair_diff(repaired.text, {"target.py": TARGET}) == type(repaired)(repaired.text), "once is enough"


def test_a_strict_diff_comes_back_byte_for_byte() -> None:
    repaired = repair_diff(GOOD, {"target.py": TARGET})
    assert repaired.text == GOOD
    assert repaired.notes == ()


def test_an_empty_context_line_gets_its_space() -> None:
    text = HEAD + "@@ -1,4 +1,4 @@\n a\n\n-b\n+c\n d\n"
    repaired = repair_diff(text, {"target.py": "a\n\nb\nd\n"})
    assert "1 empty lines were given their space" in " ".join(repaired.notes)
    assert applied(repaired.text, {"target.py": "a\n\nb\nd\n"}) == {"target.py": "a\n\nc\nd\n"}


UNREPAIRABLE = [
    ("no diff", "I would set micro_batch to 4.\n", "no diff"),
    # dropping the unmarked line as prose would apply half of the change
    ("a lost mark", GOOD.replace(" c = 3", "c = 3"), "has no mark"),
    ("a lost mark before a change", HEAD + "@@ -1,2 +1,2 @@\n a\n-b\n+c\nd\n+e\n", "has no mark"),
    ("only context", HEAD + "@@ -1,9 +1,9 @@\n a = 1\n b = 2\n", "changes nothing"),
]


@pytest.mark.parametrize(("text", "words"), [row[1:] for row in UNREPAIRABLE], ids=[row[0] for row in UNREPAIRABLE])
def test_what_would_need_a_guess_is_refused(text, words) -> None:
    with pytest.raises(PatchError) as error:
        repair_diff(text)
    assert words in error.value.what


# ---- applying


def test_a_hunk_that_names_the_wrong_line_goes_to_the_only_place_that_has_it() -> None:
    text, notes = apply_diff({"target.py": TARGET}, parse_diff(GOOD.replace("1,4 +1,4", "3,4 +3,4")))
    assert text == {"target.py": WANTED}
    assert notes == ["target.py: hunk 1 belongs to line 1, not 3"]


def test_a_hunk_that_fits_in_two_places_is_refused_unless_it_names_one() -> None:
    twice = "x\ny\nz\nx\ny\nz\n"
    text = HEAD + "@@ -{0},2 +{0},2 @@\n x\n-y\n+Y\n"
    with pytest.raises(PatchError, match="fits in 2 places: lines 1, 4"):
        applied(text.format(3), {"target.py": twice})
    assert applied(text.format(4), {"target.py": twice}) == {"target.py": "x\ny\nz\nx\nY\nz\n"}


def test_a_line_that_is_not_in_the_file_is_named() -> None:
    with pytest.raises(PatchError) as error:
        applied(GOOD.replace("-b = 2", "-b = 3"))
    assert "b = 3" in error.value.why


def test_the_last_line_without_an_end_is_told_from_one_with() -> None:
    text = HEAD + "@@ -1,1 +1,1 @@\n-a\n" + NO_NEWLINE + "\n+a\n"
    assert applied(text, {"target.py": "a"}) == {"target.py": "a\n"}
    with pytest.raises(PatchError):
        applied(text, {"target.py": "a\n"})


def test_new_and_deleted_files_must_fit_what_is_there() -> None:
    new = "--- /dev/null\n+++ b/x.py\n@@ -0,0 +1,1 @@\n+x\n"
    assert applied(new, {"y": ""}) == {"x.py": "x\n"}
    with pytest.raises(PatchError, match="already there"):
        applied(new, {"x.py": "old\n"})
    gone = "--- a/x.py\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n"
    assert applied(gone, {"x.py": "x\n"}) == {"x.py": None}
    with pytest.raises(PatchError, match="more lines"):
        applied(gone, {"x.py": "x\ny\n"})
    with pytest.raises(PatchError, match="does not exist"):
        applied(gone, {"y": ""})


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "-- x\n", "++ y\n", "\\ z\n", "d\r\n"]), max_size=14)


@given(LINES, LINES, st.booleans())
def test_the_diff_of_two_texts_turns_one_into_the_other(before, after, cut) -> None:
    old, new = "".join(before), "".join(after)
    if cut:
        new = new[:-1]
    if old == new:
        assert list(hunks_between(old, new)) == []
        return
    diff = Diff((FileChange("f", "f", "modify", tuple(hunks_between(old, new))),))
    again = parse_diff(render_diff(diff))
    assert again == diff, "parse of render is the identity"
    assert apply_diff({"f": old}, again) == ({"f": new}, [])


@given(LINES, LINES)
def test_context_can_be_cut_off_and_put_back(before, after) -> None:
    old, new = "".join(before), "".join(after)
    hunks = tuple(hunks_between(old, new))
    if not hunks:
        return
    bare = []
    for hunk in hunks:
        lines = list(hunk.lines)
        lead = next(i for i, line in enumerate(lines) if line[0] in "+-")
        tail = next(i for i, line in enumerate(reversed(lines)) if line[0] in "+-\\")
        body = tuple(lines[lead : len(lines) - tail])
        num_old = sum(line[0] in " -" for line in body)
        num_new = sum(line[0] in " +" for line in body)
        first_old = hunk.old_start + lead - (num_old == 0 and hunk.old_count > 0)
        first_new = hunk.new_start + lead - (num_new == 0 and hunk.new_count > 0)
        bare.append(Hunk(first_old, num_old, first_new, num_new, body))
    diff = Diff((FileChange("f", "f", "modify", tuple(bare)),))
    full, _ = with_context({"f": old}, diff)
    assert apply_diff({"f": old}, full)[0] == {"f": new}


def test_only_lf_ends_a_line_as_for_git() -> None:
    text = HEAD + "@@ -1 +1 @@\n-a\u2028b\x0c\n+a\u2028c\x0c\n"
    assert applied(text, {"target.py": "a\u2028b\x0c\n"}) == {"target.py": "a\u2028c\x0c\n"}


def test_a_hunk_without_a_line_behind_it_is_given_one_since_git_would_look_at_the_files_end() -> None:
    from infrarsi_hpc.domain.diff_repair import repair_diff

    files = {"a.py": "one\ntwo\nthree\n"}
    text = "--- a/a.py\n+++ b/a.py\n@@ -1 +1,2 @@\n one\n+new\n"
    repaired = repair_diff(text, files)
    assert " two\n" in repaired.text
    assert any("context" in note for note in repaired.notes)
    at_the_end = "--- a/a.py\n+++ b/a.py\n@@ -3 +3,2 @@\n three\n+new\n"
    assert repair_diff(at_the_end, files).text == at_the_end
