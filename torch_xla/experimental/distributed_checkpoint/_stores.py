"""Where checkpoints lie: a folder for each step, which is a checkpoint from one moment on.

In a local folder a checkpoint is written under another name, brought to the disk, and renamed. In
other file systems, which may have no such renaming, a file that marks it as complete is written
last.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import fcntl
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, StorageReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult

_log = logging.getLogger(__name__)

CONTENTS = ".metadata"  # PyTorch's, which says where each tensor lies
MARK = ".manager_metadata"


class Store(abc.ABC):
    """The checkpoints under one path."""

    @abc.abstractmethod
    def marks(self) -> dict[int, bytes]:
        """The note with each complete checkpoint, by its step."""

    @abc.abstractmethod
    def writer(
        self, step: int, mark: Callable[[], bytes], threads: int, then: Callable[[], None]
    ) -> StorageWriter:
        """Writes a checkpoint. The coordinator calls `mark` when all is written, for what is noted
        with it, and `then` once it is complete."""

    @abc.abstractmethod
    def reader(self, step: int) -> StorageReader:
        """Reads a checkpoint."""

    @abc.abstractmethod
    def remove(self, step: int) -> None:
        """Deletes a checkpoint, which at once is none any more."""

    @abc.abstractmethod
    def discard(self, step: int) -> None:
        """Deletes what a save that failed has written."""


def store_of(path: str | os.PathLike[str]) -> Store:
    """The store at a local path, or at one of another file system: `scheme://...`.

    Raises:
        ImportError: fsspec, or what it needs for the scheme, is not installed.
        ValueError: fsspec does not know the scheme.
    """
    path = os.fspath(path)
    scheme, _, rest = path.rpartition("://")
    if scheme in ("", "file"):
        return LocalStore(Path(rest).absolute())  # wherever the program goes meanwhile
    return RemoteStore(path.rstrip("/"))


# --- writing ----------------------------------------------------------------------------------


class _ThreadedWriter(FileSystemWriter):
    """Writes the tensors of a process into several files at a time.

    (PyTorch's writer forgets what goes wrong in its further threads.)
    """

    threads = 1

    def write_data(
        self, plan: SavePlan, planner: SavePlanner
    ) -> torch.futures.Future[list[WriteResult]]:
        results: list[list[WriteResult]] = []

        def write(number: int, items: list[WriteItem]) -> None:
            name = dataclasses.replace(
                plan.storage_data, prefix=f"{plan.storage_data.prefix}{number}_"
            )
            part = dataclasses.replace(plan, items=items, storage_data=name)
            try:
                results.append(super(_ThreadedWriter, self).write_data(part, planner).value())
            except RuntimeError as error:
                # torch.save says that it cannot end the file, not that a write of it failed.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

        _in_threads(write, _shared_out(plan.items, self.threads))
        done: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        done.set_result([result for some in results for result in some])
        return done


def _shared_out(items: list[WriteItem], count: int) -> list[list[WriteItem]]:
    """Up to `count` lists of about as many bytes; the parts of a tensor stay together, since they
    are read from the devices together."""
    tensors: dict[str, list[WriteItem]] = {}
    for item in items:
        tensors.setdefault(item.index.fqn, []).append(item)
    sizes = {fqn: sum(map(_item_bytes, parts)) for fqn, parts in tensors.items()}
    lists: list[tuple[int, list[WriteItem]]] = [(0, [])] * max(1, min(count, len(tensors)))
    for fqn in sorted(tensors, key=lambda fqn: -sizes[fqn]):
        smallest = min(range(len(lists)), key=lambda i: lists[i][0])
        size, some = lists[smallest]
        lists[smallest] = (size + sizes[fqn], some + tensors[fqn])
    return [some for _, some in lists]


def _item_bytes(item: WriteItem) -> int:
    if item.tensor_data is None or item.tensor_data.chunk is None:
        return 1
    return item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize


def _in_threads(call: Callable[[int, Any], None], arguments: list[Any]) -> None:
    """Calls with each argument and its number, in threads beside this one. Raises the first error.

    (Executors of `concurrent.futures` refuse work while the interpreter waits for its threads.)
    """
    errors: list[BaseException] = []

    def run(number: int, argument: Any) -> None:
        try:
            call(number, argument)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(arguments)][1:]
    for thread in threads:
        thread.start()
    run(0, arguments[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# --- local folders ----------------------------------------------------------------------------


class LocalStore(Store):
    """Checkpoints in a folder of this machine, or of a file system mounted here.

    Beside `<step>` there may be `.saving-<step>`, which is being written or was when a process
    died, `.replaced-<step>`, the former checkpoint of a step that is saved again, for the moment
    between two renamings, and `.removing-...`. The next save cleans up. The folder is locked from
    the beginning of a save to its end: others that save to it wait. (Some network file systems know
    no locks; there a folder must have one writer.)
    """

    def __init__(self, root: Path):
        self.root = root
        self._lock: int | None = None  # the folder's descriptor, while this one saves

    def _folders(self) -> dict[int, Path]:
        folders = {}
        with contextlib.suppress(FileNotFoundError):
            for path in self.root.iterdir():
                found = re.fullmatch(r"(\.replaced-)?(\d+)", path.name)
                if found is None or not (path / CONTENTS).exists() or not (path / MARK).exists():
                    continue
                step = int(found[2])
                if not found[1] or step not in folders:
                    folders[step] = path
        return folders

    def marks(self) -> dict[int, bytes]:
        marks = {}
        for step, path in self._folders().items():
            with contextlib.suppress(FileNotFoundError):  # somebody else has just deleted it
                marks[step] = (path / MARK).read_bytes()
        return marks

    def writer(
        self, step: int, mark: Callable[[], bytes], threads: int, then: Callable[[], None]
    ) -> StorageWriter:
        return _LocalWriter(self, step, mark, threads, then)

    def reader(self, step: int) -> StorageReader:
        return FileSystemReader(self._folders()[step])

    def remove(self, step: int) -> None:
        self._delete(self.root / str(step))

    def discard(self, step: int) -> None:
        if self._lock is None:  # the save had not begun
            return
        try:
            self._delete(self.unfinished(step))
        finally:
            self.end()

    def unfinished(self, step: int) -> Path:
        return self.root / f".saving-{step}"

    def begin(self, step: int) -> None:
        """Makes an empty folder to write to, and cleans up after saves that did not end."""
        if not self.root.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            _to_disk(self.root.parent)
        self._lock = _locked(self.root)
        complete = self._folders()
        for path in list(self.root.iterdir()):
            if path.name.startswith(".replaced-") and path in complete.values():
                path.rename(self.root / path.name.removeprefix(".replaced-"))
            elif path.name.startswith((".saving-", ".replaced-", ".removing-")):
                self._delete(path)
        self.unfinished(step).mkdir(exist_ok=True)  # other processes make it too

    def commit(self, step: int) -> None:
        """Gives the folder that was written its name, and puts both on the disk."""
        written, former = self.root / str(step), self.root / f".replaced-{step}"
        _to_disk(self.unfinished(step))
        if written.exists():
            written.rename(former)
        self.unfinished(step).rename(written)
        _to_disk(self.root)
        self._delete(former)

    def end(self) -> None:
        """Lets others save."""
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # forked processes have the descriptor, too
            os.close(self._lock)
            self._lock = None

    def _delete(self, path: Path) -> None:
        if not path.exists():
            return
        if not path.name.startswith(".removing-"):
            path = path.rename(self.root / f".removing-{path.name.lstrip('.')}")
        shutil.rmtree(path)


def _locked(folder: Path) -> int:
    """A descriptor of a folder. Others that ask for one wait until it is closed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.warning("CheckpointManager: waits for another one, which saves to %s", folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:  # KeyboardInterrupt
            os.close(descriptor)
            raise
    except OSError as error:
        _log.info("CheckpointManager: %s cannot be locked: %s", folder, error)
    return descriptor


def _to_disk(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _LocalWriter(_ThreadedWriter):
    def __init__(
        self,
        store: LocalStore,
        step: int,
        mark: Callable[[], bytes],
        threads: int,
        then: Callable[[], None],
    ):
        super().__init__(store.unfinished(step))
        self.store, self.step, self.mark, self.then = store, step, mark, then
        self.threads = threads

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        if is_coordinator:
            self.store.begin(self.step)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        with open(self.store.unfinished(self.step) / MARK, "wb") as file:
            file.write(self.mark())
            file.flush()
            os.fsync(file.fileno())
        self.store.commit(self.step)
        self.then()
        self.store.end()


# --- other file systems -----------------------------------------------------------------------


class RemoteStore(Store):
    """Checkpoints in a file system of fsspec. The mark is written last and deleted first."""

    def __init__(self, root: str):
        from fsspec.core import url_to_fs

        self.root = root
        self.fs, _ = url_to_fs(root)

    def _mark(self, step: int) -> str:
        return f"{self.root}/{step}/{MARK}"

    def marks(self) -> dict[int, bytes]:
        self.fs.invalidate_cache()
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = [path.rstrip("/").rpartition("/")[2] for path in self.fs.ls(self.root, False)]
        steps = [int(name) for name in names if re.fullmatch(r"\d+", name)]
        return {s: self.fs.cat_file(self._mark(s)) for s in steps if self.fs.exists(self._mark(s))}

    def writer(
        self, step: int, mark: Callable[[], bytes], threads: int, then: Callable[[], None]
    ) -> StorageWriter:
        return _remote_writer(self, step, mark, threads, then)

    def reader(self, step: int) -> StorageReader:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        return FsspecReader(f"{self.root}/{step}")

    def remove(self, step: int) -> None:
        folder = f"{self.root}/{step}"
        self.fs.invalidate_cache()
        if self.fs.exists(self._mark(step)):
            self.fs.rm_file(self._mark(step))
        if self.fs.exists(folder):
            self.fs.rm(folder, recursive=True)

    def discard(self, step: int) -> None:
        self.remove(step)

    def commit(self, step: int, mark: bytes) -> None:
        self.fs.pipe_file(self._mark(step), mark)


def _remote_writer(
    store: RemoteStore,
    step: int,
    mark: Callable[[], bytes],
    threads: int,
    then: Callable[[], None],
) -> StorageWriter:
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    class RemoteWriter(_ThreadedWriter, FsspecWriter):
        def __init__(self) -> None:
            # Without sync_files: such streams have no descriptor, and PyTorch would sync all disks.
            FsspecWriter.__init__(self, f"{store.root}/{step}", sync_files=False)
            self.threads = threads

        def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
            super().set_up_storage_writer(is_coordinator, *args, **kwargs)
            if is_coordinator:
                store.remove(step)

        def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
            super().finish(metadata, results)
            store.commit(step, mark())
            then()

    return RemoteWriter()
