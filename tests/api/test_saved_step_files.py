"""Folders of saved steps that are damaged, and files that are not what they should be."""

from __future__ import annotations

import copy
import json
import shutil
import struct
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.api.saved_steps import made, mlp, on_xla
from torch_xla import saved_step


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "step"
    _, _, step, batches = made(mlp)
    step(*on_xla(batches[0]))
    saved_step.save(step, folder, on_xla(batches[0]))
    return folder


def copied(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "damaged")


def with_header(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


BAD_FILES = {
    "empty": b"",
    "short": b"\x03\0",
    "no header": with_header(b"", length=2**63),
    "a header beyond the end": with_header(b"{}", length=3),
    "no JSON": with_header(b"{no"),
    "a list": with_header([1]),
    "deep JSON": with_header(b"[" * 100_000),
    "no fields": with_header({"x": {}}),
    "an unknown dtype": with_header({"x": {"dtype": "F9", "shape": [], "data_offsets": [0, 0]}}),
    "offsets beyond the end": with_header(
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234"
    ),
    "offsets that turn": with_header(
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"1234"
    ),
    "negative offsets": with_header(
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, b"1234"
    ),
    "negative sizes": with_header(
        {"x": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, b"1234"
    ),
    "sizes that overflow": with_header(
        {"x": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}}
    ),
    "sizes of another tensor": with_header(
        {"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}}, b"1234"
    ),
    "other types": with_header({"x": {"dtype": 3, "shape": "a", "data_offsets": {}}}),
}


@pytest.mark.parametrize("damage", BAD_FILES)
def test_files_of_tensors_that_are_none(damage, saved, tmp_path, step_runner):
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(BAD_FILES[damage])
    for option in ("--data", "--state"):
        done = step_runner(saved, option, bad, status=1)
        assert "bad.safetensors: not a safetensors file" in done.stderr
    folder = copied(saved, tmp_path)
    bad.rename(folder / "state.safetensors")
    with pytest.raises(ValueError, match="state.safetensors"):
        saved_step.load(folder)


def test_a_file_that_ends_early(saved, tmp_path, step_runner):
    whole = (saved / "state.safetensors").read_bytes()
    bad = tmp_path / "bad.safetensors"
    for length in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        bad.write_bytes(whole[:length])
        step_runner(saved, "--state", bad, status=1)


def test_wrong_data(saved, tmp_path, step_runner):
    data = tmp_path / "data.safetensors"
    x, y = torch.zeros(3, 32, 8), torch.zeros(3, 32, dtype=torch.int64)
    for tensors, match in (
        ({"x": x}, "expected the tensor y"),
        ({"x": x.double(), "y": y}, "expected x to be float32 [3, 32, 8], got float64 [3, 32, 8]"),
        ({"x": x[0], "y": y}, "expected x to be float32 [32, 32, 8], got float32 [32, 8]"),
        ({"x": x[:0], "y": y}, "expected batches of x, found none"),
        ({"x": torch.tensor(0.0), "y": y}, "expected batches of x, found none"),
        ({"x": x, "y": y[:2]}, "expected y to be int64 [3, 32], got int64 [2, 32]"),
    ):
        save_file(tensors, data)
        text = step_runner(saved, "--data", data, status=1).stderr
        assert match in text
    again = saved_step.load(saved)
    for args, named in (
        ((x[0].double(), y[0]), {}),
        ((x[0],), {}),
        ((x[0], y[0]), {"z": y}),
        ((x[0], 3), {}),
        ((x[0], y[0], y[0]), {}),
        ((x[0],), {"x": x[0]}),
    ):
        with pytest.raises(ValueError, match="saved_step: expected"):
            again(*args, **named)


def test_wrong_manifests(saved, tmp_path, step_runner):
    folder = copied(saved, tmp_path)
    path = folder / "step.json"
    good = json.loads(path.read_text())
    state = next(i for i, o in enumerate(good["outputs"]) if o["kind"] == "state")

    def changed(*keys, to):
        bad = copy.deepcopy(good)
        place = bad
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to
        return json.dumps(bad)

    for text in (
        "", "{", "[]", "3", json.dumps({}),
        changed("version", to=2),
        changed("format", to="other"),
        changed("inputs", to=3),
        changed("inputs", 0, to=None),
        changed("outputs", state, "replaces", to=1000),
        changed("outputs", state, "replaces", to=-1),
        changed("outputs", state, "replaces", to="x"),
    ):  # fmt: skip
        path.write_text(text)
        assert "step.json: expected the description" in step_runner(folder, status=1).stderr
        with pytest.raises(ValueError, match="step.json"):
            saved_step.load(folder)
    for text in (
        changed("inputs", 0, "kind", to="other"),
        changed("inputs", 0, "dtype", to="float3"),
        changed("inputs", 0, "shape", to=[2**62, 2**62]),
        changed("outputs", state, "replaces", to=0),
        changed("outputs", 0, "kind", to="state"),
        changed("outputs", 0, "dtype", to="float64"),
        changed("outputs", to=good["outputs"][:-1]),
        changed("inputs", to=good["inputs"][1:]),
        changed("inputs", to=good["inputs"] + [good["inputs"][0]]),
    ):
        path.write_text(text)
        step_runner(folder, status=1)
        with pytest.raises(ValueError, match="step.json"):
            saved_step.load(folder)


def test_an_interface_that_is_not_the_programs(tmp_path):
    """Outputs that have changed their places or names, of other types and of the same ones."""
    x = torch.ones(3, device="xla")
    saved_step.save(lambda x: {"a": x + 1, "b": x.int(), "c": x * 2}, tmp_path / "step", (x,))
    path = tmp_path / "step" / "step.json"
    good = json.loads(path.read_text())
    for first, second in ((0, 1), (0, 2)):
        for whole in (True, False):
            bad = copy.deepcopy(good)
            outputs = bad["outputs"]
            if whole:
                outputs[first], outputs[second] = outputs[second], outputs[first]
            else:
                names = outputs[first]["name"], outputs[second]["name"]
                outputs[second]["name"], outputs[first]["name"] = names
            path.write_text(json.dumps(bad))
            with pytest.raises(ValueError, match="step.json.*not those that were saved"):
                saved_step.load(tmp_path / "step")
    del bad["sha256"]  # as folders of before have none
    path.write_text(json.dumps(bad))
    assert sorted(saved_step.load(tmp_path / "step")(x)) == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["step.mlir", "step.bytecode"])
def test_a_damaged_program_is_noticed_before_it_is_run(saved, tmp_path, name):
    folder = copied(saved, tmp_path)
    if not (folder / name).exists():
        pytest.skip("jaxlib is not there")
    good = (folder / name).read_bytes()
    for place in (0, len(good) // 2, len(good) - 1):
        bad = bytearray(good)
        bad[place] ^= 1
        (folder / name).write_bytes(bad)
        with pytest.raises(ValueError, match=f"{name} as it was saved"):
            saved_step.load(folder)
    for bad in (b"", good[:-1], good + b" "):
        (folder / name).write_bytes(bad)
        with pytest.raises(ValueError, match=f"{name} as it was saved"):
            saved_step.load(folder)
    (folder / name).write_bytes(good)
    saved_step.load(folder)


def test_missing_files_and_wrong_programs(saved, tmp_path, step_runner):
    for name in ("step.json", "state.safetensors", "example.safetensors"):
        folder = copied(saved, tmp_path)
        (folder / name).unlink()
        assert name in step_runner(folder, status=1).stderr
        with pytest.raises(FileNotFoundError, match=name):
            saved_step.load(folder)
        shutil.rmtree(folder)
    folder = copied(saved, tmp_path)
    for name in ("step.bytecode", "step.mlir"):
        if (folder / name).exists():
            (folder / name).write_text("no program")
            assert "step_runner: [PJRT_Client_Compile]" in step_runner(folder, status=1).stderr
            (folder / name).unlink()
    step_runner(folder, status=1)
    step_runner(tmp_path / "nothing", status=1)
    step_runner(saved, "--plugin", tmp_path / "nothing.so", status=1)
    for wrong in (["--steps", "x"], ["--steps"], ["--steps", "-1"], ["--other", "1"], ["another"]):
        assert "usage: step_runner" in step_runner(saved, *wrong, status=2).stderr
