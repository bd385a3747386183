// The reductions that writes at indices compute.
#pragma once

#include <string_view>

#include "hlo/ops.h"

namespace torch_xla::ops {

// The `reduce` argument of index_reduce and scatter_reduce.
enum class Reduction { Sum, Prod, Mean, Max, Min };
Reduction reduction_of(std::string_view name, std::string_view op);
hlo::Value reduction_identity(hlo::Builder& b, Reduction reduction, const hlo::Type& type);
hlo::Combine combine_of(Reduction reduction);
// Divides; integers round down.
hlo::Value divide_for_mean(const hlo::Value& sum, const hlo::Value& count);

}  // namespace torch_xla::ops
