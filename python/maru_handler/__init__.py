"""The names under which programs for the older system of this name import its handler. The package `maru` has them all."""
from maru import MaruConfig, MaruHandler
from maru.stage import StageResult

__all__ = ["MaruConfig", "MaruHandler", "StageResult"]
