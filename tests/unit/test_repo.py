"""The repository's own rules: the include arrows, file lengths, pinned versions."""

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.path.insert(0, str(ROOT / "scripts"))  # where one finds the other
check = load(ROOT / "scripts" / "check_includes.py")
rooms = load(ROOT / "scripts" / "check_rooms.py")
sys.path.pop(0)
torch_install = load(ROOT / "cmake" / "torch_install.py")


@pytest.fixture
def tree(tmp_path):
    """Writes files of a made-up repository that has one header per area."""

    def write(**files):
        for area in check.ARROWS:
            header = tmp_path / "csrc" / area / "a.h"
            header.parent.mkdir(parents=True, exist_ok=True)
            header.write_text("#pragma once\n")
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_this_repository_keeps_its_arrows_and_lengths():
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check_includes.py")],
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_arrows_are_one_way():
    for area in check.ARROWS:
        for target in check.reachable(area) - {area}:
            assert area not in check.reachable(target), f"{area} and {target} include each other"


@pytest.mark.parametrize(
    "area, header, reason",
    [
        ("lazy", '"ops/a.h"', "lazy may include only hlo, spmd, util"),
        ("hlo", '"pjrt/a.h"', "hlo may include only spmd, util"),
        ("spmd", '"pjrt/a.h"', "spmd may include only util"),
        ("util", '"hlo/a.h"', "util may include only"),
        ("ops", '"executor/a.h"', "ops may include only"),
        ("debug", '"executor/a.h"', "debug may include only"),
        ("executor", '"dispatch/a.h"', "executor may include only"),
        ("hlo", "<ATen/core/Tensor.h>", "builds without torch"),
        ("pjrt", "<c10/core/Device.h>", "builds without torch"),
        ("util", '"pybind11/pybind11.h"', "builds without torch"),
        ("util", "<Python.h>", "builds without torch"),
        ("dispatch", "<torch/extension.h>", "only csrc/python/"),
        ("lazy", "<Python.h>", "only csrc/python/"),
        ("executor", "<pybind11/pybind11.h>", "only csrc/python/"),
        ("ops", "<ATen/ATen.h>", "narrow headers"),
        ("hlo", '"a.h"', "write it from there"),
        ("hlo", '"../util/a.h"', "write it from there"),
    ],
)
def test_a_forbidden_include_is_found(tree, area, header, reason):
    root = tree(**{f"csrc__{area}__b_dot_cpp": f"// first line\n#include {header}\n"})
    (violation,) = check.check_includes(root)
    assert violation.startswith(f"csrc/{area}/b.cpp:2: {header[1:-1]}: ")
    assert reason in violation


@pytest.mark.parametrize(
    "area, header",
    [
        ("python", "<torch/extension.h>"),
        ("python", '"lazy/a.h"'),
        ("dispatch", '"hlo/a.h"'),
        ("executor", '"pjrt/a.h"'),
        ("executor", '"debug/a.h"'),
        ("pjrt", '"pjrt_c_api.h"'),
        ("pjrt", '"util/a.h"'),
        ("hlo", "<vector>"),
        ("ops", "<ATen/core/Tensor.h>"),
    ],
)
def test_an_allowed_include_passes(tree, area, header):
    root = tree(**{f"csrc__{area}__b_dot_cpp": f"#include {header}\n"})
    assert list(check.check_includes(root)) == []


def test_a_folder_that_is_no_area_is_found(tree):
    (violation,) = check.check_includes(tree(csrc__helpers__b_dot_h=""))
    assert violation.startswith("csrc/helpers/b.h: not in an area")


@pytest.mark.parametrize(
    ("room", "header", "reason"),
    [
        ("program", "run", "executor/program may include of executor/ only nothing else"),
        ("run", "step", "executor/run may include of executor/ only program"),
        ("step", "run", None),
        (
            "closet",
            "run",
            "not in a room of executor/ (compile, insight, program, run, step, stored)",
        ),
    ],
)
def test_rooms_include_those_below_alone(tree, room, header, reason):
    root = tree(
        **{
            f"csrc__executor__{header}__a_dot_h": "",
            f"csrc__executor__{room}__b_dot_cpp": f'#include "executor/{header}/a.h"\n',
        }
    )
    violations = list(check.check_includes(root))
    assert [reason in v for v in violations] == ([] if reason is None else [True])


def test_torch_in_the_cpp_tests_is_found(tree):
    (violation,) = check.check_includes(tree(tests__cpp__b_dot_cpp="#include <torch/library.h>\n"))
    assert "tests/cpp/b.cpp:1: torch/library.h" in violation


@pytest.mark.parametrize("name", ["csrc__hlo__b_dot_cpp", "torch_xla__b_dot_py", "tests__b_dot_py"])
def test_a_long_file_is_found(tree, name):
    assert list(check.check_lengths(tree(**{name: "\n" * 800}))) == []
    (violation,) = check.check_lengths(tree(**{name: "\n" * 801}))
    assert "801 lines, at most 800" in violation


def test_the_script_fails_on_a_violation(tree):
    root = tree(csrc__hlo__b_dot_cpp='#include "pjrt/a.h"\n')
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check_includes.py"), str(root)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stdout.count("\n") == 1


def test_the_rooms_of_this_repository():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check_rooms.py")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert all(re.search(r"of +\d+ lines$", line) for line in done.stdout.splitlines())


CIRCLE = {
    "csrc__hlo__b_dot_h": '#include "hlo/c.h"\n',
    "csrc__hlo__c_dot_h": "",
    "csrc__hlo__c_some_dot_cpp": '#include "hlo/c.h"\n#include "hlo/b.h"\n',
}


def test_a_circle_of_includes_is_found_through_the_sources_of_a_header(tree):
    (violation,) = rooms.check_circles(tree(**CIRCLE))
    assert violation.startswith("csrc/hlo: b, c are in a circle")


def test_an_import_of_what_lies_above_is_found(tree, monkeypatch):
    files = {
        "torch_xla__runtime_dot_py": "import torch\n",
        "torch_xla__version_dot_py": "",
        "torch_xla__device__low_dot_py": "",
    }
    root = tree(**files)
    inner = root / "torch_xla" / "_src"
    for room in ("device", "patches"):
        (inner / room).mkdir(parents=True)
        text = "from torch_xla import runtime, version\n"
        (inner / room / "a.py").write_text(text)
    monkeypatch.setattr(rooms, "IMPORTS_UP", {})
    (violation,) = rooms.check_direction(root)
    assert violation.startswith("torch_xla._src.device.a imports torch_xla.runtime, which")
    monkeypatch.setattr(rooms, "IMPORTS_UP", {"torch_xla._src.device.a": {"torch_xla.runtime"}})
    assert list(rooms.check_direction(root)) == []
    (inner / "device" / "a.py").write_text("")
    (violation,) = rooms.check_direction(root)
    assert "Take it off IMPORTS_UP" in violation


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from torch_xla import a\n", True),
        ("def f():\n    import torch_xla.a\n", True),
        ("from torch_xla.a import g\n", True),
        ("import typing\nif typing.TYPE_CHECKING:\n    from torch_xla import a\n", False),
        ("from torch_xla import _XLAC\n", False),
    ],
)
def test_a_circle_of_imports_is_found(tree, text, found):
    root = tree(
        torch_xla____init___dot_py="import torch_xla.b\n",
        torch_xla__a_dot_py="from torch_xla import b\n",
        torch_xla__b_dot_py=text,
    )
    violations = list(rooms.check_circles(root))
    assert len(violations) == found
    assert not found or "torch_xla.a, torch_xla.b are in a circle" in violations[0]


def test_a_room_has_a_budget_and_keeps_it(tree, monkeypatch):
    monkeypatch.setattr(rooms, "BUDGETS", {f"csrc/{area}": 4 for area in check.ARROWS})
    assert list(rooms.check_budgets(tree(csrc__hlo__b_dot_cpp="\n\n\n"))) == []
    (violation,) = rooms.check_budgets(tree(csrc__hlo__b_dot_cpp="\n\n\n\n"))
    assert violation.startswith("csrc/hlo: 5 lines, at most 4 may be")
    root = tree(csrc__hlo__b_dot_cpp="", csrc__hlo__new__b_dot_cpp="")
    (violation,) = rooms.check_budgets(root)
    assert violation.startswith("csrc/hlo/new: has no budget")


def test_riddles_are_counted_once_each_and_may_only_become_fewer(tree, monkeypatch):
    root = tree(
        csrc__hlo__b_dot_cpp="// What a is.\n// What goes on.\nint a;  // of c\nint b;  // Of d\n",
        torch_xla__b_dot_py='"""Of a module."""\nx = 1  # How so\n# It is\n# What it is.\n',
    )
    assert rooms.openers(root) == {"csrc": 2, "torch_xla": 2}
    monkeypatch.setattr(rooms, "OPENERS", {"csrc": 2, "torch_xla": 2})
    assert list(rooms.check_openers(root)) == []
    monkeypatch.setattr(rooms, "OPENERS", {"csrc": 1, "torch_xla": 3})
    first, second = rooms.check_openers(root)
    assert "csrc: 2 comments" in first and "at most 1" in first
    assert "torch_xla: 2 comments open so by now" in second


def test_the_lint_versions_agree():
    """pre-commit and make format with the same releases, or they would undo each other's work."""
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements-dev.txt").read_text(), re.M))
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    for tool in ("ruff", "clang-format"):
        assert set(re.findall(rf"{tool}==([\d.]+)", hooks)) == {pins[tool]}


def test_the_torch_pins_agree():
    makefile = (ROOT / "Makefile").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    (pinned,) = re.findall(r"^TORCH := torch==(\S+)", makefile, re.M)
    assert f'torch-default = "{pinned}"' in project
    assert f'version = "{pinned}"' in project


def test_the_wheel_depends_on_the_torch_it_was_built_against(monkeypatch):
    settings = {
        "dependencies": ["numpy"],
        "torch-supported": ">=2.11,<2.15",
        "torch-default": "2.13.0",
    }
    monkeypatch.setattr(torch_install, "find_torch", lambda: (Path("/torch"), "2.12.1+cpu"))
    assert torch_install.get_requires_for_dynamic_metadata(settings) == []
    assert torch_install.dynamic_metadata(settings, {}) == {
        "dependencies": ["torch==2.12.*", "numpy"]
    }
    monkeypatch.setattr(torch_install, "find_torch", lambda: None)
    assert torch_install.get_requires_for_dynamic_metadata(settings) == ["torch==2.13.0"]
    assert torch_install.dynamic_metadata(settings, {}) == {
        "dependencies": ["torch>=2.11,<2.15", "numpy"]
    }


def test_the_build_finds_the_torch_that_runs_here():
    torch = pytest.importorskip("torch")
    folder, version = torch_install.find_torch()
    assert folder == Path(torch.__file__).parent
    assert version == torch.__version__


def status_rows():
    row = re.compile(r"^\| ([A-Z]\d{3}) \| .* \| ([^|]+) \|([^|]*)\|$", re.M)
    return row.findall((ROOT / "docs" / "status.md").read_text())


def test_status_lists_each_requirement_once():
    ids = [name for name, _, _ in status_rows()]
    assert len(ids) == 394
    assert len(set(ids)) == 394


def test_status_names_a_test_that_exists_for_what_works():
    for name, state, shown_by in status_rows():
        assert state in ("works", "partly", "not yet"), name
        if state == "works":
            assert shown_by.strip(), f"{name} works, but no test is named"
        for path in re.findall(r"tests/[\w/]+\.(?:py|cpp)", shown_by):
            assert (ROOT / path).is_file(), f"{name}: {path} does not exist"


def test_the_table_of_operators_is_current():
    script = ROOT / "scripts" / "gen_operators.py"
    run = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


docs = load(ROOT / "scripts" / "check_docs.py")


@pytest.fixture
def pages(tmp_path):
    """A root with one page for each area, and one for users."""
    for area in ("hlo", "ops"):
        (tmp_path / "csrc" / area).mkdir(parents=True)
        (tmp_path / "csrc" / area / "a.h").touch()
    (tmp_path / "docs" / "architecture").mkdir(parents=True)
    for name in ("README", "CONTRIBUTING", "docs/architecture", "docs/changes"):
        (tmp_path / f"{name}.md").write_text("# The heading, `of` it\n")
    for name in ("hlo", "ops", "torch_xla"):
        (tmp_path / "docs" / "architecture" / f"{name}.md").write_text("Read `a.h`.\n")
    return tmp_path


def all_of(root, *checks):
    return [line for check in checks for line in check(root)]


def test_the_pages_of_this_repository():
    checks = (docs.check_links, docs.check_files, docs.check_rooms, docs.check_sentences)
    assert all_of(ROOT, *checks) == []


@pytest.mark.parametrize(
    "text, found",
    [
        ("[it](architecture.md#the-heading-of-it), [it](https://a.b/c)", None),
        ("[it](gone.md)", "gone.md does not exist"),
        ("[it](architecture.md#gone)", "architecture.md has no heading 'gone'"),
        ("[it](#gone)", "changes.md has no heading 'gone'"),
        ("```\n[it](gone.md)\n```", None),
        ("`csrc/ops/a.h`, `ops/a.h`", None),
        ("`ops/b.h`", "there is no file ops/b.h"),
        ("word " * 41 + "word.", "1 sentences of over 40 words"),
        ("word " * 39 + "word. " + "word " * 39 + "word.", None),
        ("- " + "word " * 39 + "word\n- " + "word " * 39 + "word", None),
        ("| " + "word " * 50 + "|", None),
        ("It runs. What it gives is read.", "1 sentences open with What"),
        ("**What runs?** It runs. What is read?", None),
    ],
)
def test_what_a_page_says_is_checked(pages, text, found):
    (pages / "docs" / "changes.md").write_text(text)
    lines = all_of(pages, docs.check_links, docs.check_files, docs.check_sentences)
    lines = [line for line in lines if "by now" not in line]  # the lists are this repository's
    assert len(lines) == (found is not None)
    assert all(line.startswith("docs/changes.md: ") and found in line for line in lines)


def test_each_area_has_a_page_that_is_short(pages):
    (pages / "docs" / "architecture" / "ops.md").write_text("word " * 801)
    (pages / "docs" / "architecture" / "hlo.md").unlink()
    missing, long = docs.check_rooms(pages)
    assert missing.startswith("docs/architecture/hlo.md: there is no such page")
    assert long.startswith("docs/architecture/ops.md: 801 words, at most 800")


operators = load(ROOT / "scripts" / "check_operators.py")


def test_each_operator_has_one_home():
    assert operators.violations(ROOT) == []


@pytest.mark.parametrize(
    "text, found",
    [
        ('r.add("aten::add.Tensor", add);', {"aten::add"}),
        ('r.all("aten::index_put").writes_repeated = true;', {"aten::index_put"}),
        ('if (op.name == "aten::permute") swap();', {"aten::permute"}),
        ('TORCH_LIBRARY_IMPL(aten, XLA, m) {\n  m.impl("copy_", f);', {"aten::copy"}),
        ('TORCH_LIBRARY_IMPL(torch_xla, Meta, m) {\n  m.impl("runs", f);', {"torch_xla::runs"}),
        ('return call("aten::zeros", device, {});', set()),
        ('HostCall call(l.b, "aten::mm", Fails::Never);', set()),
        ('static const auto op = find_operator({"aten::view", ""});', set()),
        ('call(v.whole ? "aten::as_strided_scatter" : "torch_xla::x", v.device);', set()),
        ('// "aten::add" in words', set()),
    ],
)
def test_names_of_operators_are_found(text, found):
    assert operators.names(text) == found


def test_an_operator_with_two_homes_is_told(tmp_path, capsys):
    folder = tmp_path / "csrc" / "ops"
    folder.mkdir(parents=True)
    (folder / "a.cpp").write_text('r.add("aten::add.Tensor", add);')
    (folder / "b.cpp").write_text('TORCH_LIBRARY_IMPL(aten, XLA, m) { m.impl("add_", add_); }')
    (folder / "c.cpp").write_text('r.add("aten::mul.Tensor", mul); Type<at::_ops::add_Tensor> x;')
    assert operators.main([str(tmp_path)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    files = "csrc/ops/a.cpp, csrc/ops/b.cpp, csrc/ops/c.cpp"
    assert line == f"aten::add: named in {files}. Say what is known of it in one of them."


def test_shards_are_the_whole():
    from tests.conftest import shard_of

    items = list(range(11))
    shards = [shard_of(items, f"{i}of4") for i in range(1, 5)]
    assert sorted(item for chosen, _ in shards for item in chosen) == items
    assert all(sorted(chosen + others) == items for chosen, others in shards)
    for wrong in ("0of4", "5of4"):
        with pytest.raises(pytest.UsageError, match="expected 1of4 to 4of4"):
            shard_of(items, wrong)


@pytest.mark.slow
def test_the_wheel_has_the_files_that_are_no_modules(tmp_path):
    wheel = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--quiet", "-w", str(tmp_path)]
    options = ["--no-build-isolation", "--no-deps", "-C", "wheel.cmake=false"]
    subprocess.run(wheel + options, check=True)
    (made,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(made).namelist()
    others = {"_XLAC.pyi", "py.typed", "_src/report/page.css", "_src/report/page.js"}
    assert {f"torch_xla/{name}" for name in others} <= set(names)
