"""Folders of models and adapters, as small as can be: what an engine is told to load, where nothing loads it."""
import atexit
import functools
import os
import pathlib
import shutil
import tempfile


@functools.cache
def _root():
    root = tempfile.mkdtemp(prefix="maru-models-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    # The digests of these weights lie there, too, and not in the cache of the tests' user.
    os.environ["XDG_CACHE_HOME"] = str(pathlib.Path(root, "cache"))
    return pathlib.Path(root)


def folder(name, weights=None):
    """The path of a model of this name; weights: which, if not those of its name."""
    path = _root() / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.safetensors").write_text(weights or name)
    return str(path)


_root()
