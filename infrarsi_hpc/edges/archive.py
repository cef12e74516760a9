"""A campaign's many small files in one archive, and back: what a finished campaign costs in disk and inodes shrinks.

`pack` writes the archive aside, flushes it, reads it back, compares every file with what lies on the disk, gives it
its name, and only then removes what is in it, file by file. Killed at any point, `pack` again finishes: an archive
under its own name is whole, and what lies on the disk beside it is either in it already or goes into the next one.

Links are kept as links and never followed, neither in packing nor in unpacking. Does not cover: somebody who writes
below the campaign meanwhile (callers hold its lock and see that no agent lives); owners, which are left out.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from infrarsi_hpc.edges import batches
from infrarsi_hpc.edges.atomic import site_error, write_bytes
from infrarsi_hpc.errors import DiskFull, SiteError

ARCHIVE = "trials.tar.gz"
#: What goes into the archive; the ledger, the report and the logs of the head stay where they are.
PARTS = ("trials", "rounds", "starter", "submitit")
CHUNK = 2**20
FOLDER, SPECIAL = "folder", "special"
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)


def parts(campaign: Path) -> list[Path]:
    """The folders of a campaign that would go into its archive; one that is itself a link lies elsewhere and stays."""
    return [path for name in PARTS if (path := campaign / name).is_dir() and not path.is_symlink()]


def pack(campaign: Path, *, on_file: Callable[[], None] = lambda: None) -> bool:
    """Move the campaign's folders into `trials.tar.gz`; gives whether there was anything to move.

    `on_file` is told after every file.

    Raises
    ------
    SiteError
        A file cannot be read or written, or the archive does not read back as it was written; nothing was removed.
    """
    for left in campaign.glob(f".{ARCHIVE}.*.tmp"):  # a killed one's; the caller holds the campaign's lock
        left.unlink(missing_ok=True)
    if not parts(campaign):
        return False
    archive = campaign / ARCHIVE
    try:
        found = dict(_on_disk(campaign, on_file))
        kept = _in_archive(archive, on_file) if archive.exists() else {}
        wanted = {name: fact for name, fact in found.items() if fact != SPECIAL}  # pipes and sockets hold nothing
        if any(kept.get(name) != fact for name, fact in wanted.items()):
            _write_verified(campaign, kept | wanted, wanted, on_file)
        _flush_folder(campaign)
        _remove(campaign, found)
    except OSError as error:
        raise _said(archive, error) from error
    return True


def unpack(campaign: Path, *, on_file: Callable[[], None] = lambda: None) -> int:
    """Put the archive's files back where they were, then remove it; gives how many files were put back.

    What lies on the disk already is newer and stays. Killed in the middle, `unpack` again finishes.

    Raises
    ------
    SiteError
        The archive is damaged, holds what no campaign does, or there is no room; it stays.
    """
    archive = campaign / ARCHIVE
    if not archive.exists():
        return 0
    num, links, times = 0, [], []
    try:
        with _named(archive):
            for member, file in _members(archive):
                path = _inside(campaign, member)
                if member.issym():
                    links.append((path, member.linkname))
                elif member.isdir():
                    path.mkdir(parents=True, exist_ok=True)
                    times.append((path, member.mtime))
                elif file is not None and not os.path.lexists(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_bytes(path, file.read())
                    path.chmod(member.mode & 0o777)
                    # whether an agent lives is told by how old its claim is
                    os.utime(path, (member.mtime, member.mtime))
                    num += 1
                    on_file()
        for path, target in links:  # last of all, so that nothing is written through one
            if not os.path.lexists(path):
                path.symlink_to(target)
        for path, mtime in reversed(times):
            os.utime(path, (mtime, mtime))
        archive.unlink()
    except OSError as error:
        raise _said(archive, error) from error
    return num


def remove_all(campaign: Path) -> None:
    """Remove the campaign's folders and its archive, for good.

    Raises
    ------
    SiteError
        Something cannot be removed.
    """
    try:
        _remove(campaign, (name for name, _, _ in _walk(campaign)))
        for path in (campaign / ARCHIVE, *campaign.glob(f".{ARCHIVE}.*.tmp")):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise _said(campaign, error) from error


def log_reader(campaign: Path, limit: int = 4000) -> Callable[[str], str]:
    """What gives the end of a trial's log by the trial's name: from its folder, or else from the archive.

    The archive is read once, when it is first needed; from one that is damaged, all excerpts are empty.
    """
    packed: dict[str, str] | None = None

    def read(trial: str) -> str:
        nonlocal packed
        home = batches.trial_folder(campaign, trial)
        if (home / "log.txt").exists():
            return batches.log_excerpt(home, limit)
        if packed is None:
            packed = _packed_logs(campaign / ARCHIVE, limit)
        return packed.get(trial, "")

    return read


def _packed_logs(archive: Path, limit: int) -> dict[str, str]:
    logs: dict[str, str] = {}
    with contextlib.suppress(OSError, SiteError), _named(archive):
        for member, file in _members(archive):
            match PurePosixPath(member.name).parts:
                case ("trials", trial, "log.txt") if file is not None:
                    end = b""
                    while chunk := file.read(CHUNK):
                        end = (end + chunk)[-limit:]
                    logs[trial] = end.decode("utf-8", "replace")
    return logs


# ---- what lies on the disk and what is in an archive, as facts that can be compared: by name, what it is


def _walk(campaign: Path) -> Iterator[tuple[str, Path, os.stat_result]]:
    """Name, path and stat of every folder and file of the parts, folders before what they hold."""
    for top in parts(campaign):
        stack = [top]
        while stack:
            path = stack.pop()
            found = path.lstat()
            yield path.relative_to(campaign).as_posix(), path, found
            if stat.S_ISDIR(found.st_mode):
                stack += sorted(path.iterdir(), reverse=True)


def _on_disk(campaign: Path, on_file: Callable[[], None]) -> Iterator[tuple[str, str]]:
    for name, path, found in _walk(campaign):
        if stat.S_ISDIR(found.st_mode):
            yield name, FOLDER
        elif stat.S_ISLNK(found.st_mode):
            yield name, _link(os.readlink(path))  # noqa: PTH115 (a Path would tidy it up)
        elif stat.S_ISREG(found.st_mode):
            with _open(path) as file:
                yield name, _digest(file)
            on_file()
        else:
            yield name, SPECIAL


def _in_archive(archive: Path, on_file: Callable[[], None]) -> dict[str, str]:
    """The facts of an archive, from reading all of it."""
    facts = {}
    with _named(archive):
        for member, file in _members(archive):
            if member.isdir():
                facts[member.name] = FOLDER
            elif member.issym():
                facts[member.name] = _link(member.linkname)
            else:
                facts[member.name] = _digest(file) if file is not None else SPECIAL
            on_file()
    return facts


def _members(archive: Path) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Every member with its content, in order, to the end of the file and its checksum; read it under `_named`."""
    with gzip.open(archive) as raw, tarfile.open(fileobj=raw, mode="r:") as tar:
        for member in tar:
            yield member, tar.extractfile(member) if member.isreg() else None
        while raw.read(CHUNK):
            pass


@contextmanager
def _named(archive: Path) -> Iterator[None]:
    """Damage that shows anywhere in the block becomes an error that names the archive."""
    try:
        yield
    except _DAMAGED as error:
        raise SiteError(
            f"{archive} is damaged",
            why=f"{type(error).__name__}: {str(error)[:200]}",
            fix="restore it from a backup, or move it away; the ledger and the report do not need it",
        ) from error


def _write_verified(
    campaign: Path, expected: dict[str, str], wanted: dict[str, str], on_file: Callable[[], None]
) -> None:
    """Write an archive of what an earlier one has and what lies on the disk, and give it its name once it reads so."""
    archive = campaign / ARCHIVE
    aside = campaign / f".{ARCHIVE}.{os.getpid()}.tmp"
    try:
        with open(aside, "xb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
                if archive.exists():
                    with _named(archive):
                        for member, content in _members(archive):
                            if member.name not in wanted:
                                tar.addfile(member, content)
                for name, path, _ in _walk(campaign):
                    if name in wanted:
                        _add(tar, name, path)
                        on_file()
            file.flush()
            os.fsync(file.fileno())
        if _in_archive(aside, on_file) != expected:
            raise SiteError(
                f"the archive of {campaign} does not read back as it was written",
                why="a file was changed meanwhile, or the disk is failing",
                fix="nothing was removed; see that nothing uses the campaign, and try again",
            )
        aside.rename(archive)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def _add(tar: tarfile.TarFile, name: str, path: Path) -> None:
    info = tar.gettarinfo(path, arcname=name)
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if info.isdir() or info.issym():
        tar.addfile(info)
        return
    with _open(path) as file:  # also where tar would only note another name of the same file
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", os.fstat(file.fileno()).st_size
        tar.addfile(info, file)


def _remove(campaign: Path, names: Iterable[str]) -> None:
    """Remove these, deepest first; a folder that holds anything else by now stays."""
    for name in sorted(names, reverse=True):
        path = campaign / name
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
            continue
        try:
            path.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


def _inside(campaign: Path, member: tarfile.TarInfo) -> Path:
    """The path of a member; refused where it does not lie in one of the parts, links on the disk included."""
    pure = PurePosixPath(member.name)
    path = campaign / pure
    is_ours = ".." not in pure.parts and pure.parts[:1] != () and pure.parts[0] in PARTS
    if (
        not is_ours
        or (len(pure.parts) == 1 and not member.isdir())
        or not path.parent.resolve().is_relative_to(campaign.resolve())
    ):
        raise SiteError(
            f"{campaign / ARCHIVE} holds {member.name[:200]!r}, which no campaign has",
            why="it was not written by infrarsi, or was changed since",
            fix="move it away, or unpack it by hand where it can do no harm",
        )
    return path


def _open(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return f"file {digest.hexdigest()}"


def _link(target: str) -> str:
    return f"link {target}"


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)


def _said(path: Path, error: OSError) -> SiteError:
    met = Path(str(error.filename)) if error.filename else path
    said = site_error(met, error)
    if isinstance(said, DiskFull):
        return said
    return SiteError(
        f"{met} cannot be packed, unpacked or removed",
        why=error.strerror or str(error),
        fix="check its permissions, then run the same command again: it goes on where this one stopped",
    )
