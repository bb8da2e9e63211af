"""Notices the other project whose modules are called maru.

On Python's package index the name `maru` belongs to a morphological analyzer. Its distribution is `maru`, and that of this
package is `marud`; both have a folder `maru`. Whichever is installed later writes over the other's __init__.py, so that one of
them is half there. pip does not look for that.
"""
from __future__ import annotations

import os
import pathlib
import sys
import warnings

_ADVICE = "pip uninstall maru, then install the distribution marud again"


def warn_of_the_other() -> None:
    """Where it is installed in the same folder, and this package over it. Looks into the folder, and opens no file."""
    folder = pathlib.Path(__file__).resolve().parent
    try:
        with os.scandir(folder.parent) as found:
            others = [entry.name for entry in found if entry.name.startswith("maru-") and entry.name.endswith(".dist-info")]
    except OSError:
        return
    if others:
        warnings.warn(f"{folder} holds files of two distributions, marud and maru ({others[0]}). The next upgrade of maru "
                      f"replaces this package: {_ADVICE}.", RuntimeWarning, stacklevel=3)


def expect_this_package() -> None:
    """Raises ImportError where the other project is installed over this package, so that its __init__.py has run."""
    package = sys.modules["maru"]
    if not hasattr(package, "MaruHandler"):
        raise ImportError(f"{package.__file__} is another project's: its distribution maru was installed over this package, "
                          f"whose distribution is marud. Run {_ADVICE}.")
