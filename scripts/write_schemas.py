"""Write the JSON Schemas of topoplan's files to docs/schemas/, from the types that read them: `make
schemas`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from msgspec import Struct, defstruct, structs

from topoplan.extras import SCHEMAS, SECTIONS, Names
from topoplan.synth.cost.host_costs import HostCosts
from topoplan.synth.plan_file import PlanFile
from topoplan.topo.output_head import OutputHead
from topoplan.topo.schema import json_schema
from topoplan.topo.topology_file import TopologyFile

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # the last, as the folders of the package lie there too
from examples.lab.settings import Settings  # noqa: E402


def declare_plan() -> type[Struct]:
    """Return the type of a plan's file with the sections that extras add."""
    kinds = [Names(SECTIONS).find(name) for name in Names(SECTIONS).describe()]
    added = [field for kind in kinds for field in structs.fields(kind.fields)]
    return defstruct(
        PlanFile.__name__,
        [(field.name, field.type, field.default) for field in added],
        bases=(PlanFile,),
        namespace={"__doc__": PlanFile.__doc__},
        forbid_unknown_fields=True,
    )


FOLDER = ROOT / "docs/schemas"
# The type that each file is read as, and the schema's title.
DECLARED = {
    "topology": (TopologyFile, "a topology: --topology FILE, topo-probe --json"),
    "plan": (declare_plan(), "a plan: topo-synth -o"),
    "host-costs": (HostCosts, 'the field "host" of a topology: topo-run --calibrate'),
    "output": (OutputHead, "what every --json but topo-probe's begins with"),
    "lab-settings": (Settings, "what examples/lab trains"),
    **{
        name: (Names(SCHEMAS).find(name), about)
        for name, about in Names(SCHEMAS).describe().items()
    },
}


def texts() -> dict[str, str]:
    """Return the text of each schema, by its file's name."""
    schemas: dict[str, dict[str, Any]] = {
        f"{name}.schema.json": json_schema(declared, title)
        for name, (declared, title) in DECLARED.items()
    }
    return {name: json.dumps(schema, indent=2) + "\n" for name, schema in schemas.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(FOLDER / name)
