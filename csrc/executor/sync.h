// Turns recorded values into data: finds or compiles the program of a graph and launches it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lazy/tensor.h"

namespace torch_xla::executor {

// Data that the metrics count from its making to its end.
lazy::DeviceData counted(std::shared_ptr<pjrt::Array> array);
// A leaf that stands for data on a device.
lazy::Value data_value(const lazy::Geometry* geometry, int device, lazy::DeviceData data);

// Computes everything that waits on a device and lets overwritten buffers be reused. Returns once
// the run is launched, or done if `wait`. Nothing is lost when it throws.
void sync_device(int device, bool wait);

// Computes these values, and what else needs something on the way to them; the rest of the graph
// stays recorded. They come back as data.
void materialize(std::vector<lazy::Value>& values, int device);

// Waits until the device has finished all runs; throws what failed since the last call.
void wait_device(int device);

// StableHLO of the graph that computes these values, for the platform in use or for another.
std::string stablehlo_of(const std::vector<lazy::Value>& values, int device,
                         std::string_view platform = {});
// Its key among the compiled programs.
util::Hash128 graph_hash_of(const std::vector<lazy::Value>& values, int device);

}  // namespace torch_xla::executor
