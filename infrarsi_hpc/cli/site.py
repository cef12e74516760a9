"""`infrarsi site`: list, show, detect, check, export, import and trust site profiles."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infrarsi_hpc.cli.output import clean, note, say, say_json, table
from infrarsi_hpc.errors import UsageError

if TYPE_CHECKING:  # the stages are imported when their command is called, so that --help is quick
    from collections.abc import Iterable

    from infrarsi_hpc.domain.site_execution import Executed
    from infrarsi_hpc.domain.site_sharing import Removal

site_app = typer.Typer(
    name="site", help="Site profiles: what a cluster offers and demands.", no_args_is_help=True, rich_markup_mode=None
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]
NameArgument = Annotated[str, typer.Argument(help="The profile's name.")]


@site_app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """All profiles: the user's own before the shipped."""
    from infrarsi_hpc.stages.site.listing import list_profiles

    found = list_profiles(os.environ, Path.home())
    if as_json:
        say_json(found)
        return
    rows = [
        (r["name"], r["origin"], r["state"], r["scheduler"], ", ".join(r["partitions"]), r["description"])
        for r in found
    ]
    say(table(("name", "origin", "state", "scheduler", "partitions", "what"), rows))


@site_app.command()
def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """One profile with the user's part merged in, and what it runs."""
    from infrarsi_hpc.domain.site_execution import executed
    from infrarsi_hpc.edges.site_text import profile_toml
    from infrarsi_hpc.edges.sites import profile_paths, read_profile

    profile = read_profile(name, os.environ, Path.home(), for_use=False)
    if as_json:
        say_json(profile.model_dump(mode="json"))
        return
    say(profile_toml(profile, heading=(str(profile_paths(os.environ, Path.home())[name]),), with_user=True))
    if items := executed(profile):
        say("runs, or decides what runs, as you:")
        say(_execution_text(items))


@site_app.command()
def detect(
    write: Annotated[str | None, typer.Option(help="Write the profile under this name into your folder.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask this machine's Slurm what it has, and make a first profile with the guesses marked.

    Example: infrarsi site detect --write mycluster
    """
    from infrarsi_hpc.stages.site.detect import DEFAULT_NAME, draft_toml, write_draft
    from infrarsi_hpc.stages.site.detect import detect as ask

    draft = ask(write or DEFAULT_NAME, os.environ, on_progress=note)
    written = write_draft(draft, os.environ, Path.home()) if write else None
    if as_json:
        files = [str(path) for path in (written.profile, written.user) if path] if written else []
        profile = draft.profile.model_dump(mode="json")
        say_json({"profile": profile, "guesses": draft.guesses, "remarks": draft.remarks, "files": files})
    elif written is None:
        say(draft_toml(draft))
    else:
        for path in (written.profile, written.user):
            if path:
                say(f"wrote {path}")
        for remark in draft.remarks:
            note(f"  {remark}")
        say(f"next: look at the lines marked `guess`, then infrarsi site check {write}")


@site_app.command()
def check(
    name: Annotated[str, typer.Argument(help="The profile's name.", envvar="INFRARSI_SITE")] = "local",
    partition: Annotated[str, typer.Option(help="Another partition than the default one.")] = "",
    wait: Annotated[float, typer.Option(help="Seconds to wait for the probe job.", min=1, max=86400)] = 600,
    as_json: JsonOption = False,
) -> None:
    """Send one harmless job through a profile, and say what does not fit.

    Example: infrarsi site check mycluster --partition gpu
    """
    from dataclasses import asdict

    from infrarsi_hpc.edges.sites import read_profile
    from infrarsi_hpc.stages.site.check import check as probe

    profile = read_profile(name, os.environ, Path.home())
    report = probe(profile, os.environ, Path.home(), partition=partition, deadline_seconds=wait, on_progress=note)
    if as_json:
        say_json({**asdict(report), "is_good": report.is_good})
    else:
        for finding in report.findings:
            field = f"  [{finding.field}]" if finding.field else ""
            say(f"{finding.level:5}  {finding.what}{field}")
            if finding.fix and finding.level != "good":
                say(f"       fix: {finding.fix}")
        say(f"the probe's own files: {report.folder}")
    if not report.is_good:
        raise typer.Exit(1)


@site_app.command()
def export(
    name: NameArgument,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new file; else standard output.")] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """A profile without what is personal: shows what would be written and what was left out, and asks.

    Example: infrarsi site export mycluster -o mycluster.toml
    """
    from dataclasses import asdict

    from infrarsi_hpc.edges.sites import read_profile
    from infrarsi_hpc.stages.site.export import own_names, prepare_export, write_export

    home = Path.home()
    ready = prepare_export(read_profile(name, os.environ, home, for_use=False), own_names(os.environ, home))
    if as_json:
        if output is not None and yes:
            write_export(ready, output)
        removals = [asdict(removal) for removal in ready.removals]
        say_json({"text": ready.text, "removals": removals, "file": str(output) if output and yes else None})
        return
    note(_removal_text(ready.removals))
    if output is None:
        say(ready.text.rstrip("\n"))
        return
    note("this would be written:\n")
    note(ready.text)
    if not yes and not _agrees(f"write it to {output}?"):
        raise typer.Exit(1)
    write_export(ready, output)
    say(f"wrote {output}")


@site_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A profile that somebody gave you.")],
    name: Annotated[str, typer.Option(help="Another name for it here.")] = "",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take over a profile: shows what it would run as you, and asks. --yes does not agree to dangerous lines.

    Example: infrarsi site import mycluster.toml
    """
    from infrarsi_hpc.stages.site.importing import prepare_import, write_import

    received = prepare_import(file, os.environ, Path.home(), name=name)
    for remark in received.remarks:
        note(clean(remark))
    if received.items:
        note(f"{received.profile.name} runs, or decides what runs, as you:")
        note(_execution_text(received.items))
    else:
        note(f"{received.profile.name} runs nothing of its own")
    if not yes and not _agrees("take it over, and let these lines run as you?" if received.items else "take it over?"):
        raise typer.Exit(1)
    agreed = not (yes and received.is_dangerous)
    write_import(received, agreed=agreed)
    if as_json:
        say_json({"name": received.profile.name, "file": str(received.path), "trusted": agreed})
    else:
        say(f"wrote {received.path}")
    if not agreed:
        note(
            "NOT trusted: --yes does not agree to lines that look dangerous; "
            f"infrarsi site trust {received.profile.name}"
        )
        raise typer.Exit(1)


@site_app.command()
def trust(name: NameArgument, yes: YesOption = False) -> None:
    """Agree to what an imported profile runs, as it stands now."""
    from infrarsi_hpc.stages.site.importing import trust as agree
    from infrarsi_hpc.stages.site.importing import untrusted

    _, items = untrusted(name, os.environ, Path.home())
    if not items:
        say(f"nothing of {name} waits for agreement")
        return
    note(f"{name} runs, or decides what runs, as you:")
    note(_execution_text(items))
    if not yes and not _agrees("let these lines run as you?"):
        raise typer.Exit(1)
    agree(name, os.environ, Path.home())
    say(f"{name} may be used")


def _execution_text(items: Iterable[Executed]) -> str:
    lines = []
    for item in items:
        lines.append(f"  {item.field}: {item.text}")
        lines += [f"  !!! DANGEROUS: it {danger}" for danger in item.dangers]
    return "\n".join(lines)


def _removal_text(removals: Iterable[Removal]) -> str:
    lines = [f"  {r.field}: {f'becomes {r.instead!r}' if r.instead else 'left out'} ({r.reason})" for r in removals]
    return "\n".join(["personal, and not in the export:", *lines]) if lines else "nothing personal was found"


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("this needs a yes or a no, and there is nobody to ask", fix="add --yes once you have looked")
    return typer.confirm(question, err=True)
