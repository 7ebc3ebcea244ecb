"""A pod's volumes: what each holds and where a container sees it (pure), and writing them down."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from emberline_local.environment import ContainerConfigError, expand, field_value, object_content
from emberline_local.process_pod import Mount
from emberline_local.sources import Sources, TokenNeed


@dataclass(frozen=True)
class VolumeFile:
    """One file of a volume."""

    content: bytes = field(repr=False)
    mode: int


@dataclass(frozen=True)
class FilesVolume:
    """A volume that the node writes: ConfigMap, Secret, projected, downward API; files by relative path.

    An emptyDir is one without files; `medium: Memory` is a folder as well, since nothing is limited here.
    """

    files: Mapping[str, VolumeFile]
    is_read_only: bool = True


@dataclass(frozen=True)
class HostVolume:
    """A folder or file of the host: hostPath, or a claim bound to a local PersistentVolume."""

    path: str
    create: bool = False


Volume = FilesVolume | HostVolume


def plan_volumes(pod: Mapping[str, Any], sources: Sources) -> dict[str, Volume]:
    """The content of every volume of a pod. Raises ContainerConfigError with what is missing."""
    return {volume["name"]: _plan_volume(pod, volume, sources) for volume in pod["spec"].get("volumes", ())}


def _plan_volume(pod: Mapping[str, Any], volume: Mapping[str, Any], sources: Sources) -> Volume:
    name = volume["name"]
    if "emptyDir" in volume:
        return FilesVolume({}, is_read_only=False)
    if "hostPath" in volume:
        return HostVolume(volume["hostPath"]["path"], volume["hostPath"].get("type", "") == "DirectoryOrCreate")
    if "persistentVolumeClaim" in volume:
        return _plan_claim(volume["persistentVolumeClaim"]["claimName"], sources)
    if "projected" in volume:
        projected = volume["projected"]
        mode = projected.get("defaultMode", 0o644)
        files: dict[str, VolumeFile] = {}
        for part in projected.get("sources", ()):
            files.update(_files(pod, part, sources, mode, name))
        return FilesVolume(files)
    for kind in ("configMap", "secret", "downwardAPI"):
        if kind in volume:
            return FilesVolume(_files(pod, volume, sources, volume[kind].get("defaultMode", 0o644), name))
    kinds = ", ".join(sorted(set(volume) - {"name"}))
    raise ContainerConfigError(
        f"volume {name!r}: a process node has no {kinds}; it knows configMap, secret, emptyDir, hostPath,"
        " persistentVolumeClaim (local), projected and downwardAPI"
    )


def _plan_claim(claim: str, sources: Sources) -> HostVolume:
    volume = sources.volumes.get(claim)
    if volume is None:
        raise ContainerConfigError(f"PersistentVolumeClaim {claim!r} is not there or not bound to a volume")
    for kind in ("local", "hostPath"):
        if kind in volume["spec"]:
            return HostVolume(volume["spec"][kind]["path"])
    raise ContainerConfigError(
        f"PersistentVolume {volume['metadata']['name']!r} of claim {claim!r} is neither local nor hostPath;"
        " a process node mounts no other kind"
    )


def _files(
    pod: Mapping[str, Any], part: Mapping[str, Any], sources: Sources, mode: int, volume: str
) -> dict[str, VolumeFile]:
    if "serviceAccountToken" in part:
        asked = part["serviceAccountToken"]
        need = TokenNeed(volume, asked["path"], asked.get("audience"), asked.get("expirationSeconds", 3600))
        # Readable by the owner alone, as a kubelet writes it for a pod without fsGroup.
        return {asked["path"]: VolumeFile(sources.tokens[need].text.encode(), 0o600)}
    if "downwardAPI" in part:
        return {
            item["path"]: VolumeFile(field_value(pod, item["fieldRef"]["fieldPath"]).encode(), item.get("mode", mode))
            for item in part["downwardAPI"].get("items", ())
        }
    for kind, found in (("configMap", sources.config_maps), ("secret", sources.secrets)):
        if kind in part:
            reference = part[kind]
            name = reference.get("name") or reference.get("secretName")
            return _keys(kind, name, reference, found.get(name), mode)
    raise ContainerConfigError(f"volume {volume!r}: a process node has no projected source {sorted(part)}")


def _keys(
    kind: str, name: str, reference: Mapping[str, Any], found: Mapping[str, Any] | None, mode: int
) -> dict[str, VolumeFile]:
    optional = reference.get("optional", False)
    if found is None:
        if optional:
            return {}
        raise ContainerConfigError(f"{kind} {name!r} of a volume not found; create it in the pod's namespace")
    content = object_content(found)
    if "items" not in reference:
        return {key: VolumeFile(value, mode) for key, value in content.items()}
    files: dict[str, VolumeFile] = {}
    for item in reference["items"]:
        if item["key"] in content:
            files[item["path"]] = VolumeFile(content[item["key"]], item.get("mode", mode))
        elif not optional:
            raise ContainerConfigError(
                f"{kind} {name!r} of a volume has no key {item['key']!r}; it has {sorted(content)}"
            )
    return files


def plan_mounts(
    container: Mapping[str, Any],
    volumes: Mapping[str, Volume],
    volumes_dir: Path,
    environment: Mapping[str, str],
    host_paths: tuple[str, ...] = (),
) -> list[Mount]:
    """What a container sees where, parents before children.

    `host_paths` that a volume would hide are bound over it again, read-only (see `LocalImage.host_paths`).
    """
    mounts: list[Mount] = []
    for wanted in container.get("volumeMounts", ()):
        volume = volumes.get(wanted["name"])
        if volume is None:
            raise ContainerConfigError(f"volumeMount {wanted['name']!r} names no volume of the pod")
        source = PurePosixPath(volume.path if isinstance(volume, HostVolume) else volumes_dir / wanted["name"])
        sub_path = wanted.get("subPath") or expand(wanted.get("subPathExpr", ""), environment)
        if ".." in PurePosixPath(sub_path).parts:
            raise ContainerConfigError(f"volumeMount {wanted['name']!r}: subPath {sub_path!r} must not contain '..'")
        read_only = wanted.get("readOnly", False) or (isinstance(volume, FilesVolume) and volume.is_read_only)
        mounts.append(Mount(str(source / sub_path), wanted["mountPath"], read_only))
    mounts.sort(key=lambda mount: PurePosixPath(mount.target).parts)
    hidden = {
        PurePosixPath(path)
        for path in host_paths
        if any(PurePosixPath(path).is_relative_to(mount.target) for mount in mounts)
    }
    # A folder within another one comes with it; bound on its own before it, it would be covered by it again.
    outermost = sorted(path for path in hidden if hidden.isdisjoint(path.parents))
    return [*mounts, *(Mount(str(path), str(path), read_only=True) for path in outermost)]


def write_volumes(volumes: Mapping[str, Volume], volumes_dir: Path) -> None:
    """Write what the node has to write and check what the host has to have. May be repeated to bring files up to date.

    Raises ContainerConfigError for a host path that is not there.
    """
    for name, volume in volumes.items():
        match volume:
            case FilesVolume():
                _write_files(volumes_dir / name, volume)
            case HostVolume():
                if volume.create:
                    Path(volume.path).mkdir(parents=True, exist_ok=True)
                if not Path(volume.path).exists():
                    raise ContainerConfigError(f"volume {name!r}: {volume.path} does not exist on this machine")


def check_mounts(mounts: list[Mount]) -> None:
    """Make a missing subPath of a writable volume; refuse one of a read-only volume, where nothing would ever be."""
    for mount in mounts:
        source = Path(mount.source)
        if source.exists():
            continue
        if mount.read_only:
            raise ContainerConfigError(
                f"{source.name!r} (for {mount.target}) does not exist in its read-only volume,"
                f" where there is {_entries(source.parent)}"
            )
        source.mkdir(parents=True)


def _entries(folder: Path) -> str:
    """What can be named instead; no more than fits a message."""
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []
    return ", ".join(repr(name) for name in names[:10]) + (", ..." if len(names) > 10 else "") or "nothing"


def _write_files(folder: Path, volume: FilesVolume) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for relative, file in volume.files.items():
        path = folder / relative
        if path.is_file() and path.read_bytes() == file.content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        # By a rename, so that a reader sees the old content or the new, never a part.
        fresh = path.with_name(f".{path.name}.new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode), "wb") as out:
            out.write(file.content)
        fresh.rename(path)
    if volume.is_read_only:
        wanted = {folder / relative for relative in volume.files}
        for path in [path for path in folder.rglob("*") if path.is_file() and path not in wanted]:
            path.unlink()


def remove_volumes(volumes_dir: Path) -> None:
    """Remove what was written; host paths are left alone."""
    shutil.rmtree(volumes_dir, ignore_errors=True)
