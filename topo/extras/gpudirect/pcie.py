"""Judge obstacles between two devices on PCI Express: ACS, an IOMMU, a hypervisor.

ACS redirect on a port below the switch that two devices share sends their traffic up to the root
complex, which is slow, and may hang under an IOMMU that translates (NCCL user guide,
troubleshooting). NVIDIA's driver does not support peer to peer on bare metal under an IOMMU that
translates (CUDA programming guide, IOMMU on Linux), and GPUDirect RDMA needs addresses that are the
same for all devices (GPUDirect RDMA guide, supported systems). In a guest, all of this is up to the
host and cannot be seen.

An Answer is that of one rule: yes, no or unknown, with its reason, evidence and advice. PairView
has the machine and its facts.
"""

from collections.abc import Iterator

from ...facts import keys
from ...facts.keys import HOST, pci_subject
from .verdict import Answer
from .view import PairView

AS_ROOT = "run topo-probe as root: bridges tell their ACS settings to root only"
HERE = "run topo-probe on the machine itself, as root"


def judge_pcie(view: PairView, a: str, b: str, path: str, from_file: bool) -> Iterator[Answer]:
    """Yield the answers of ACS, hypervisor and IOMMU for two devices (ids).

    `path` is their kind of path, by the names in nccl_paths.py; ACS is judged for PIX and PXB only,
    which pass PCIe switches and no CPU. With `from_file`, a file of NCCL says that both devices
    can, and facts that were never queried are ignored instead of giving an unknown.
    """
    if path in ("PIX", "PXB"):
        yield from _judge_acs(view, a, b, from_file)
    virtual = view.facts.get_text(HOST, keys.HOST_VIRTUAL)
    yield from _judge_hypervisor(view, virtual, from_file)
    yield from _judge_iommu(view, virtual, from_file)


def _judge_acs(view: PairView, a: str, b: str, from_file: bool) -> Iterator[Answer]:
    ports = view.list_ports_between(a, b)
    if ports is None:
        if not from_file:
            yield Answer(
                "unknown",
                "ACS of the bridges between them is not known",
                ("ACS: no bridges are listed",),
                HERE,
            )
        return
    hidden = [port for port in ports if not view.get_acs(port)]
    on = [view.get_acs(port) for port in ports if "redirect" in view.get_acs(port)]
    if any("direct translated" not in text for text in on):
        yield Answer(
            "no",
            "ACS sends the traffic up to the root complex: slow, and it may hang where an IOMMU "
            "translates",
            ("ACS redirect is on at bridges between them",),
            "switch IO virtualization (VT-d, AMD-Vi) or ACS off in the BIOS, or, as root and after "
            f"each boot: for b in {' '.join(view.redirecting)}; do setpci -s $b "
            "ECAP_ACS+0x6.w=0000; done",
        )
    elif on:
        yield Answer(
            "unknown",
            "ACS lets only translated requests (ATS) go directly; the rest is sent up to the root "
            "complex",
            ("ACS redirect and direct translated are on between them",),
            "measure it",
        )
    elif hidden and not (from_file and keys.PCI_ACS not in view.asked_keys):
        reasons = sorted({view.explain_missing(pci_subject(port), keys.PCI_ACS) for port in hidden})
        yield Answer(
            "unknown",
            "ACS of the bridges between them is not known",
            (f"ACS: {reasons[0]}",),
            AS_ROOT if "root" in reasons[0] else HERE,
        )
    elif not hidden:
        yield Answer("yes", "", ("ACS redirect is off between them",))


def _judge_hypervisor(view: PairView, virtual: str | None, from_file: bool) -> Iterator[Answer]:
    if virtual == "no":
        yield Answer("yes", "", ("no hypervisor",))
    elif virtual is not None:
        yield Answer(
            "unknown",
            "in a guest, ACS and address translation are the hypervisor's and cannot be seen",
            (f"hypervisor: {virtual}",),
            "measure it; if it is slow, ask for ATS on the devices and ACS direct translated on "
            "the host's bridges",
        )
    elif not from_file or (HOST, keys.HOST_VIRTUAL) in view.asked:
        yield Answer(
            "unknown",
            "whether this is a guest is not known",
            (f"hypervisor: {view.explain_missing(HOST, keys.HOST_VIRTUAL)}",),
            HERE,
        )


def _judge_iommu(view: PairView, virtual: str | None, from_file: bool) -> Iterator[Answer]:
    iommu = view.facts.get_text(HOST, keys.HOST_IOMMU)
    if iommu == "translating":
        yield Answer(
            "no" if virtual == "no" else "unknown",
            "the IOMMU translates addresses, and the driver does no direct access through that on "
            "bare metal",
            ("IOMMU: translating",),
            "boot with iommu=pt, or switch the IOMMU (VT-d, AMD-Vi) off in the BIOS",
        )
    elif iommu is not None:
        yield Answer("yes", "", (f"IOMMU: {iommu}",))
    elif not from_file or (HOST, keys.HOST_IOMMU) in view.asked:
        yield Answer(
            "unknown",
            "whether an IOMMU translates is not known",
            (f"IOMMU: {view.explain_missing(HOST, keys.HOST_IOMMU)}",),
            HERE,
        )
