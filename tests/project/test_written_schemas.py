"""docs/schemas/ has what the types say that read the files, those of extras included."""

from __future__ import annotations

import write_schemas


def test_the_written_schemas_are_up_to_date() -> None:
    written = {
        path.name: path.read_text(encoding="utf-8") for path in write_schemas.FOLDER.iterdir()
    }
    assert written == write_schemas.texts(), "run make schemas"
