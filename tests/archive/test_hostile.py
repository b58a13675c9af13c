"""Archives from strangers: whatever is wrong is said, and nothing of it reaches the store."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semfocus.archive.manifest import PackedFile
from semfocus.archive.pack import pack
from semfocus.archive.unpack import unpack
from semfocus.errors import CorruptData, OtherFormat, SemfocusError, UsageError
from semfocus.store import RunStore
from tests.store.helpers import reseal
from tests.training.helpers import tiny, trained

Members = list[tuple[tarfile.TarInfo, bytes]]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    trained([tiny(3)], tmp_path / "runs")
    return pack(RunStore(tmp_path / "runs"), tmp_path / "runs.tar.xz").paths[0]


def refused(path: Path, match: str, error: type[SemfocusError] = CorruptData, **options: Any) -> None:
    """Assert that an archive is refused and that the store stays empty."""
    store = RunStore(path.parent / "home")
    with pytest.raises(error, match=match):
        unpack([path], store, **options)
    assert store.entries() == []
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["home", "runs", "runs.tar.xz"]


def rewritten(path: Path, change: Callable[[Members], Members]) -> None:
    with tarfile.open(path) as tar:
        members = [(info, b"".join(tar.extractfile(info) or ())) for info in tar]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for info, data in change(members):
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    end = len(buffer.getvalue().rstrip(b"\0"))
    path.write_bytes(lzma.compress(buffer.getvalue()[: end + -end % 512] + bytes(1024)))


def with_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    def changed(members: Members) -> Members:
        document = json.loads(members[0][1])
        change(document)
        return [(members[0][0], json.dumps(document).encode()), *members[1:]]

    rewritten(path, changed)


def test_an_archive_that_was_written_again_unchanged_is_still_accepted(archive: Path) -> None:
    rewritten(archive, lambda members: members)
    assert len(unpack([archive], RunStore(archive.parent / "home")).ids("added")) == 1


@pytest.mark.parametrize("share", [0.2, 0.7, 0.99])
def test_a_cut_archive_is_refused(archive: Path, share: float) -> None:
    data = archive.read_bytes()
    archive.write_bytes(data[: int(share * len(data))])
    refused(archive, "cut off|intact|no member")


def test_every_flipped_byte_is_noticed(archive: Path) -> None:
    data = archive.read_bytes()
    for place in range(0, len(data), 61):
        archive.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        refused(archive, r"runs\.tar\.xz|run [0-9a-f]{16}")


def test_other_content_than_the_manifest_says_is_refused(archive: Path) -> None:
    rewritten(archive, lambda m: [*m[:2], (m[2][0], m[2][1].replace(b"0", b"1")), *m[3:]])
    refused(archive, "SHA-256")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(archive: Path, kind: bytes) -> None:
    def linked(members: Members) -> Members:
        members[2][0].type, members[2][0].linkname = kind, "/etc/passwd"
        return [*members[:2], (members[2][0], b""), *members[3:]]

    rewritten(archive, linked)
    refused(archive, "in the place of the plain file")


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/evil", "checkpoints/../../evil", "lock", "notes.txt", "config.json/"]
)
def test_a_path_that_no_run_has_is_refused(archive: Path, name: str) -> None:
    def evil(document: dict[str, Any]) -> None:
        (run,) = document["runs"].values()
        run["files"][name] = [0, "0" * 64]

    with_manifest(archive, evil)
    refused(archive, "which no run directory has")


@pytest.mark.parametrize("run_id", ["../evil", "/evil", "x" * 16, ""])
def test_a_name_that_is_no_run_id_is_refused(archive: Path, run_id: str) -> None:
    with_manifest(archive, lambda document: document["runs"].update({run_id: {}}))
    refused(archive, "not a run id")


def test_more_than_the_limit_is_refused_before_it_is_unpacked(archive: Path) -> None:
    refused(archive, "more than the limit of 100", max_bytes=100)


def test_a_bomb_is_refused(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes() + lzma.compress(bytes(10 * 2**20)))
    refused(archive, "more than its manifest lists")


def test_a_decoder_that_asks_for_too_much_memory_is_refused(archive: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**28}]
    archive.write_bytes(lzma.compress(bytes(512), filters=filters))
    refused(archive, "[Mm]emory")


def test_another_format_is_named(archive: Path) -> None:
    with_manifest(archive, lambda document: document.update(format=99))
    refused(archive, "format 99", OtherFormat)


def test_a_config_that_is_not_what_the_run_is_named_after_is_refused(archive: Path, tmp_path: Path) -> None:
    (run,) = [entry.path for entry in RunStore(tmp_path / "runs").entries()]
    reseal(run / "config.json", lambda document: document["config"]["training"].update(lr=0.2))
    with pytest.raises(UsageError, match=r"not what run .* was named after"):
        pack(RunStore(tmp_path / "runs"), archive)
    config = (run / "config.json").read_bytes()
    rewritten(archive, lambda members: [_listing(members[0], config), (members[1][0], config), *members[2:]])
    refused(archive, "not what run .* was named after")


def _listing(manifest: tuple[tarfile.TarInfo, bytes], config: bytes) -> tuple[tarfile.TarInfo, bytes]:
    """The manifest with this config.json in the only run's list of files."""
    document = json.loads(manifest[1])
    (run,) = document["runs"].values()
    packed = PackedFile.of(config)
    run["files"]["config.json"] = [packed.bytes, packed.sha256]
    return manifest[0], json.dumps(document).encode()


def test_what_is_no_archive_is_refused(archive: Path) -> None:
    archive.write_bytes(b"hello")
    refused(archive, "cut off|intact")
    with pytest.raises(UsageError, match="not there"):
        unpack([archive.parent / "absent.tar.xz"], RunStore(archive.parent / "home"))
