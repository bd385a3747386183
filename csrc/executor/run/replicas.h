// Replicas: each process of a job runs the same program on one device, on data of its own, and they
// exchange values by the collectives in it (ops/collectives.h).
#pragma once

#include "pjrt/device.h"

namespace torch_xla::executor {

// Returns the devices that are to their processes what this logical device is to ours, by process.
// Throws in SPMD mode, and where another process has fewer.
pjrt::Devices replicas_of(int device);

}  // namespace torch_xla::executor
