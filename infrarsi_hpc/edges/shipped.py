"""Where the data that ships with the program is: beside the code in a wheel, at the top level of a checkout.

The build copies the top-level folders into the wheel (pyproject.toml); an editable install reads the checkout's own,
so that an edit to a template shows at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from infrarsi_hpc.errors import SiteError

Kind = Literal["sbatch_templates", "site_profiles", "experience_store"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_PACKAGE = Path(__file__).resolve().parent.parent


def shipped(kind: Kind) -> Path:
    """The folder with the shipped sbatch templates, site profiles or seed stores.

    Raises
    ------
    SiteError
        It is in neither place: the installation is not whole.
    """
    in_wheel, in_checkout = _PACKAGE / "_shipped" / kind, _PACKAGE.parent / kind
    # a folder of that name beside an installed package may be anybody's; only a checkout has its pyproject.toml there
    is_checkout = (_PACKAGE.parent / "pyproject.toml").is_file()
    folder = in_checkout if is_checkout else in_wheel
    if not folder.is_dir():
        raise SiteError(
            f"this installation lacks its {kind.replace('_', ' ')}",
            why=f"{folder} does not exist",
            fix="pip install --force-reinstall infrarsi-hpc",
        )
    return folder
