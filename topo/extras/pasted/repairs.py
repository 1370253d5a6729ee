"""What undoes pasting, as extras.py lists it."""

from ...formats.pasted import Repairs
from .traces import clean
from .xml import find_xml

REPAIRS = Repairs(clean, find_xml)
