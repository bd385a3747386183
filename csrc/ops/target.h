// Target, what programs are made for: a platform, and what its compiler does not take.
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

struct Target {
  std::string_view platform;  // PJRT's name, in upper case
  std::span<const MissingDType> missing_dtypes = {};
  hlo::Lacks lacks = {};  // operations and forms of them
  // True where programs may call PyTorch's kernels, which only a process that has PyTorch can run.
  bool host_kernels = false;
  // True where replicas are processes of clients of their own: programs exchange values by a call
  // of the host's.
  bool exchanges_on_host = false;
  // True where devices compute parts of values: a kernel of PyTorch's would need its operands whole
  // on each, and is called where there is no other way only.
  bool partitioned = false;
  bool prefers_host_kernels() const { return host_kernels && !partitioned; }

  // Rules choose by these between ways that give the same values.
  bool is_cpu() const { return platform == "CPU"; }
  bool is_tpu() const { return platform == "TPU"; }

  bool has_dtype(at::ScalarType dtype) const;
  // Throws a TypeError where the platform lacks the dtype. `who` names the operator or function.
  void check_dtype(std::string_view who, at::ScalarType dtype) const;
};

// Names no platform: its programs hold what every compiler takes.
inline constexpr std::string_view kPortable = "PORTABLE";

// Returns the target of a platform; that of a platform which the table lacks is portable.
Target target_of(std::string_view platform);

}  // namespace torch_xla::ops
