"""Facts about a machine: what is known, where from, what could not be learned and why; and the view
that judges share.
"""

from .facts import Fact, Facts, Value, facts_from_json, facts_to_json, load_facts

__all__ = ["Fact", "Facts", "Value", "facts_from_json", "facts_to_json", "load_facts"]
