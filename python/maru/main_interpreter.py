"""That this is the main interpreter of the process. The extensions keep what belongs to one interpreter, and Python hands them
to each that asks; in a subinterpreter they would wait for ever for the GIL that it holds."""
import importlib


def require_main_interpreter() -> None:
    for name in ("_interpreters", "_xxsubinterpreters"):  # Python 3.13 and later; before
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError("maru works in the main interpreter alone: use a process of its own instead of a subinterpreter.")
        return
