"""Views that are cut on the host out of what their storage holds: no program for each."""

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met

LITTLE, LARGE = (12, 10), (300, 100)  # copied whole; read in place on the CPU

PARTS = {
    "element": lambda v: v[3, 4],
    "row": lambda v: v[-1],
    "column": lambda v: v[:, 2],
    "transposed": lambda v: v.t(),
    "gaps": lambda v: v[1::3, 2:9:4],
    "expanded": lambda v: v[2].expand(3, -1),
    "windows": lambda v: v.unfold(0, 3, 2),
    "diagonal": lambda v: v.diagonal(1),
    "as_strided": lambda v: v.as_strided((3, 2), (7, 1), 11),
    "empty": lambda v: v[5:5],
    "negated": lambda v: torch._neg_view(v)[1],
    "bits": lambda v: v.view(torch.int32)[2],
    "conjugated": lambda v: torch.view_as_complex(v[:, :2]).conj()[3:5],
    "imaginary": lambda v: torch.view_as_complex(v[:, :2]).conj().imag[1:],
    "whole": lambda v: v.view(-1),
}


def compilations() -> int:
    return met.counter_value("UncachedCompile") or 0


@pytest.mark.parametrize("sizes", [LITTLE, LARGE], ids=str)
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_parts_have_the_values_of_the_cpu(part, sizes):
    x = torch.randn(sizes)
    y = x.to("xla") * 2
    for _ in range(2):  # while it waits to be computed, and when it is there
        got, want = part(y).cpu(), part(x * 2)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert got.stride() == want.clone().stride()
    y[3] = 7
    x = x * 2
    x[3] = 7
    torch.testing.assert_close(part(y).cpu(), part(x), rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [LITTLE, LARGE], ids=str)
def test_parts_need_no_program_each(sizes):
    y = torch.randn(sizes, device="xla") * 2
    torch_xla.sync()
    want, before = y.cpu(), compilations()
    for i in range(sizes[0]):
        assert y[i, 3].item() == want[i, 3]
        assert y[i : i + 2].tolist() == want[i : i + 2].tolist()
    assert str(y[:3]).startswith("tensor(")
    assert compilations() == before


def test_a_part_is_a_copy():
    y = torch.zeros(100000, device="xla")
    torch_xla.sync()
    row = y[10:20].cpu()
    row += 1
    y += 2
    torch_xla.sync()
    assert y[10:20].tolist() == [2.0] * 10 and row.tolist() == [1.0] * 10


def test_one_run_for_all_that_is_read():
    x = torch.randn(20, device="xla")
    torch_xla.sync()
    y, z = x * 2, x * 3
    before = met.metric_data("ExecuteTime")[0]
    got = torch_xla._XLAC._xla_get_cpu_tensors([y[2:4], z, y[7]])
    assert met.metric_data("ExecuteTime")[0] == before + 1
    for part, want in zip(got, [x.cpu()[2:4] * 2, x.cpu() * 3, x.cpu()[7] * 2], strict=True):
        assert torch.equal(part, want)


def test_views_that_programs_read_have_the_same_values():
    y = torch.randn(LITTLE, device="xla") * 2
    torch_xla.sync()
    cut = [part(y).cpu() for part in PARTS.values()]
    before = compilations()
    torch_xla._XLAC._xla_set_reads_views_by_programs(True)
    try:
        read = [part(y).cpu() for part in PARTS.values()]
    finally:
        torch_xla._XLAC._xla_set_reads_views_by_programs(False)
    assert compilations() > before + 5
    for a, b in zip(cut, read, strict=True):
        assert torch.equal(a, b)
