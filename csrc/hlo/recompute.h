// Counts what compilers compute anew in each reader of a value: they fuse the operations that lead
// to it into what reads it.
#pragma once

#include <cstdint>
#include <string_view>

namespace torch_xla::hlo {

// Returns what an operation adds to the work of those who read its result, or a negative number
// where the result lies in memory and is read there.
int64_t fused_work(std::string_view operation);

}  // namespace torch_xla::hlo
