// The order of what a device exchanges with other replicas (ops/exchange.h): a value that each
// exchange reads and replaces, and that lives as long as the device. In a function that is being
// recorded it stands for a parameter. Callers hold the GraphLock.
#pragma once

#include "lazy/node.h"

namespace torch_xla::dispatch {

const lazy::Geometry* geometry_of_order();
lazy::Value read_order(int device);
void write_order(int device, lazy::Value next);
// Launches all exchanges that were recorded and wait, with what they need; without the lock. Who
// waits for other processes outside of a program calls this before: they may wait for such an
// exchange.
void launch_exchanges();

}  // namespace torch_xla::dispatch
