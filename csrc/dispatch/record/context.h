// Answers what every kernel asks: the current device, the seed of a call, the debug settings.
#pragma once

#include <ATen/core/stack.h>

#include "dispatch/calls/plan.h"
#include "lazy/tensor.h"

namespace torch_xla::dispatch {

int current_device();
// Returns the index of an xla device, the current one where it names none; -1 for other devices.
int current_device_or(const at::Device& device);

// Draws the seed of one random call: from its Generator argument, else from the device's state.
uint64_t seed_for(const torch::jit::Stack& stack, size_t base, const OperatorPlan& plan,
                  int device);

// Reads the debug flags that are too slow to read for each call. Done at import and at each sync.
void refresh_debug_flags();

// In eager mode each call runs at once, except in a region of torch_xla.compile.
void set_eager_mode(bool on);
bool is_eager_mode();
// Runs the call that was just recorded in eager mode, or when XLA_USE_EAGER_DEBUG_MODE asks for it.
void after_record(int device);

}  // namespace torch_xla::dispatch
