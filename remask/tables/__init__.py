"""Files of rows with named columns, one reader for everything that reads them.

`reader` opens a file and gives its rows; `delimited`, `json_rows` and `columnar` each know one family of layouts;
`form` is what a user can say about a file, and what a row or a fault is. Not here: what the columns mean.
"""

from remask.tables.columnar import is_saved_dataset
from remask.tables.form import RAGGED_ENDING, TABLE_KINDS, Fault, OtherForm, Record, TableForm, lacking_columns
from remask.tables.json_rows import is_json_lines
from remask.tables.reader import (
    Cells,
    OnBad,
    OnNote,
    about_rows,
    read_cells,
    read_lines,
    read_records,
    require_columns,
    stream_records,
    table_kind,
    unchanged,
)

__all__ = [
    "RAGGED_ENDING", "TABLE_KINDS", "Cells", "Fault", "OnBad", "OnNote", "OtherForm", "Record", "TableForm",
    "about_rows", "is_json_lines", "is_saved_dataset", "lacking_columns", "read_cells", "read_lines", "read_records",
    "require_columns", "stream_records", "table_kind", "unchanged",
]  # fmt: skip
