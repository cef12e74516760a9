"""Which dispatcher a site gets: one plain table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.dispatch import Dispatcher
from infrarsi_hpc.edges.local import LocalDispatcher


def dispatcher_for(
    site: SiteProfile,
    campaign: Path,
    tag: str,
    *,
    said: Callable[[str], None] = lambda _: None,
    exclude: Callable[[], Sequence[str]] = tuple,
) -> Dispatcher:
    """The site's dispatcher for a campaign whose jobs are told from others by `tag`.

    Raises
    ------
    ProfileError
        The profile names no partition that could be used.
    """

    def local() -> Dispatcher:
        return LocalDispatcher(site)

    def slurm() -> Dispatcher:
        from infrarsi_hpc.edges.slurm.dispatcher import SlurmDispatcher
        from infrarsi_hpc.edges.templates import own_templates

        own = own_templates()
        return SlurmDispatcher(site, campaign, tag, said=said, exclude=exclude, templates=own)

    return {"local": local, "slurm": slurm}[site.scheduler.kind]()
