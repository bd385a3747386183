"""Lets PyTorch's own device-generic tests run on xla.

    TORCH_TEST_DEVICES=<folder of torch_xla>/test/pytorch_test_base.py python test_torch.py -k xla

PyTorch runs this file by its path and takes `TEST_CLASS` from it; `DeviceTypeTestBase` is there
already, since importing its module from here would be a circle. What PyTorch's tests expect of its
native devices holds for xla too, so those run as well; the wording of errors is not compared.
"""

from __future__ import annotations

import sys
from typing import Any

import torch_xla

DeviceTypeTestBase: Any = globals()["DeviceTypeTestBase"]
_pytorch: Any = sys.modules[DeviceTypeTestBase.__module__]
_pytorch.NATIVE_DEVICES = (*_pytorch.NATIVE_DEVICES, "xla")


class XLATestBase(DeviceTypeTestBase):  # type: ignore[misc]
    device_type = "xla"

    @classmethod
    def get_primary_device(cls) -> str:
        return str(torch_xla.device())

    @classmethod
    def get_all_devices(cls) -> list[str]:
        primary = cls.get_primary_device()
        others = [str(device) for device in torch_xla.devices() if str(device) != primary]
        return [primary, *others]

    def _should_stop_test_suite(self) -> bool:
        return False  # a failed run is an exception; the device goes on


TEST_CLASS = XLATestBase
