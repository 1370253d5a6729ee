"""The extras: features outside the core, and the one file that names them and their modules.

The core asks `find` for what an extra adds, by group and name, and imports no extra itself; an
extra's modules are imported when they are first asked for. An extra whose paths are deleted adds
nothing, and neither does one that needs it. `scripts/extras.py` lists, counts and checks them.

An entry of a group is what the group's line says, under its NAME. Where it is an option of a
command, the line about the entry is the option's help.

Open to packages from outside too, as entry points of the group `topoplan.GROUP` (`OPEN` has them);
these are looked at only for names that no extra here has, and for listings:

- `commands`: a module with `main` and `build_parser` (cli/commands.py), for `topoplan NAME`.
- `formats`: a Format (topo/formats/format.py) of other tools' files that are read. Those of
  packages are tried for what nothing here reads.
- `strategies`: a function of a Request that returns schedules (synth/planner/registry.py), for
  `strategy=NAME`; what extras here add is a Strategy (synth/request.py), which says more.
- `exports`: a ScheduleFormat (synth/schedule_format.py), for `topo-synth --format NAME`.
- `files`: a LibraryFormat (synth/library_format.py), likewise: files that tune other libraries.
- `explanations`: a function that returns an ExplanationPart (synth/extras/explain/part.py), for
  `topo-synth --explain`; NAME is its key in the JSON.
- `links`: a class of NamedLinks (runtime/ranks/links.py), for the transport of that name.
- `runners`: a RunnerKind (runtime/runners/contract.py), for links or policies that name it.
- `layers`: a LayerKind (runtime/layers.py), for the option of a policy that has the name.
- `codecs`: a Codec (runtime/codec.py), for `compress=NAME`.

Of machines, topo-probe and topoplan; to these and all that follow only the extras here add:

- `subcommands`: a module as in `commands`, for `topoplan NAME` alone, no program of its own.
- `asides`: an Aside (topo/formats/format.py): what texts have beside a machine, or instead of one.
- `boxes`: PlaceFormats (likewise), for files that only say where hosts are; NAME is the option that
  says what each host is.
- `repairs`: Repairs (topo/formats/pasted.py), which undo what pasting does to texts.
- `statements`: a subclass of Around (topo/formats/around.py), of what stands around a matrix.
- `skeletons`: Skeletons (topo/formats/format.py), files that only their own machine completes.
- `graphs`: a module that writes topologies as another package's graphs, and reads such graphs.
- `notebooks`: a Renderer (topo/notebook.py) of objects whose class is NAME.
- `checks`: checks of the doctor (topo/extras/doctor/view.py), in a tuple.
- `archives`: a function that unpacks a file into a folder, both by their paths, by its format.
- `probes`: a function of the folder that is `/` on a machine, which returns Facts about it.
- `answers`: an Answerer (topo/answers.py), for why a run hangs, fails or is slow.
- `offers`: a function of a topology that returns why no file of the format NAME is offered for an
  allreduce on it, None if one is.
- `fields`: a function of a topology that returns fields of topo-probe's JSON.
- `tables`: a function of a topology and a number of columns that returns a TablePart
  (topo/pictures/part_of_table.py), or None, to print below topo-probe's tables.
- `reviews`: a Review (cli/probing/added.py), for `topo-probe --NAME`.
- `views`: a View (likewise), for `topo-probe --format NAME`.
- `writers`: a View (likewise), for `topo-probe --NAME`, which writes it in place of NCCL's XML.
- `corrections`: a function of a topology and the FILE of `topo-probe --NAME FILE` that returns the
  corrected topology.
- `selections`: a function of a topology and the LIST of `--NAME LIST` that returns a part of it,
  for topo-probe, topo-place and topo-judge.
- `sources`: a function of topo-probe's arguments and progress that finds the topology for --NAME.
- `launches`: a function that returns the machine of a launch's ranks, for topo-probe as ranks.

Of plans and topo-synth:

- `planners`: a function of a Request for such collectives that returns their Synthesis
  (synth/planner/whole.py), and `bounds`: DemandBounds (synth/bounds/demand_bounds.py), a module.
- `requests`: a FileRequest (cli/synthesis/added.py), for `topo-synth --NAME FILE` in place of a
  collective that its name describes.
- `words`: a function of a strategy's name that begins with NAME and a colon, which returns the
  Strategy (synth/request.py); the line says what follows the colon.
- `sections`: a SectionKind (synth/section.py), for the field NAME of a plan's file.
- `constraints`: a function of the VALUE of `topo-synth --NAME VALUE` that returns the Promise
  (synth/request.py) which all schedules of the plan keep then.
- `additions`: an Addition (synth/addition.py), and `promises`: a Promise (synth/request.py), for
  the options of their names.
- `jobs`: a function of a SynthRun (cli/synthesis/job.py) that is what `topo-synth --NAME` does with
  what is planned.
- `job_options`: JobOptions (cli/synthesis/added.py), for an extra whose jobs are more than flags.
- `modes`: a function of the parsed arguments that is what `topo-synth --NAME VALUE` does.
- `remarks`: a function of a plan and a size in bytes that returns a Remark (synth/remark.py).
- `curves`: a function of a plan and sizes in bytes that returns a Curve (synth/pictures/curves.py),
  or None, to draw beside the plan's.
- `plan_files`: a PlanFile (cli/synthesis/added.py), for `topo-synth --NAME FILE`.
- `schemas`: the type that a file is read as, for docs/schemas/NAME.schema.json.

Of the runtime:

- `networks`: a LaunchNetwork (runtime/ranks/cabled.py), asked before a launch's groups are made.
- `roles`: a FindRole (runtime/roles.py), for plans in which ranks have such roles.
- `culprits`: a CulpritFinder (runtime/ranks/faults.py), in a module.
- `waits`: a WaitWatch (runtime/ranks/waits.py), over a process's waits for messages.
- `observers`: what observes all that sends messages (runtime/observers.py).
- `usage_logs`: a UsageLog (runtime/usage_log.py), which counts the calls of groups and hooks.
- `caches`: a Cache (runtime/cache.py) of plans and races.
- `encoders`: a function of a Codec and a rank's messages that returns an Encoder
  (runtime/program/messages.py).
- `feedback`: a class whose method `of` returns the residual of a bucket of DDP's (runtime/ddp.py).
- `call_checks`: a subclass of CallCheck (runtime/backend/call_check.py), which compares the calls
  that the ranks of a group make.
- `options`: a function that checks what backend_options is given for its option NAME, and returns
  it as the groups' options have it.
- `process_groups`: a subclass of CollectiveGroup (runtime/backend/collectives.py), of which the
  backend's groups are instances.
- `plans`: a PlanSetFormat (runtime/backend/plan_sets.py), for files of the format NAME that the
  backend is given, and `runs`: a function that loads such a file for topo-run
  (cli/running/plan_sets.py).

Of topo-run (all in cli/running/added.py):

- `run_files`: a RunFile, for `topo-run --NAME FILE`.
- `run_modes`: a RunMode, for `topo-run --NAME`, which measures something else.
- `run_checks`, `preparations`: a RunCheck or Preparation, made before the ranks start, or before
  they measure a plan.
- `dialects`: a Dialect, a module, for options of other tools.
- `others`: a RunOthers, a module, for ranks that are no members of a plan that is measured.

Of the whole:

- `names`: what `topoplan.NAME` is, for names in `__all__` of `__init__.py` at the root.
- `examples`: no module but the command in whose help the command line NAME is an example.
"""

from __future__ import annotations

from importlib import import_module
from os.path import dirname, exists, join  # pathlib takes longer to import than this module

TYPE_CHECKING = False  # not from typing, whose import takes longer than all else in this module
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.metadata import EntryPoint
    from typing import Any

COMMANDS, SUBCOMMANDS = "commands", "subcommands"
FORMATS, STRATEGIES, EXPORTS, FILES = "formats", "strategies", "exports", "files"
EXPLANATIONS, LINKS, RUNNERS, LAYERS, CODECS = (
    "explanations",
    "links",
    "runners",
    "layers",
    "codecs",
)
ASIDES, BOXES, SKELETONS = "asides", "boxes", "skeletons"
REPAIRS, STATEMENTS = "repairs", "statements"
ARCHIVES, GRAPHS, NOTEBOOKS, PROBES = "archives", "graphs", "notebooks", "probes"
CHECKS, FIELDS, TABLES, REVIEWS, VIEWS = "checks", "fields", "tables", "reviews", "views"
ANSWERS, OFFERS = "answers", "offers"
WRITERS, CORRECTIONS, SELECTIONS = "writers", "corrections", "selections"
SOURCES, LAUNCHES = "sources", "launches"
PLANNERS, BOUNDS, REQUESTS = "planners", "bounds", "requests"
WORDS, SECTIONS, ADDITIONS, PROMISES = "words", "sections", "additions", "promises"
CONSTRAINTS = "constraints"
JOBS, JOB_OPTIONS, MODES = "jobs", "job_options", "modes"
CURVES, PLAN_FILES, SCHEMAS = "curves", "plan_files", "schemas"
REMARKS = "remarks"
NETWORKS, ROLES, CULPRITS, WAITS = "networks", "roles", "culprits", "waits"
OBSERVERS, USAGE_LOGS, CACHES = "observers", "usage_logs", "caches"
ENCODERS, FEEDBACK, CALL_CHECKS = "encoders", "feedback", "call_checks"
OPTIONS, PROCESS_GROUPS, PLANS, RUNS = "options", "process_groups", "plans", "runs"
RUN_FILES, RUN_MODES, RUN_CHECKS = "run_files", "run_modes", "run_checks"
PREPARATIONS, DIALECTS, OTHERS = "preparations", "dialects", "others"
NAMES, EXAMPLES = "names", "examples"
# The groups to which packages from outside add, and the attributes that an entry of each must have.
OPEN = {
    COMMANDS: ("main", "build_parser"),
    STRATEGIES: ("__call__",),
    RUNNERS: ("prepare", "open"),
    LAYERS: ("why_not", "why_not_plan", "prepare", "open"),
    LINKS: ("open", "takes_gpu_memory", "join_launch"),
    CODECS: ("list_buffers", "open"),
    FORMATS: ("starts", "read"),
    EXPORTS: ("write", "list_suffixes"),
    FILES: ("write", "options"),
    EXPLANATIONS: ("__call__",),
}
_JOINT = "topoplan-joint-plan"
_ROOT = dirname(__file__)  # noqa: PTH120


class Extra:
    """One feature: its `name`, its `paths`, the extras that it `needs`, and what it `adds`.

    `paths` are its files and folders in the checkout, which can be deleted; the first one tells
    whether it is here. `needs` are names of extras. `adds` maps groups to names, and each name to
    where its entry is (a module of this package, or an attribute of one after a colon) and one line
    about it.
    """

    def __init__(
        self,
        name: str,
        paths: tuple[str, ...],
        adds: Mapping[str, Mapping[str, tuple[str, str]]],
        needs: tuple[str, ...] = (),
    ) -> None:
        self.name, self.paths, self.adds, self.needs = name, paths, adds, needs

    @property
    def is_here(self) -> bool:
        """Whether it is installed with all that it needs: whether their first paths exist."""
        first = join(_ROOT, self.paths[0])  # noqa: PTH118
        return exists(first) and all(BY_NAME[name].is_here for name in self.needs)  # noqa: PTH110


EXTRAS = (
    Extra(
        "hwloc",
        ("topo/extras/hwloc_xml", "tests/extras/hwloc_xml"),
        {FORMATS: {"hwloc": ("topo.extras.hwloc_xml.format:FORMAT", "hwloc XML")}},
    ),
    Extra(
        "amd",
        ("topo/extras/amd", "tests/extras/amd"),
        {
            FORMATS: {
                "amd-json": (
                    "topo.extras.amd.formats:JSON",
                    "rocm-smi --showtopo or amd-smi topology",
                ),
                "amd-text": (
                    "topo.extras.amd.formats:TEXT",
                    "rocm-smi --showtopo or amd-smi topology",
                ),
            }
        },
    ),
    Extra(
        "nccl-log",
        ("topo/extras/nccl_log", "tests/extras/nccl_log"),
        {
            FORMATS: {
                "nccl-log": ("topo.extras.nccl_log.format:FORMAT", "a log of NCCL with its graph")
            }
        },
    ),
    Extra(
        "clusters",
        (
            *("topo/extras/clusters", "tests/extras/clusters"),
            "tests/extras/place/test_orders.py",
        ),
        {
            BOXES: {
                "box": (
                    "topo.extras.clusters.formats:CLUSTERS",
                    "what each host is, of files that only say where hosts are: a preset such as "
                    "dgx-h100, or a file",
                )
            },
            SELECTIONS: {
                "nodes": (
                    "topo.extras.clusters.nodes:select_nodes",
                    "take these hosts alone, in this order, as Slurm lists a job's: "
                    "'node[01-04,07],gpu-b[1,3]', \"$SLURM_JOB_NODELIST\"",
                )
            },
            EXAMPLES: {
                "topo-probe topology.conf --box dgx1 --nodes 'node[1-2]' -o job.json": (
                    "topo-probe",
                    'the hosts of a job, as --nodes "$SLURM_JOB_NODELIST" names them',
                )
            },
        },
    ),
    Extra(
        "machine-details",
        ("topo/extras/machine_details",),
        {},
    ),
    Extra(
        "pasted",
        ("topo/extras/pasted", "tests/extras/pasted"),
        {
            REPAIRS: {
                "pasted": (
                    "topo.extras.pasted.repairs:REPAIRS",
                    "what terminals, web pages and logs do to texts, and XML amid text",
                )
            },
            STATEMENTS: {
                "pasted": (
                    "topo.extras.pasted.around:TextAround",
                    "what is written around a matrix: PCIe links, MIG, P2P, the host",
                )
            },
        },
    ),
    Extra(
        "nccl-topology",
        (
            *("topo/extras/nccl_topology", "cli/extras/nccl_topology.py"),
            "tests/extras/nccl_topology",
        ),
        {
            SKELETONS: {
                "nccl-xml": (
                    "topo.extras.nccl_topology.format:SKELETONS",
                    "NCCL's XML without GPUs, as cloud providers distribute it",
                )
            },
            VIEWS: {
                "nccl-xml": ("cli.extras.nccl_topology:NCCL_XML", "the machine for NCCL_TOPO_FILE")
            },
            WRITERS: {
                "for-vm": (
                    "cli.extras.nccl_topology:FOR_VM",
                    "write NCCL XML for use inside a VM: the VM's addresses, plausible link speeds",
                )
            },
            EXAMPLES: {
                "topo-probe topo.xml --for-vm -o vm.xml": (
                    "topo-probe",
                    "a file for NCCL_TOPO_FILE inside a virtual machine; on that machine itself "
                    "leave topo.xml out",
                )
            },
        },
        needs=("machine-details",),
    ),
    Extra(
        "archives",
        ("topo/extras/archives.py", "tests/extras/archives"),
        {
            ARCHIVES: {
                "tar": ("topo.extras.archives:unpack", "of a machine's /sys and /proc, to read it")
            }
        },
    ),
    Extra(
        "networkx-graphs",
        ("topo/extras/networkx_graph.py", "tests/extras/networkx_graph"),
        {GRAPHS: {"networkx": ("topo.extras.networkx_graph", "those of networkx")}},
    ),
    Extra(
        "pictures",
        (
            *("topo/extras/pictures", "synth/extras/heat_map.py", "cli/extras/pictures.py"),
            "tests/extras/pictures",
        ),
        {
            VIEWS: {
                "dot": ("cli.extras.pictures:DOT", "a graph for Graphviz"),
                "svg": ("cli.extras.pictures:SVG", "the machine"),
                "png": ("cli.extras.pictures:PNG", "the same as pixels"),
                "pdf": ("cli.extras.pictures:PDF", "the same for print"),
                "heat-map": ("cli.extras.pictures:HEAT_MAP", "the rates between its GPUs"),
            },
            EXAMPLES: {
                "topo-probe matrix.txt -o matrix.svg": (
                    "topo-probe",
                    "a picture of a machine from its nvidia-smi topo -m; also .png and .pdf",
                ),
                "topo-probe dgx1 --format heat-map -o rates.svg": (
                    "topo-probe",
                    "the rate from each GPU to each other: measured, or as declared",
                ),
            },
        },
    ),
    Extra(
        "measured",
        ("topo/extras/measured", "cli/extras/measured.py", "tests/extras/measured"),
        {
            ASIDES: {
                "pair-rates": (
                    "topo.extras.measured.formats:PAIR_RATES",
                    "rates between GPUs that other tools measured",
                )
            },
            CORRECTIONS: {
                "measured": (
                    "cli.extras.measured:correct",
                    "correct rates by those between GPUs that nvbandwidth, "
                    "p2pBandwidthLatencyTest or nvloom printed",
                )
            },
            EXAMPLES: {
                "topo-probe matrix.txt --measured nvbandwidth.txt -o rates.json": (
                    "topo-probe",
                    "a machine whose links have the rates that nvbandwidth measured between its "
                    "GPUs",
                )
            },
        },
        needs=("machine-details",),
    ),
    Extra(
        "gpudirect",
        ("topo/extras/gpudirect", "tests/extras/gpudirect"),
        {
            PROBES: {
                "gpudirect": (
                    "topo.extras.gpudirect.linux:read_gpudirect",
                    "settings of Linux on which it depends",
                )
            },
            FIELDS: {
                "gpudirect": (
                    "topo.extras.gpudirect.shown:describe_verdicts",
                    "which pairs of devices GPUDirect can connect",
                )
            },
            TABLES: {"gpudirect": ("topo.extras.gpudirect.shown:make_part", "the same in words")},
        },
        needs=("machine-details",),
    ),
    Extra(
        "doctor",
        (
            *("topo/extras/doctor", "cli/extras/doctor.py", "tests/extras/doctor"),
            "examples/operators",
        ),
        {
            COMMANDS: {
                "doctor": (
                    "cli.extras.doctor",
                    "list what is wrong with a machine, or with one of several that are alike",
                )
            },
            FIELDS: {"findings": ("topo.extras.doctor.fields:describe_findings", "what is wrong")},
            REVIEWS: {
                "check": (
                    "cli.extras.doctor:CHECK",
                    "list what is wrong: severity, evidence, advice; exit code 1 on errors",
                )
            },
            EXAMPLES: {
                "topo-probe --check": (
                    "topo-probe",
                    "find what is wrong with it, with advice; exit code 1 on errors",
                )
            },
        },
        needs=("machine-details",),
    ),
    Extra(
        "answers",
        ("topo/extras/answers", "tests/extras/answers"),
        {
            ANSWERS: {
                "symptoms": (
                    "topo.extras.answers.answer:answer",
                    "of symptoms whose causes public threads have found",
                )
            }
        },
    ),
    Extra(
        "patterns",
        ("topo/extras/patterns", "cli/extras/patterns.py", "tests/extras/patterns"),
        {
            CHECKS: {"patterns": ("topo.extras.patterns.check:CHECKS", "of flows at once")},
            CORRECTIONS: {
                "patterns": (
                    "cli.extras.patterns:add",
                    "take rates of flows that were measured at once as facts: lines such as "
                    "'0>2 1>3 = 2.7 of 37 write' (GB/s of all together, of one alone), or "
                    "matrices of both directions by nvbandwidth or p2pBandwidthLatencyTest",
                )
            },
            EXAMPLES: {
                "topo-probe matrix.txt --patterns flows.txt --check": (
                    "topo-probe",
                    "do flows at once get less than one of them alone?",
                )
            },
        },
        needs=("doctor", "measured"),
    ),
    Extra(
        "mscclpp",
        ("synth/extras/mscclpp", "tests/extras/mscclpp", "tests/mscclpp_player.py"),
        {EXPORTS: {"mscclpp": ("synth.extras.mscclpp.format:FORMAT", "for MSCCL++'s executor")}},
    ),
    Extra(
        "astra-sim",
        ("synth/extras/astra_sim", "tests/extras/astra_sim", "tests/chakra_player.py"),
        {
            EXPORTS: {
                "astra-sim": (
                    "synth.extras.astra_sim.format:FORMAT",
                    "Chakra traces FILE.0.et, ... for -o FILE",
                )
            }
        },
    ),
    Extra(
        "msccl",
        ("synth/extras/msccl", "tests/extras/msccl"),
        {
            WORDS: {
                "file": (
                    "synth.extras.msccl.strategy:file_strategy",
                    "PATH, the schedule of an XML file of MSCCL (docs/research.md)",
                )
            },
            EXAMPLES: {
                "topo-synth allreduce ring:4 --strategy file:ring.xml": (
                    "topo-synth",
                    "what the schedule of an MSCCL file reaches on this topology",
                )
            },
        },
    ),
    Extra(
        "stock",
        ("synth/extras/stock", "tests/extras/stock"),
        {
            CURVES: {
                "stock": (
                    "synth.extras.stock.curve:draw_stock",
                    "stock NCCL or RCCL by a model (else a ring in rank order)",
                )
            }
        },
        needs=("nccl-topology",),
    ),
    Extra(
        "nccl-files",
        (
            *("synth/extras/nccl_files", "tests/extras/nccl_files"),
            *("runtime/extras/nccl_graph", "tests/extras/nccl_graph"),
            *("benchmarks/nccl_graphs.py", "benchmarks/rccl_graphs.py"),
        ),
        {
            OFFERS: {
                "nccl-graph": (
                    "synth.extras.nccl_files.offer:explain_no_offer",
                    "a graph file for NCCL",
                )
            },
            FILES: {
                "nccl-graph": (
                    "synth.extras.nccl_files.formats:NCCL_GRAPH",
                    "(also by -o FILE.xml) rings and chains for NCCL_GRAPH_FILE",
                ),
                "rccl-env": (
                    "synth.extras.nccl_files.formats:RCCL_ENV",
                    "RCCL_TREES, with rings beside them in FILE.xml for -o FILE",
                ),
                "nccl-tuner": (
                    "synth.extras.nccl_files.formats:NCCL_TUNER",
                    "the table of NVIDIA's example tuner plugin",
                ),
            },
            NAMES: {
                "nccl_graph": (
                    "runtime.extras.nccl_graph.around_group:nccl_graph",
                    "has NCCL read a graph file",
                )
            },
            EXAMPLES: {
                "topo-synth all_reduce topo.xml --format nccl-graph": (
                    "topo-synth",
                    "rings and chains for NCCL_GRAPH_FILE",
                )
            },
        },
        needs=("stock", "nccl-topology"),
    ),
    Extra(
        "spares",
        ("synth/extras/spares", "tests/extras/spares"),
        {
            SECTIONS: {
                "spares": ("synth.extras.spares.section:SPARES", "plans for the loss of links")
            },
            ADDITIONS: {
                "spare": (
                    "synth.extras.spares.addition:SPARE",
                    "also plan for the loss of each link, and of each NIC, and put these plans "
                    "into the file: ranks that go on after a lost link (--on-fault replan) then "
                    "need not plan",
                )
            },
            EXAMPLES: {
                "topo-synth allreduce mesh:2x2 --spare links -o spared.json": (
                    "topo-synth",
                    "with plans for the loss of each link, to go on with",
                )
            },
        },
    ),
    Extra(
        "reproducible",
        ("synth/extras/reproducible", "tests/extras/reproducible"),
        {
            SECTIONS: {
                "reproducible": (
                    "synth.extras.reproducible.section:REPRODUCIBLE",
                    "the one bracketing of all additions",
                )
            },
            PROMISES: {
                "reproducible": (
                    "synth.extras.reproducible.promise:REPRODUCIBLE",
                    "add every element up in one bracketing of ranks, in all schedules of the "
                    "plan: its bits then depend neither on the buffer's size nor on its place in "
                    "it",
                )
            },
            EXAMPLES: {
                "topo-synth allreduce dgx1 --reproducible": (
                    "topo-synth",
                    "the same bits for an element in buffers of all sizes",
                )
            },
        },
    ),
    Extra(
        "concurrency",
        (
            *("synth/extras/concurrency", "runtime/extras/concurrency"),
            "tests/extras/concurrency",
        ),
        {
            SECTIONS: {
                "concurrent": (
                    "synth.extras.concurrency.section:CONCURRENT",
                    "how many transfers run at a time",
                )
            },
            CONSTRAINTS: {
                "concurrent": (
                    "synth.extras.concurrency.promise:make_promise",
                    "run at most so many transfers at a time out of and into each GPU (gpu=1), or "
                    "through each switch (switch=1), CPU root (root=2) or one device (plx0=1); "
                    "several with commas",
                )
            },
            RUNNERS: {
                "turns": (
                    "runtime.extras.concurrency.runner:TURNS",
                    "sends messages that wait for their turn",
                )
            },
            EXAMPLES: {
                "topo-synth alltoall switch:4 --concurrent switch=1": (
                    "topo-synth",
                    "for a switch that several transfers at once slow down: one at a time",
                )
            },
        },
    ),
    Extra(
        "explain",
        ("synth/extras/explain", "cli/extras/explain.py", "tests/extras/explain"),
        {
            JOBS: {
                "explain": (
                    "cli.extras.explain:run",
                    "show the bottleneck, what every strategy reaches at 8 sizes, and which links "
                    "to improve first",
                )
            },
            EXAMPLES: {
                "topo-synth allreduce dgx1 --explain": (
                    "topo-synth",
                    "the bottleneck, and which links to improve first",
                )
            },
        },
    ),
    Extra(
        "exact",
        (
            *("synth/extras/exact", "cli/extras/exact", "tests/extras/exact"),
            "benchmarks/exact_rows.py",
        ),
        {
            STRATEGIES: {
                "exact": (
                    "synth.extras.exact.strategy:EXACT",
                    "SCCL's exact synthesis: the schedules of the Pareto front",
                )
            },
            JOBS: {
                "pareto": (
                    "cli.extras.exact.front:run",
                    "find the Pareto front of steps and rounds (R/C) by exact synthesis",
                ),
                "instance": (
                    "cli.extras.exact.front:run",
                    "decide whether a schedule of so many chunks, steps and rounds exists (exit "
                    "code 3: there is none); may be repeated",
                ),
            },
            JOB_OPTIONS: {
                "exact": ("cli.extras.exact.options:OPTIONS", "limits on steps and rounds")
            },
            NAMES: {
                "ParetoFront": ("synth.extras.exact.front:ParetoFront", "rows, bounds and a plan"),
                "ParetoRow": ("synth.extras.exact.search:ParetoRow", "a row of a Pareto front"),
                "pareto": ("synth.extras.exact.api:pareto", "the front of exact schedules"),
            },
            EXAMPLES: {
                "topo-synth allgather dgx1 --pareto": (
                    "topo-synth",
                    "the Pareto front of steps and rounds",
                ),
                "topo-synth alltoall dgx1 --instance 3,3,8": (
                    "topo-synth",
                    "is there a schedule with 3 chunks, 3 steps, 8 rounds?",
                ),
            },
        },
    ),
    Extra(
        "notebooks",
        ("synth/extras/notebooks.py", "topo/extras/notebooks.py", "tests/extras/notebooks"),
        {
            NOTEBOOKS: {
                "Topology": ("topo.extras.notebooks:TOPOLOGY", "its picture and tables"),
                "Schedule": ("synth.extras.notebooks:SCHEDULE", "its steps"),
                "Plan": ("synth.extras.notebooks:PLAN", "its curves, entries and trees"),
                "ParetoFront": ("synth.extras.notebooks:FRONT", "its picture and rows"),
            }
        },
        needs=("report", "pictures", "exact", "traces"),
    ),
    Extra(
        "native",
        ("runtime/extras/native", "tests/extras/native"),
        {},
    ),
    Extra(
        "one-sided",
        (
            *("runtime/extras/one_sided", "tests/extras/one_sided"),
            "benchmarks/one_sided_replay.py",
        ),
        {},
    ),
    Extra(
        "shared-memory",
        (
            *("runtime/extras/shared_memory", "tests/extras/shared_memory"),
            *("tests/ranks/one_sided.py", "benchmarks/one_sided.py"),
        ),
        {
            RUNNERS: {
                "hosts": (
                    "runtime.extras.shared_memory.runners:HOSTS",
                    "plays schedules in the memory of a host's ranks",
                )
            }
        },
        needs=("native", "one-sided"),
    ),
    Extra(
        "helpers",
        (
            *("runtime/extras/helpers", "tests/extras/helpers", "tests/ranks/helped.py"),
            *("tests/ranks/helped_groups.py", "benchmarks/groups_run.py"),
        ),
        {
            NAMES: {
                "new_group": ("runtime.extras.helpers.new_group:new_group", "groups with helpers")
            },
            ROLES: {"helpers": ("runtime.extras.helpers.role:find_role", "of ranks that help")},
            OTHERS: {"rows": ("runtime.extras.helpers.bench_rows", "waits for the members' rows")},
            EXAMPLES: {
                "topo-synth allreduce full:4 --group 0,1 -o two.json": (
                    "topo-run",
                    "a plan for two of four GPUs",
                ),
                "topo-run two.json -e 16M": (
                    "topo-run",
                    "run it on 4 ranks, with the others as helpers",
                ),
            },
        },
    ),
    Extra(
        "membership",
        (
            *("runtime/extras/membership", "tests/extras/membership"),
            *("tests/ranks/reconfigured.py", "scripts/fault_tolerance_suite.py"),
        ),
        {
            NAMES: {
                "reconfigure": (
                    "runtime.extras.membership.reconfigure:reconfigure",
                    "gives the default group other ranks",
                ),
                "reconfigure_handle": (
                    "runtime.extras.membership.reconfigure:reconfigure_handle",
                    "what others need to find a rank",
                ),
            },
            PROCESS_GROUPS: {
                "membership": (
                    "runtime.extras.membership.group:MemberGroup",
                    "their ranks can change",
                )
            },
        },
    ),
    Extra(
        "uneven-alltoall",
        (
            *("runtime/extras/uneven_alltoall", "tests/extras/uneven_alltoall"),
            "tests/ranks/uneven.py",
        ),
        {
            OPTIONS: {
                "expected_splits": (
                    "runtime.extras.uneven_alltoall.splits:parse_splits",
                    "announces the sizes of an alltoall's parts",
                )
            },
            PROCESS_GROUPS: {
                "uneven-alltoall": (
                    "runtime.extras.uneven_alltoall.group:UnevenGroup",
                    "their alltoalls of announced sizes go by plans",
                )
            },
        },
        needs=("demands",),
    ),
    Extra(
        "sockets",
        ("runtime/extras/sockets.py",),
        {},
    ),
    Extra(
        "compared-calls",
        (
            *("runtime/extras/compared_calls", "tests/extras/compared_calls"),
            "tests/ranks/differing.py",
        ),
        {
            CALL_CHECKS: {
                "compared-calls": (
                    "runtime.extras.compared_calls.compared:ComparedCalls",
                    "names the ranks whose calls differ",
                )
            }
        },
    ),
    Extra(
        "replanning",
        ("runtime/extras/replanning",),
        {},
    ),
    Extra(
        "culprits",
        ("runtime/extras/culprits", "tests/extras/culprits"),
        {
            CULPRITS: {
                "reports": (
                    "runtime.extras.culprits.finder",
                    "names the rank or link at fault after a failure, by the reports of all ranks",
                )
            }
        },
    ),
    Extra(
        "layered-groups",
        ("runtime/extras/layered_groups",),
        {
            PROCESS_GROUPS: {
                "layers": (
                    "runtime.extras.layered_groups.group:LayeredGroup",
                    "their calls go through layers",
                )
            }
        },
    ),
    Extra(
        "half-messages",
        (
            *("runtime/extras/half_messages.py", "tests/extras/half_messages"),
            "tests/ranks/half_messages.py",
        ),
        {
            WAITS: {
                "half-messages": (
                    "runtime.extras.half_messages:WATCH",
                    "ends waits for messages whose connection was closed half way",
                )
            }
        },
    ),
    Extra(
        "recovery",
        (
            *("runtime/extras/recovery", "tests/extras/recovery", "tests/ranks/recovering.py"),
            *("benchmarks/carry_on.py", "benchmarks/carry_on_cost.py"),
        ),
        {
            LAYERS: {
                "on_fault": (
                    "runtime.extras.recovery.kind:ON_FAULT",
                    "calls go on after a lost link",
                )
            }
        },
        needs=("replanning", "culprits", "sockets", "layered-groups", "spares"),
    ),
    Extra(
        "meeting",
        ("runtime/extras/meeting.py", "tests/extras/meeting", "tests/ranks/join_command.py"),
        {
            LAUNCHES: {
                "hosts": (
                    "runtime.extras.meeting:join_ranks",
                    "joins the hosts of a launch, each probed by its own ranks",
                )
            },
            EXAMPLES: {
                "torchrun --nproc-per-node 2 -m topoplan.cli.probe --json": (
                    "topo-probe",
                    "started by torchrun, on several hosts (--nnodes 2 --rdzv-endpoint HOST:PORT), "
                    "each host probed by its own ranks: one topology of all",
                )
            },
        },
    ),
    Extra(
        "measuring",
        (
            *("runtime/extras/measuring", "cli/extras/measuring.py", "tests/extras/measuring"),
            "tests/ranks/measure_command.py",
        ),
        {
            SOURCES: {
                "measure": (
                    "cli.extras.measuring:measure",
                    "under torchrun: measure the links by sending, one rank a GPU",
                )
            },
            EXAMPLES: {
                "torchrun --nproc-per-node 2 -m topoplan.cli.probe --measure": (
                    "topo-probe",
                    "measure every link, alone and together with others, and correct rates; one "
                    "rank a GPU",
                )
            },
        },
        needs=("meeting", "measured"),
    ),
    Extra(
        "calibration",
        (
            *("runtime/extras/calibration", "cli/extras/calibration.py"),
            *("tests/extras/calibration", "tests/ranks/calibrated.py"),
        ),
        {
            RUN_MODES: {
                "calibrate": (
                    "cli.extras.calibration:CALIBRATE",
                    "measure the hosts' costs per message and byte, and write the plan's topology "
                    "with these costs, which improve the predictions of topo-synth and topo-run",
                )
            },
            PREPARATIONS: {
                "calibration": (
                    "runtime.extras.calibration.missing:fit_missing",
                    "fits the hosts' costs where a plan has none",
                )
            },
            EXAMPLES: {
                "topo-run plan.json --calibrate -o machine.json": (
                    "topo-run",
                    "fit host costs here; then topo-synth --topology machine.json",
                )
            },
        },
    ),
    Extra(
        "nccl-tests",
        ("cli/extras/nccl_tests.py", "tests/extras/nccl_tests"),
        {DIALECTS: {"nccl-tests": ("cli.extras.nccl_tests", "options as nccl-tests has them")}},
    ),
    Extra(
        "traces",
        (
            *("synth/extras/traces", "runtime/extras/traces.py", "cli/extras/traces.py"),
            "tests/extras/traces",
        ),
        {
            PLAN_FILES: {
                "trace": (
                    "cli.extras.traces:PREDICTED",
                    "write when each transfer is predicted to begin and end at --size: a Chrome "
                    "trace, which Perfetto (ui.perfetto.dev) opens, or a timeline as .svg, .png or "
                    ".pdf",
                )
            },
            RUN_FILES: {
                "trace": (
                    "cli.extras.traces:TRACE",
                    "write when each transfer of a call of the largest size began and ended, with "
                    "the prediction: a Chrome trace, which Perfetto (ui.perfetto.dev) opens",
                )
            },
            EXAMPLES: {
                "topo-run plan.json --trace trace.json": (
                    "topo-run",
                    "when each transfer of a call began and ended, beside the prediction",
                )
            },
        },
    ),
    Extra(
        "memory-check",
        ("runtime/extras/memory_check.py", "tests/extras/memory_check"),
        {
            RUN_CHECKS: {
                "memory": (
                    "runtime.extras.memory_check:check_memory",
                    "compares the largest size with the memory that there is",
                )
            }
        },
    ),
    Extra(
        "slow-links",
        ("runtime/extras/slow_links", "tests/extras/slow_links", "tests/ranks/slowing.py"),
        {
            LAYERS: {"on_slow": ("runtime.extras.slow_links.kind:ON_SLOW", "plans follow links")},
            OBSERVERS: {
                "slow-links": (
                    "runtime.extras.slow_links.warnings:list_watches",
                    "warns of links that become slow",
                )
            },
        },
        needs=("replanning", "measuring", "measured", "layered-groups"),
    ),
    Extra(
        "codecs",
        ("runtime/extras/codecs", "tests/extras/codecs", "tests/ranks/compression.py"),
        {
            CODECS: {
                "fp16": ("runtime.extras.codecs.codecs:FP16", "2 bytes a value"),
                "bf16": ("runtime.extras.codecs.codecs:BF16", "2 bytes a value, of more range"),
                "fp8": ("runtime.extras.codecs.codecs:FP8", "33 bytes for 32 values (e4m3)"),
                "fp8-e5m2": ("runtime.extras.codecs.codecs:FP8_E5M2", "the same, of more range"),
                "int8": ("runtime.extras.codecs.codecs:INT8", "33 bytes for 32 values"),
            },
            FEEDBACK: {
                "residuals": (
                    "runtime.extras.codecs.feedback:Residuals",
                    "what was rounded away, by DDP's buckets",
                )
            },
            ENCODERS: {
                "messages": (
                    "runtime.extras.codecs.messages:MessageEncoder",
                    "encodes a program's messages",
                )
            },
            EXAMPLES: {
                "topo-run plan.json --compress int8": (
                    "topo-run",
                    "a quarter of the bytes: the gain, and the error",
                )
            },
        },
    ),
    Extra(
        "mpi",
        (
            "runtime/extras/mpi",
            "tests/extras/mpi",
            "tests/mpi_launch.py",
            "tests/mpi_ranks.py",
            "tests/ranks/over_mpi.py",
        ),
        {
            LINKS: {"mpi": ("runtime.extras.mpi.links:MpiLinks", "between ranks of MPI")},
            NAMES: {"join_mpi": ("runtime.extras.mpi.launched:join_mpi", "joins mpirun's ranks")},
            EXAMPLES: {
                "mpirun -n 2 topo-run plan.json": (
                    "topo-run",
                    "the same over MPI, compared with MPI's own allreduce",
                )
            },
        },
        needs=("native",),
    ),
    Extra(
        "kernels",
        (
            *("runtime/extras/kernels", "tests/extras/kernels", "tests/ranks/kernels.py"),
            *("benchmarks/kernels.py", "benchmarks/kernels_on_gpu.py"),
            "benchmarks/small_calls.py",
        ),
        {
            RUNNERS: {
                "gpus": (
                    "runtime.extras.kernels.runner:GPUS",
                    "plays schedules on GPUs, a launch a call",
                )
            }
        },
        needs=("native", "one-sided"),
    ),
    Extra(
        "cables",
        (
            *("topo/extras/cables", "synth/extras/cables", "runtime/extras/cables"),
            *("cli/extras/cables.py", "tests/extras/cables", "benchmarks/cables.py"),
        ),
        {
            CHECKS: {"cables": ("topo.extras.cables.check:CHECKS", "of the cables between hosts")},
            FILES: {
                "nccl-env": (
                    "synth.extras.cables.formats:NCCL_ENV",
                    "for hosts that cables join, NCCL's settings, with Open MPI's hosts in ring "
                    "order beside them in FILE.hosts for -o FILE",
                ),
                "mlx-hostfile": (
                    "synth.extras.cables.formats:MLX_HOSTFILE",
                    "for such hosts, mlx.launch's",
                ),
            },
            EXPLANATIONS: {
                "cables": (
                    "synth.extras.cables.next_cable:explain_cables",
                    "between hosts that cables join: which one more cable helps most",
                )
            },
            NETWORKS: {
                "cables": (
                    "runtime.extras.cables.joining:CABLES",
                    "has groups use the cables between hosts that no network joins",
                )
            },
            SOURCES: {
                "fabric": (
                    "cli.extras.cables:find_fabric",
                    "under torchrun or mpirun: find how the hosts are joined, by cables or "
                    "switches, with hand-shakes over all of their ports, and measure the rates",
                )
            },
            EXAMPLES: {
                "topo-synth allreduce spark-ring:4 --format nccl-env -o nccl.env": (
                    "topo-synth",
                    "NCCL's settings and order of hosts where cables join them",
                ),
                "topo-emulate ring:4 --cables -- topo-probe --fabric -o ring.json": (
                    "topo-emulate",
                    "four hosts wired in a ring: a subnet for each cable, and nothing forwards",
                ),
                "topo-emulate ring:4 --cables --mpi -- topo-probe --fabric --check": (
                    "topo-emulate",
                    "the same hosts, on which mpirun starts the ranks",
                ),
                "torchrun --nproc-per-node 1 -m topoplan.cli.probe --fabric --check": (
                    "topo-probe",
                    "find the cables between hosts (--nnodes, --rdzv-endpoint): who reaches whom "
                    "over which port, and what is wrong with the cabling",
                ),
            },
        },
        needs=("stock", "sockets", "doctor"),
    ),
    Extra(
        "summaries",
        (*("runtime/extras/summaries", "tests/extras/summaries", "tests/ranks/summaries.py"),),
        {
            USAGE_LOGS: {
                "summaries": (
                    "runtime.extras.summaries.usage_log:usage_log",
                    "counts calls, and says what plans save",
                )
            },
            NAMES: {
                "GroupSummary": ("runtime.extras.summaries.summary:GroupSummary", "a group's part"),
                "SizeSummary": ("runtime.extras.summaries.summary:SizeSummary", "that of a size"),
                "Summary": ("runtime.extras.summaries.summary:Summary", "what calls ran by"),
                "summary": ("runtime.extras.summaries.usage_log:summary", "that of this process"),
            },
        },
    ),
    Extra(
        "cache",
        ("runtime/extras/cache", "tests/extras/cache", "tests/ranks/containers.py"),
        {
            CACHES: {
                "folder": (
                    "runtime.extras.cache.in_folder:CACHE",
                    "keeps plans and races in a folder for later starts",
                )
            }
        },
    ),
    Extra(
        "emulate",
        (
            "runtime/extras/emulate",
            "cli/extras/emulate.py",
            "tests/extras/emulate",
            "tests/extras/place/test_torchrun.py",
            "tests/emulated.py",
            "tests/emulated_mpi_rank.py",
        ),
        {
            COMMANDS: {
                "emulate": (
                    "cli.extras.emulate",
                    "run a command once per rank, on a machine emulated with network namespaces",
                )
            }
        },
    ),
    Extra(
        "judge",
        (
            *("synth/extras/judge", "cli/extras/judge.py", "tests/extras/judge"),
            *("tests/judge_options.py", "benchmarks/published.py", "benchmarks/offers.py"),
        ),
        {
            COMMANDS: {
                "judge": (
                    "cli.extras.judge",
                    "compare logs and measurements of what runs today with the bound",
                )
            }
        },
        needs=(
            "stock",
            "nccl-files",
            "place",
            "gpudirect",
            "measured",
            "nccl-log",
            "pasted",
            "machine-details",
        ),
    ),
    Extra(
        "traffic",
        ("synth/extras/traffic.py",),
        {},
    ),
    Extra(
        "demands",
        (
            *("synth/extras/demands", "cli/extras/demands.py", "tests/extras/demands"),
            "benchmarks/reshard.py",
        ),
        {
            PLANNERS: {
                "demands": (
                    "synth.extras.demands.planning:synthesize_demands",
                    "plans for pieces of data that some ranks have and others need",
                )
            },
            BOUNDS: {"demands": ("synth.extras.demands.bounds", "the bounds of such plans")},
            REQUESTS: {
                "traffic": (
                    "cli.extras.demands:TRAFFIC",
                    "of alltoallv: a matrix of bytes, .csv or .npy, a row for each sender (with "
                    "--group: for each of its ranks); their sum is the default of --size",
                ),
                "demands": (
                    "cli.extras.demands:DEMANDS",
                    "in place of COLLECTIVE: a JSON file of pieces, ranks that have and ranks that "
                    "need each one (docs/files.md); likewise",
                ),
            },
            EXAMPLES: {
                "topo-synth alltoallv two-hosts.json --traffic bytes.csv": (
                    "topo-synth",
                    "an uneven alltoall: row i, column j is what rank i sends to rank j",
                ),
                "topo-synth dgx-a100:2 --demands weights.json": (
                    "topo-synth",
                    "pieces, the ranks that have each one, and those that need it",
                ),
            },
        },
        needs=("traffic",),
    ),
    Extra(
        "place",
        (
            *("synth/extras/place", "runtime/extras/device_mesh.py", "cli/extras/place.py"),
            *("tests/extras/place", "tests/ranks/place.py", "benchmarks/place.py"),
        ),
        {
            COMMANDS: {
                "place": (
                    "cli.extras.place",
                    "choose the GPU of each rank, with a bound on any order",
                )
            },
            EXPLANATIONS: {
                "rank_order": (
                    "synth.extras.place.explain:explain_order",
                    "whether the stock collective would be faster in another order of ranks",
                )
            },
            NAMES: {
                "Job": ("synth.extras.place.job:Job", "a job's dimensions and traffic"),
                "PlaceBound": ("synth.extras.place.proof.check:PlaceBound", "a bound on orders"),
                "Placement": ("synth.extras.place.placement:Placement", "an order of ranks"),
                "Step": ("synth.extras.place.placement:Step", "a phase of a placed job"),
                "Traffic": ("synth.extras.place.job:Traffic", "what a dimension sends"),
                "device_mesh": ("runtime.extras.device_mesh:device_mesh", "a placed DeviceMesh"),
                "place": ("synth.extras.place.placing:place", "chooses the GPU of each rank"),
            },
        },
        needs=("traffic",),
    ),
    Extra(
        "worth",
        ("synth/extras/worth", "cli/extras/worth.py", "tests/extras/worth"),
        {
            COMMANDS: {
                "worth": (
                    "cli.extras.worth",
                    "say what a plan gains over NCCL, and how to use it",
                )
            },
            REMARKS: {
                "worth": (
                    "synth.extras.worth.worth:remark",
                    "the plan beside stock NCCL or RCCL by a model, and what to use",
                )
            },
            EXAMPLES: {
                "topoplan worth matrix.txt": (
                    "topoplan",
                    "is a plan worth it on this machine, by a model of NCCL",
                )
            },
        },
        needs=("stock", "nccl-files"),
    ),
    Extra(
        "report",
        ("synth/extras/report", "cli/extras/report.py", "tests/extras/report"),
        {
            COMMANDS: {
                "report": ("cli.extras.report", "write an HTML page about a machine or a plan")
            },
            EXAMPLES: {
                "topoplan report dgx1 -o report.html": (
                    "topoplan",
                    "a page about a machine, to read and to share",
                )
            },
        },
        needs=("stock", "explain", "doctor", "pictures", "traces", "worth"),
    ),
    Extra(
        "reshard",
        (
            *("runtime/extras/reshard", "tests/extras/reshard", "tests/ranks/resharding.py"),
            *("tests/drawn_layouts.py", "benchmarks/reshard_run.py", "examples/move_weights.py"),
        ),
        {
            NAMES: {
                "Reshard": ("runtime.extras.reshard.transfer:Reshard", "a planned move of tensors"),
                "reshard": ("runtime.extras.reshard.transfer:reshard", "plans the move of one"),
                "reshard_state_dict": (
                    "runtime.extras.reshard.state_dict:reshard_state_dict",
                    "moves a state dict of DTensors",
                ),
            }
        },
        needs=("demands",),
    ),
    Extra(
        "joint",
        (
            *("synth/extras/joint", "runtime/extras/joint", "cli/extras/joint"),
            *("tests/extras/joint", "tests/ranks/meshes.py", "docs/schemas/joint-plan.schema.json"),
            *("benchmarks/joint.py", "benchmarks/joint_run.py"),
        ),
        {
            NAMES: {
                "GroupPlan": ("synth.extras.joint.plan:GroupPlan", "a group's part of one"),
                "JointBound": ("synth.extras.joint.bound:JointBound", "a bound of several calls"),
                "JointCall": ("synth.extras.joint.joint_calls:JointCall", "a group's call"),
                "JointPlan": ("synth.extras.joint.plan:JointPlan", "plans of several groups"),
                "mesh_groups": ("runtime.extras.joint.mesh:mesh_groups", "a DeviceMesh's groups"),
                "synthesize_joint": (
                    "synth.extras.joint.synthesize:synthesize_joint",
                    "plans for several groups at once",
                ),
            },
            EXAMPLES: {
                "topo-synth allreduce dgx1 --groups 'tp=0,1|2,3 dp:allreduce:4M=0,2|1,3'": (
                    "topo-synth",
                    "a plan for groups that run at once",
                ),
                "topo-synth allreduce full:4 --size 9K --groups 'a=0,1|2,3 b=0,2|1,3' -o j.json": (
                    "topo-run",
                    "a plan for calls of several groups at once",
                ),
                "topo-run j.json": (
                    "topo-run",
                    "run them together, on 4 ranks: timed until the calls of all have ended",
                ),
            },
            MODES: {
                "groups": (
                    "cli.extras.joint.synth:run",
                    "plan for several groups at once, which share the links: kinds of groups such "
                    "as 'tp:allreduce:64M=0,1|2,3 dp=0,2|1,3' (after the kind's name: collective, "
                    "bytes and weight, else COLLECTIVE, --size and 1), or a file of them",
                )
            },
            PLANS: {_JOINT: ("runtime.extras.joint.plan_set:JOINT_PLANS", "of several groups")},
            PROCESS_GROUPS: {
                "joint": (
                    "runtime.extras.joint.group:JointGroup",
                    "the plans of a joint plan race together",
                )
            },
            RUNS: {_JOINT: ("cli.extras.joint.run:load", "all groups' calls at once")},
            SCHEMAS: {
                "joint-plan": (
                    "synth.extras.joint.plan:JointPlanFile",
                    "a joint plan: topo-synth --groups -o",
                )
            },
        },
    ),
    Extra(
        "list-extras",
        ("cli/extras/list_extras.py", "tests/extras/list_extras"),
        {
            SUBCOMMANDS: {
                "extras": ("cli.extras.list_extras", "list the extras, and what other packages add")
            },
            EXAMPLES: {
                "topoplan extras": (
                    "topoplan",
                    "what there is beside the core, and what each extra adds",
                )
            },
        },
    ),
    Extra(
        "completion",
        ("cli/extras/completion.py", "tests/extras/completion"),
        {
            SUBCOMMANDS: {
                "completion": (
                    "cli.extras.completion",
                    "print the script that lets a shell complete these commands",
                )
            },
            EXAMPLES: {
                'eval "$(topoplan completion bash)"': (
                    "topoplan",
                    "let the shell complete these commands",
                )
            },
        },
    ),
)
BY_NAME = {extra.name: extra for extra in EXTRAS}


class Names:
    """The names in a group: those of the extras that are here, then those of other packages.

    Iterating over it lists them. Other packages are looked at where the extras do not have a name.
    """

    def __init__(self, group: str) -> None:
        self.group = group

    def __contains__(self, name: object) -> bool:
        return name in self.describe() or any(point.name == name for point in self._list_points())

    def __iter__(self) -> Iterator[str]:
        yield from self.describe()
        yield from self.list_others()

    def describe(self) -> dict[str, str]:
        """Return the line about each name that an extra here has."""
        return {name: about for name, (_, about) in self._list_added()}

    def list_all(self) -> list[str]:
        """Return the names that extras have, also those of extras that are not here."""
        return [name for extra in EXTRAS for name in extra.adds.get(self.group, ())]

    def list_others(self) -> list[str]:
        """Return the names that other packages have, without those that an extra here has too."""
        return sorted({point.name for point in self._list_points()} - {*self.describe()})

    def list_modules(self) -> dict[str, str]:
        """Return the module, in this package, of each name that an extra here has."""
        return {name: where.partition(":")[0] for name, (where, _) in self._list_added()}

    def find(self, name: str) -> Any:
        """Import the entry that has a name, and return it.

        Raise InputError if nothing that is installed has it, TopoplanError if the package that has
        it cannot be loaded, or has something else.
        """
        from .topo.errors import InputError

        for extra in EXTRAS:
            if name not in extra.adds.get(self.group, ()):
                continue
            if not extra.is_here:
                raise InputError(f"{name}: {self.explain_missing(name)}")
            module, _, attribute = extra.adds[self.group][name][0].partition(":")
            loaded = import_module(f".{module}", __package__)
            return getattr(loaded, attribute) if attribute else loaded
        for point in self._list_points():
            if point.name == name:
                return _load(point, OPEN.get(self.group, ()))
        raise InputError(f"{name}: {self.explain_missing(name)}")

    def find_only(self, default: Any) -> Any:
        """Return the entry of the first name that an extra here adds; the default without one.

        It is for groups to which one extra adds one name.
        """
        return next((self.find(name) for name in self.describe()), default)

    def explain_missing(self, name: str) -> str:
        """Return why nothing has a name: its extra is not here, or other names are expected."""
        for extra in EXTRAS:
            if name in extra.adds.get(self.group, ()):
                return (
                    f"the extra {extra.name!r} is not in this copy of topoplan; install a copy "
                    "that has it"
                )
        known = ", ".join(self)
        return f"expected one of {known}" if known else "nothing that is installed has such names"

    def _list_added(self) -> Iterator[tuple[str, tuple[str, str]]]:
        for extra in EXTRAS:
            if extra.is_here:
                yield from extra.adds.get(self.group, {}).items()

    def _list_points(self) -> list[EntryPoint]:
        from importlib.metadata import entry_points  # looks at all packages, which takes time

        return list(entry_points(group=f"topoplan.{self.group}"))


def _load(point: EntryPoint, expected: tuple[str, ...]) -> Any:
    """Return what another package adds, which has the attributes that are `expected`."""
    from .topo.errors import TopoplanError

    what = f"{point.name}: the entry point {point.value}"
    try:
        loaded = point.load()
    except Exception as error:  # whatever the module of another package raises
        raise TopoplanError(
            f"{what} cannot be loaded: {type(error).__name__}: {error}; mend or remove the package "
            "that has it"
        ) from error
    missing = [attribute for attribute in expected if not hasattr(loaded, attribute)]
    if missing:
        raise TopoplanError(
            f"{what} has no {missing[0]}; expected what docs/extending.md says of {point.group}"
        )
    return loaded


def list_points() -> list[EntryPoint]:
    """Return the entry points of installed packages in all groups of topoplan, group by group."""
    from importlib.metadata import entry_points

    groups = sorted(group for group in entry_points().groups if group.startswith("topoplan."))
    return [point for group in groups for point in entry_points(group=group)]
