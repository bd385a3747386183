// Ends a fusion on the CPU platform: a call of this process that does nothing, between values and
// those who read them. It is a typed FFI handler, registered under kInMemoryTarget for platform
// "Host". (XLA's CPU compiler drops stablehlo.optimization_barrier before it fuses.)
#pragma once

#include "hlo/builder.h"

namespace torch_xla::cpu {

inline constexpr char kInMemoryTarget[] = "torch_xla.in_memory";
// The XLA_FFI_Handler*. It needs nothing of this process.
void* in_memory_handler();

// The values, as their readers find them in memory: each when all of them are there.
hlo::Values in_memory(const hlo::Values& values);

}  // namespace torch_xla::cpu
