"""topoplan's subcommands by name, and what each is for."""

# By name: `topoplan NAME` is `cli/NAME.py`, and topo-NAME where that is a command of its own.
COMMANDS = {
    "probe": "show a machine's topology, check it, measure its links",
    "synth": "synthesize a plan for a collective on a topology, with its bound",
    "run": "run plans on real processes, beside the stock collectives",
    "emulate": "run a command once a rank, on a machine emulated with network namespaces",
    "lab": "train on real data with several systems, and report on them",
    "judge": "hold logs and measurements of what runs today against the bound",
    "place": "which GPU each rank gets, with a bound on any order",
    "report": "one HTML page about a machine or a plan",
    "completion": "print a script by which a shell completes these commands",
}
# Those that are commands of their own as well.
OWN = ("probe", "synth", "run", "emulate", "lab", "judge", "place", "report")
