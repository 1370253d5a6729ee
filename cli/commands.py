"""The names of topoplan's subcommands, and their purposes."""

# `topoplan NAME` runs cli/NAME.py.
COMMANDS = {
    "probe": "show a machine's topology, check it, measure its links",
    "synth": "synthesize a plan for a collective on a topology, with its bound",
    "run": "run plans on real processes, beside the stock collectives",
    "emulate": "run a command once per rank, on a machine emulated with network namespaces",
    "lab": "train on real data with several systems, and report on them",
    "judge": "compare logs and measurements of what runs today with the bound",
    "place": "choose the GPU of each rank, with a bound on any order",
    "report": "write an HTML page about a machine or a plan",
    "completion": "print the script that lets a shell complete these commands",
}
# Subcommands that are also separate commands, topo-NAME.
OWN = ("probe", "synth", "run", "emulate", "lab", "judge", "place", "report")
