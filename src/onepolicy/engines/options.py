"""Reading the options of a spec: known names, right types, or an error that lists what is known."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from onepolicy.engines.legs import LegChange
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import UsageError


class EngineOptions(BaseModel):
    """Base of each engine's options; a field's docstring is its help."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def variations(self) -> dict[str, dict[str, object]]:
        """Changes that must not matter, which `onepolicy calibrate` measures: name -> the options that differ."""
        return {}

    def legs(self, target: str) -> dict[str, LegChange | str]:
        """Further conditions for `onepolicy legs`: a leg's name -> how the options change, or why it cannot be.

        target: of the spec.
        """
        del target
        return {}


OptionsT = TypeVar("OptionsT", bound=EngineOptions)


def read_options(spec: EngineSpec, model: type[OptionsT]) -> OptionsT:
    """The spec's options as `model`. Raises UsageError that lists the known options."""
    try:
        return model.model_validate(spec.options)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "options"
        known = ", ".join(model.model_fields)
        if first["type"] == "extra_forbidden":
            raise UsageError(f"{spec}: {spec.engine} has no option {name!r}. It knows: {known}.") from error
        raise UsageError(
            f"{spec}: option {name}={spec.options.get(name)!r}: {first['msg']}. Known options: {known}."
        ) from error
