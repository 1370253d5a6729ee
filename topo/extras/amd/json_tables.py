"""Parse the JSON of `amd-smi topology` and `rocm-smi --showtopo` into the tables of their texts."""

import json
import re
from collections.abc import Iterator
from typing import Any

from ...errors import InputError
from .tables import ACCESS, BANDWIDTH, HOPS, MAX_GPUS, TYPE, WEIGHT, AmdOutput

# rocm-smi names pairs and cards in keys; amd-smi has a list of GPUs with their links.
_ROCM = re.compile(r'\A\s*\{(?=[^\0]{0,20000}"\(Topology\) )')
_AMD = re.compile(r'\A\s*(?:\[\s*\{\s*"gpu":|\{\s*"gpu_data":)')
# The same inside a document: at the start of a line.
_INSIDE = (
    re.compile(r'^[ \t]{0,40}(?=\[\s{0,40}\{\s{0,40}"gpu":|\{\s{0,40}"gpu_data":)', re.MULTILINE),
    re.compile(
        r'^[ \t]{0,40}(?=\{\s{0,40}"(?:system|card\d{1,4})":\s{0,40}\{\s{0,40}"\(Topology\) )',
        re.MULTILINE,
    ),
)
_PAIR = re.compile(
    r"\(Topology\) (Weight|Hops|Link type) between DRM devices (\d{1,4}) and (\d{1,4})"
)
_CARD = re.compile(r"card(\d{1,4})")
_TABLE_OF = {"Weight": WEIGHT, "Hops": HOPS, "Link type": TYPE}
_KEYS = {
    ACCESS: "link_status",
    WEIGHT: "weight",
    HOPS: "num_hops",
    TYPE: "link_type",
    BANDWIDTH: "bandwidth",
}
# Until ROCm 6.1 a GPU had a dictionary for each table, with keys such as gpu_1.
_OLD_KEYS = {
    ACCESS: "link_accessibility",
    WEIGHT: "weight",
    HOPS: "hops",
    TYPE: "link_type",
    BANDWIDTH: "numa_bandwidth",
}
_OLD_GPU = re.compile(r"gpu_(\d{1,4})")


def looks_like(text: str) -> bool:
    """Return whether a text begins like the JSON of AMD's tools."""
    return bool(_AMD.match(text) or _ROCM.match(text))


def find_json(text: str) -> str | None:
    """Return the JSON of amd-smi or rocm-smi within a document; None if there is none.

    It begins with as many empty lines as precede it there, so that line numbers stay right, and
    ends where the value does, or at the document's end if it is cut off.
    """
    start = next((found for pattern in _INSIDE if (found := pattern.search(text))), None)
    if start is None:
        return None
    begin = start.end()
    try:
        _, end = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):
        end = len(text)
    return "\n" * text.count("\n", 0, begin) + text[begin:end]


def parse_json(text: str, where: str) -> AmdOutput:
    """Parse a JSON text into the tables of the tools' texts; `where` names the file in errors.

    Raise InputError if it is no JSON, or none that these commands print.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) or "nested too deeply"
        raise InputError(
            f"{where}: begins as the JSON of AMD's tools, but is none: {reason}; give it as the "
            "tool printed it"
        ) from None
    output = AmdOutput()
    if isinstance(content, dict) and "gpu_data" not in content:
        _add_rocm(output, content)
    else:
        gpus = content["gpu_data"] if isinstance(content, dict) else content
        _add_amd(output, gpus)
    if not output.names or len(output.names) > MAX_GPUS or TYPE not in output.tables:
        raise InputError(
            f"{where}: a dictionary or list in JSON without links between GPUs, or of more than "
            f"{MAX_GPUS}; give the whole JSON of amd-smi topology or rocm-smi --showtopo"
        )
    return output


def _add_amd(output: AmdOutput, gpus: Any) -> None:
    rows = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    output.names = tuple(dict.fromkeys(_name(row) for row in rows))
    for row, link in _iterate_links(rows):
        pair = _name(row), _name(link)
        for table, key in _KEYS.items():
            value = link.get(key)
            if isinstance(value, (str, int)):
                output.tables.setdefault(table, {})[pair] = str(value)
    for row in rows:
        for table, key in _OLD_KEYS.items():
            cells = row.get(key)
            for peer, value in cells.items() if isinstance(cells, dict) else ():
                if (named := _OLD_GPU.fullmatch(peer)) is not None:
                    pair = _name(row), f"GPU{named[1]}"
                    output.tables.setdefault(table, {})[pair] = str(value)


def _iterate_links(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for row in rows:
        links = row.get("links")
        for link in links if isinstance(links, list) else ():
            if isinstance(link, dict):
                yield row, link


def _name(gpu: dict[str, Any]) -> str:
    """Return a GPU's PCI address, or its number if there is none."""
    return str(gpu.get("bdf") or f"GPU{gpu.get('gpu')}")


def _add_rocm(output: AmdOutput, content: dict[str, Any]) -> None:
    numbers: set[int] = set()
    for section, values in content.items():
        card = _CARD.fullmatch(section)
        for key, value in values.items() if isinstance(values, dict) else ():
            if (pair := _PAIR.fullmatch(key)) is not None:
                a, b = int(pair[2]), int(pair[3])
                numbers |= {a, b}
                output.tables.setdefault(_TABLE_OF[pair[1]], {})[f"GPU{a}", f"GPU{b}"] = str(value)
            elif card is not None and key == "(Topology) Numa Node":
                numbers.add(int(card[1]))
                if re.fullmatch(r"-?\d{1,6}", str(value)):
                    output.nodes[int(card[1])] = int(str(value))
    output.names = tuple(f"GPU{number}" for number in sorted(numbers))
    if len(output.names) == 1:
        output.tables.setdefault(TYPE, {})
