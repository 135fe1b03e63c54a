"""Rows as a DataFrame of pandas or polars, of which neither is required."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any, Literal

from ._answers import TableRows
from ._errors import LlmprofError

if TYPE_CHECKING:
    import pandas
    import polars

Library = Literal["pandas", "polars"]


def installed() -> Library:
    """The library that is installed, pandas first."""
    libraries: tuple[Library, ...] = ("pandas", "polars")
    for library in libraries:
        if importlib.util.find_spec(library):
            return library
    raise LlmprofError(
        "neither pandas nor polars is installed; pip install pandas, or use run.rows()"
    )


def to_pandas(table: TableRows) -> pandas.DataFrame:
    """Lists and maps inside cells stay as they are."""
    import pandas

    return pandas.DataFrame(table["rows"], columns=table["columns"])


def to_polars(table: TableRows) -> polars.DataFrame:
    """Lists and maps inside cells are JSON, because the cells of a column have one type."""
    import polars

    def cells(column: str) -> list[Any]:
        return [_flat(row.get(column)) for row in table["rows"]]

    columns = [polars.Series(name, cells(name), strict=False) for name in table["columns"]]
    return polars.DataFrame(columns)


def _flat(cell: Any) -> Any:
    return json.dumps(cell) if isinstance(cell, (dict, list)) else cell
