"""Names of torch_xla 2.9 for events of profiles. Files have these names beside the shown ones."""

from __future__ import annotations

EVENTS = {
    "upload": "PjRtComputationClient::TransferToDevice",
    "TransferFromDevice": "PjRtComputationClient::TransferFromDevice",
    "compile": "PjRtComputationClient::Compile",
    "launch": "PjRtComputationClient::ExecuteComputation",
}
