"""Archives of captured machines: the same machine as the folder, and bounded work for the worst."""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
from pathlib import Path

import pytest
from fake_nvml import captured, two_socket_pcie

from topoplan.topo.errors import InputError
from topoplan.topo.extras import archives
from topoplan.topo.loader.resolve import resolve


def archive(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_an_archive_that_unfolds_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_BYTES", 2**20)
    monkeypatch.setattr(archives, "MAX_MEMBERS", 100)
    bomb = tmp_path / "bomb.tar.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as out:
        out.write(bytes(3 * 2**20))
    with pytest.raises(InputError, match="more than 100 files or 1 MiB"):
        resolve(str(bomb))
    with pytest.raises(InputError, match="more than 100 files or 1 MiB"):
        resolve(str(archive(tmp_path / "big.tar.gz", {"sys/large": bytes(archives.MAX_BYTES + 1)})))


def folders(path: Path, names: list[str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE
            tar.addfile(member)
    return path


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a/" * depth + "sys" for depth in (1, 700, 1450)], "nested deeper than 64"),
        ([f"{i}/" + "a/" * 60 for i in range(900)], "more than 50000 files"),
    ],
)
def test_an_archive_of_folders_without_end_leaves_nothing_behind(
    names: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(InputError, match=says) as error:
        resolve(str(folders(tmp_path / "deep.tar.gz", names)))
    assert len(str(error.value)) < 300 and not list(temporary.iterdir())


def test_members_are_counted_without_the_headers_that_only_extend_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 100)
    names = [f"sys/{'long' * 30}/{i}" for i in range(101)]
    for mode in ("w", "w:gz"):
        most = archive(tmp_path / "most.tar", dict.fromkeys(names[:100], b"x" * 600), mode)
        assert not resolve(str(most)).ranks
        more = archive(tmp_path / "more.tar", dict.fromkeys(names, b"x" * 600), mode)
        with pytest.raises(InputError, match="more than 100 files"):
            resolve(str(more))


@pytest.mark.parametrize("cut", [10, 60])
def test_a_broken_archive_is_one_line(cut: int, tmp_path: Path) -> None:
    whole = archive(tmp_path / "whole.tar.gz", {"sys/bus/x": b"1" * 1000}).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[:cut])
    with pytest.raises(InputError, match=r"malformed archive|no captured machine"):
        resolve(str(tmp_path / "cut.tar.gz"))


def test_a_folder_and_an_archive_of_it_are_the_same_machine(tmp_path: Path) -> None:
    root = captured(two_socket_pcie(), tmp_path)
    with tarfile.open(tmp_path / "box.tar.xz", "w:xz") as archive:
        archive.add(root, "box")
    told, packed = resolve(str(root)), resolve(str(tmp_path / "box.tar.xz"))
    assert len(told.ranks) == 4 and told.fingerprint == packed.fingerprint
    assert told.devices == packed.devices


def test_an_archive_that_leads_out_of_its_folder_writes_nothing_there(tmp_path: Path) -> None:
    root = captured(two_socket_pcie(), tmp_path)
    (tmp_path / "outside").write_text("as it was")
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        archive.add(root, "box")
        link = tarfile.TarInfo("box/sys/way-out")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(link)
        for name in ("box/sys/way-out/outside", "../outside", str(tmp_path / "outside")):
            archive.add(root / "proc/cpuinfo", name)
    assert len(resolve(str(tmp_path / "evil.tar")).ranks) == 4
    assert (tmp_path / "outside").read_text() == "as it was"


@pytest.mark.parametrize(
    "content",
    [
        b"BZh9garbage",
        b"\x1f\x8b\x08junk",
        b"\xfd7zXZ\x00junk",
        b"\0" * 257 + b"ustar" + b"\xff" * 300,
    ],
)
def test_a_bad_archive_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "machine.tar"
    path.write_bytes(content)
    with pytest.raises(InputError, match="pack the captured folder again") as caught:
        resolve(str(path))
    assert "\n" not in str(caught.value)
