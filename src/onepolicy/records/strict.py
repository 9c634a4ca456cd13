"""Values that are written as JSON or YAML, and what may stand for a number in them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return value


def _whole(text: str) -> str:
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("half of a surrogate pair is no text, and no completion contains it")
    return text


Number = Annotated[float, BeforeValidator(_no_bool)]
"""a float that YAML's true and false do not stand for"""
Real = Annotated[float, Field(strict=True, allow_inf_nan=False), AfterValidator(lambda value: value + 0.0)]
"""a finite number; text and booleans are none, and -0 is 0, which has one spelling in a hash"""
Count = Annotated[int, Field(strict=True)]
"""a whole number; text, booleans and 1.0 are none"""
Text = Annotated[str, AfterValidator(_whole)]
"""text that UTF-8 can hold"""
Flag = Annotated[bool, Field(strict=True)]


class Strict(BaseModel):
    """A value that is written as JSON or YAML; unknown keys are errors.

    JSON has no infinity: it is written as the string "Infinity", which comes back as a number.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
