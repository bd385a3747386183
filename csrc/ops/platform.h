// What the compilers of platforms do not take: the one table.
#pragma once

#include <span>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "hlo/builder.h"

namespace torch_xla::ops {

struct MissingDType {
  at::ScalarType dtype;
  std::string_view advice;  // what to do instead
};

struct Limits {
  std::span<const MissingDType> dtypes;
  hlo::Lacks operations;
};

// Of a platform by its upper-case name ("TPU"); none where the table lacks it.
const Limits& limits_of(std::string_view platform);

bool has_dtype(std::string_view platform, at::ScalarType dtype);
// Throws a TypeError where the platform has no such dtype. `who`: the operator or function.
void check_dtype(std::string_view platform, std::string_view who, at::ScalarType dtype);

}  // namespace torch_xla::ops
