"""PyTorch's device-generic tests run on xla through TORCH_TEST_DEVICES."""

from __future__ import annotations

from pathlib import Path

import torch_xla

BASE = Path(torch_xla.__file__).parent / "test" / "pytorch_test_base.py"

TESTS = """
    import torch
    from torch.testing._internal.common_device_type import (
        deviceCountAtLeast, dtypes, instantiate_device_type_tests, onlyCPU,
        onlyNativeDeviceTypes, ops,
    )
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_utils import TestCase, parametrize, run_tests

    wanted = {"add", "sum", "nn.functional.gelu"}


    class TestGeneric(TestCase):
        def test_place(self, device):
            self.assertEqual(torch.ones(2, device=device).device, torch.device(device))
            self.assertEqual(device, "xla:0")

        @dtypes(torch.float32, torch.int64)
        @parametrize("n", [1, 3])
        def test_sum(self, device, dtype, n):
            self.assertEqual(torch.ones(n, device=device, dtype=dtype).sum().item(), n)

        @ops([op for op in op_db if op.name in wanted], allowed_dtypes=(torch.float32,))
        def test_op(self, device, dtype, op):
            for sample in op.sample_inputs(device, dtype):
                cpu = sample.transform(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x)
                result = op(sample.input, *sample.args, **sample.kwargs)
                expected = op(cpu.input, *cpu.args, **cpu.kwargs)
                self.assertEqual(result, expected, exact_device=False)

        @onlyCPU
        def test_of_the_cpu(self, device):
            self.fail("not for xla")

        @onlyNativeDeviceTypes
        def test_of_native_devices(self, device):
            self.assertEqual(torch.ones(2, device=device).device.type, "xla")
            with self.assertRaisesRegex(RuntimeError, "words that are not compared"):
                torch.ones(2, device=device) + torch.ones(3, device=device)

        @deviceCountAtLeast(2)
        def test_devices(self, devices):
            self.assertEqual(devices, ["xla:0", "xla:1"])

        def test_that_fails(self, device):
            self.assertEqual(torch.ones(2, device=device), torch.zeros(2, device=device))


    instantiate_device_type_tests(TestGeneric, globals(), only_for="xla")
    if __name__ == "__main__":
        run_tests()
"""


def test_generic_tests_run_on_xla(run_python):
    done = run_python(
        TESTS,
        env={
            "CI": None,  # PyTorch would write reports with a package of its own CI
            "TORCH_TEST_DEVICES": str(BASE),
            "PYTORCH_TEST_WITH_SLOW": "1",
            "CPU_NUM_DEVICES": "2",
        },
        check=False,
    )
    text = done.stderr
    assert "FAIL: test_that_fails_xla (__main__.TestGenericXLA" in text, text[-3000:]
    assert "Ran 12 tests" in text, text[-3000:]
    assert "FAILED (failures=1, skipped=1)" in text, text[-3000:]


def test_one_test_by_its_name(run_python, tmp_path):
    code = TESTS.replace("run_tests()", "import sys; sys.argv[1:] = ['-k', 'sum_n_3']; run_tests()")
    done = run_python(code, env={"CI": None, "TORCH_TEST_DEVICES": str(BASE)})
    assert "Ran 2 tests" in done.stderr and "OK" in done.stderr, done.stderr[-3000:]
