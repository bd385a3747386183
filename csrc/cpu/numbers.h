// Cuts the packed numbers of a program of the CPU platform, each into a scalar of its own, by one
// call of this process: a typed FFI handler, registered under kNumbersTarget for platform "Host".
#pragma once

#include <span>

#include "hlo/builder.h"

namespace torch_xla::cpu {

inline constexpr char kNumbersTarget[] = "torch_xla.numbers";
// The XLA_FFI_Handler*. It needs nothing of this process.
void* numbers_handler();

// The numbers of one-dimensional arrays of 64-bit elements, array after array.
hlo::Values cut_numbers(std::span<const hlo::Value> packed);

}  // namespace torch_xla::cpu
