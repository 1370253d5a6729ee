"""Facts about a machine: each value with its source, or the reason why it is missing.

`view.py` has the view that the doctor and GPUDirect share.
"""

from .facts import Fact, Facts, Value, facts_from_json, facts_to_json, load_facts

__all__ = ["Fact", "Facts", "Value", "facts_from_json", "facts_to_json", "load_facts"]
