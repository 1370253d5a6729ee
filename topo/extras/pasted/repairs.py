"""What undoes the damage of pasting to a text, as an entry of extras.py at the root.

Readers of texts use it through topo/formats/pasted.py.
"""

from ...formats.pasted import Repairs
from .traces import clean
from .xml import find_xml

REPAIRS = Repairs(clean, find_xml)
