from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from emberline_local.environment import ContainerConfigError
from emberline_local.process_pod import Mount
from emberline_local.sources import Sources, Token, TokenNeed, needed_sources
from emberline_local.volumes import (
    FilesVolume,
    HostVolume,
    VolumeFile,
    check_mounts,
    plan_mounts,
    plan_volumes,
    write_volumes,
)

TOKEN = {"serviceAccountToken": {"path": "token", "audience": "admin", "expirationSeconds": 600}}
NEED = TokenNeed("access", "token", "admin", 600)


def pod(*volumes: dict[str, Any], **container: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "n", "labels": {"a": "b"}},
        "spec": {"volumes": list(volumes), "containers": [{"name": "main", **container}]},
    }


def sources() -> Sources:
    local = {"metadata": {"name": "pv"}, "spec": {"local": {"path": "/cache/models"}}}
    remote = {"metadata": {"name": "nfs"}, "spec": {"nfs": {"server": "x"}}}
    return Sources(
        config_maps={"settings": {"kind": "ConfigMap", "data": {"a": "1", "b": "2"}, "binaryData": {"c": "Aw=="}}},
        secrets={"keys": {"kind": "Secret", "data": {"key": base64.b64encode(b"hidden").decode()}}},
        volumes={"models": local, "remote": remote},
        tokens={NEED: Token("a-token", 0, 600)},
    )


@pytest.mark.parametrize(
    ("volume", "planned"),
    [
        (
            {"configMap": {"name": "settings"}},
            FilesVolume({"a": VolumeFile(b"1", 0o644), "b": VolumeFile(b"2", 0o644), "c": VolumeFile(b"\3", 0o644)}),
        ),
        (
            {"configMap": {"name": "settings", "defaultMode": 0o400, "items": [{"key": "a", "path": "x/y"}]}},
            FilesVolume({"x/y": VolumeFile(b"1", 0o400)}),
        ),
        ({"configMap": {"name": "absent", "optional": True}}, FilesVolume({})),
        (
            {"secret": {"secretName": "keys", "items": [{"key": "key", "path": "k", "mode": 0o600}]}},
            FilesVolume({"k": VolumeFile(b"hidden", 0o600)}),
        ),
        ({"emptyDir": {"medium": "Memory"}}, FilesVolume({}, is_read_only=False)),
        ({"hostPath": {"path": "/data", "type": "DirectoryOrCreate"}}, HostVolume("/data", create=True)),
        ({"persistentVolumeClaim": {"claimName": "models"}}, HostVolume("/cache/models")),
        (
            {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            FilesVolume({"labels": VolumeFile(b'a="b"', 0o644)}),
        ),
        (
            {"projected": {"defaultMode": 0o440, "sources": [TOKEN, {"configMap": {"name": "settings", "items": []}}]}},
            FilesVolume({"token": VolumeFile(b"a-token", 0o600)}),
        ),
    ],
)
def test_what_a_volume_holds(volume: dict[str, Any], planned: FilesVolume | HostVolume) -> None:
    assert plan_volumes(pod({"name": "access", **volume}), sources()) == {"access": planned}


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "absent"}}, "configMap 'absent' of a volume not found"),
        ({"configMap": {"name": "settings", "items": [{"key": "z", "path": "z"}]}}, "has no key 'z'; it has"),
        ({"persistentVolumeClaim": {"claimName": "absent"}}, "'absent' is not there or not bound"),
        ({"persistentVolumeClaim": {"claimName": "remote"}}, "neither local nor hostPath"),
        ({"nfs": {"server": "x"}}, "a process node has no nfs"),
    ],
)
def test_what_is_missing_is_named(volume: dict[str, Any], message: str) -> None:
    with pytest.raises(ContainerConfigError, match=message):
        plan_volumes(pod({"name": "v", **volume}), sources())


def test_needed_sources_are_all_found() -> None:
    needed = needed_sources(
        pod(
            {"name": "a", "configMap": {"name": "m1"}},
            {"name": "access", "projected": {"sources": [TOKEN, {"secret": {"name": "s1"}}]}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "c1"}},
            {"name": "d", "secret": {"secretName": "s2"}},
            envFrom=[{"configMapRef": {"name": "m2"}}],
            env=[{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "k"}}}],
        )
    )
    assert needed.config_maps == {"m1", "m2"}
    assert needed.secrets == {"s1", "s2", "s3"}
    assert needed.claims == {"c1"}
    assert needed.tokens == {NEED}


def test_tokens_are_renewed_at_four_fifths_of_their_life() -> None:
    assert Sources(tokens={NEED: Token("t", 1000, 1600)}).renew_at_s == 1480
    assert Sources().renew_at_s is None
    assert "a-secret" not in repr(Token("a-secret", 0, 1))


VOLUMES: dict[str, FilesVolume | HostVolume] = {
    "settings": FilesVolume({"a": VolumeFile(b"1", 0o644)}),
    "tmp": FilesVolume({}, is_read_only=False),
    "models": HostVolume("/cache/models"),
}


@pytest.mark.parametrize(
    ("wanted", "mounts"),
    [
        ([("settings", "/etc/x", {})], [Mount("/v/settings", "/etc/x", read_only=True)]),
        ([("tmp", "/tmp", {})], [Mount("/v/tmp", "/tmp")]),
        (
            [("models", "/models", {"subPath": "smollm2", "readOnly": True})],
            [Mount("/cache/models/smollm2", "/models", read_only=True)],
        ),
        ([("models", "/m", {"subPathExpr": "$(WHO)/x"})], [Mount("/cache/models/me/x", "/m")]),
        ([("settings", "/etc/a", {"subPath": "a"})], [Mount("/v/settings/a", "/etc/a", read_only=True)]),
        # Parents first, in whatever order they are written.
        (
            [("settings", "/data/settings", {}), ("tmp", "/data", {})],
            [Mount("/v/tmp", "/data"), Mount("/v/settings", "/data/settings", read_only=True)],
        ),
    ],
)
def test_where_a_container_sees_volumes(wanted: list[tuple[str, str, dict[str, Any]]], mounts: list[Mount]) -> None:
    container = {"volumeMounts": [{"name": name, "mountPath": path, **more} for name, path, more in wanted]}
    assert plan_mounts(container, VOLUMES, Path("/v"), {"WHO": "me"}) == mounts


def test_programs_under_a_mounted_folder_stay_visible() -> None:
    container = {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}
    mounts = plan_mounts(container, VOLUMES, Path("/v"), {}, ("/tmp/clone/.venv", "/usr", "/tmpfoo"))
    assert mounts == [Mount("/v/tmp", "/tmp"), Mount("/tmp/clone/.venv", "/tmp/clone/.venv", read_only=True)]


def test_a_host_folder_within_another_one_comes_with_it() -> None:
    container = {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}
    mounts = plan_mounts(container, VOLUMES, Path("/v"), {}, ("/tmp/clone/.venv", "/tmp/python", "/tmp/clone"))
    assert mounts[1:] == [
        Mount("/tmp/clone", "/tmp/clone", read_only=True),
        Mount("/tmp/python", "/tmp/python", read_only=True),
    ]


@pytest.mark.parametrize("path", ["../x", "a/../../x"])
def test_sub_path_cannot_lead_out_of_its_volume(path: str) -> None:
    container = {"volumeMounts": [{"name": "tmp", "mountPath": "/x", "subPath": path}]}
    with pytest.raises(ContainerConfigError, match="must not contain"):
        plan_mounts(container, VOLUMES, Path("/v"), {})


def test_files_are_written_updated_and_removed(tmp_path: Path) -> None:
    first = {"v": FilesVolume({"a": VolumeFile(b"1", 0o600), "d/b": VolumeFile(b"2", 0o644)})}
    write_volumes(first, tmp_path)
    assert (tmp_path / "v/a").read_bytes() == b"1"
    assert (tmp_path / "v/a").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "v/a").stat().st_ino
    write_volumes({"v": FilesVolume({"a": VolumeFile(b"1", 0o600), "c": VolumeFile(b"3", 0o644)})}, tmp_path)
    assert (tmp_path / "v/a").stat().st_ino == before, "what is right is not written again"
    assert sorted(path.name for path in (tmp_path / "v").rglob("*") if path.is_file()) == ["a", "c"]


def test_what_a_pod_wrote_into_its_empty_dir_stays(tmp_path: Path) -> None:
    empty = {"tmp": FilesVolume({}, is_read_only=False)}
    write_volumes(empty, tmp_path)
    (tmp_path / "tmp/mine").touch()
    write_volumes(empty, tmp_path)
    assert (tmp_path / "tmp/mine").exists()


def test_host_paths_and_sub_paths_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ContainerConfigError, match="does not exist on this machine"):
        write_volumes({"v": HostVolume(str(tmp_path / "absent"))}, tmp_path)
    write_volumes({"v": HostVolume(str(tmp_path / "made"), create=True)}, tmp_path)
    assert (tmp_path / "made").is_dir()
    check_mounts([Mount(str(tmp_path / "made/sub"), "/x")])
    assert (tmp_path / "made/sub").is_dir()
    with pytest.raises(ContainerConfigError, match=r"'smollm3' .* in its read-only volume, where there is 'sub'$"):
        check_mounts([Mount(str(tmp_path / "made/smollm3"), "/models", read_only=True)])
