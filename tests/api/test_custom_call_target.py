"""Programs that call a function of the user's, by XLA's FFI."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest
import torch

import torch_xla
from torch_xla import _XLAC
from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call

SOURCE = """
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;

ffi::Error scale(ffi::Buffer<ffi::F32> x, float factor, ffi::ResultBuffer<ffi::F32> y) {
  if (factor < 0) return ffi::Error(ffi::ErrorCode::kOutOfRange, "a factor of at least 0");
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = factor * x.typed_data()[i];
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(scale_handler, scale,
                              ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("factor").Ret<ffi::Buffer<ffi::F32>>());
"""


def capsule_of(function) -> object:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
    return make(ctypes.cast(function, ctypes.c_void_p), b"xla._CUSTOM_CALL_TARGET", None)


@pytest.fixture(scope="module")
def handler(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("c++")
    jaxlib = pytest.importorskip("jaxlib")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("ffi")
    (folder / "scale.cpp").write_text(SOURCE)
    include = f"{jaxlib.__path__[0]}/include"
    command = [compiler, "-std=c++17", "-shared", "-fPIC", "-I", include, "scale.cpp", "-o", "s.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "s.so")).scale_handler


def scaled(x: torch.Tensor, name: str, factor: str) -> torch.Tensor:
    config = f"{{factor = {factor} : f32}}"
    return stablehlo_custom_call(
        (x,), name, [x.shape], [x.dtype], backend_config=config, api_version=4
    )


def test_a_program_calls_it(handler):
    _XLAC._xla_register_custom_call_target("test_scale", capsule_of(handler), "CPU")
    x = torch.randn(5, 3)
    made = scaled((x + 1).to("xla") * 2, "test_scale", "2.5").sum(0)
    torch.testing.assert_close(made.cpu(), ((x + 1) * 5).sum(0))


def test_its_error_is_told(handler):
    _XLAC._xla_register_custom_call_target("test_scale_fails", capsule_of(handler), "CPU")
    x = torch.ones(3).to("xla")
    torch_xla.sync()
    with pytest.raises(RuntimeError, match="a factor of at least 0"):
        scaled(x, "test_scale_fails", "-1.0").cpu()
    assert scaled(x, "test_scale_fails", "2.0").cpu().tolist() == [2, 2, 2]


def test_what_is_no_function():
    with pytest.raises(TypeError):
        _XLAC._xla_register_custom_call_target("name", print, "CPU")
