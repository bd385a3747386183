#include "ops/target.h"

#include <algorithm>

#include "util/error.h"

namespace torch_xla::ops {
namespace {

constexpr MissingDType kTpuDTypes[] = {
    {at::kComplexDouble, "A TPU has no complex128; use complex64."},
};

const Target kTargets[] = {
    {.platform = "CPU",
     .lacks = {.updates_from_self = true, .several_contracted = true, .vector_extremes = true},
     .host_kernels = true,
     .exchanges_on_host = true},
    {.platform = "CUDA", .lacks = {.integer_convolutions = true}},
    {.platform = "TPU", .missing_dtypes = kTpuDTypes, .lacks = {.wide_products = true}},
};

const MissingDType* missing(const Target& target, at::ScalarType dtype) {
  const auto found = std::ranges::find(target.missing_dtypes, dtype, &MissingDType::dtype);
  return found == target.missing_dtypes.end() ? nullptr : &*found;
}

}  // namespace

Target target_of(std::string_view platform) {
  const auto found = std::ranges::find(kTargets, platform, &Target::platform);
  return found == std::end(kTargets) ? Target{.platform = platform} : *found;
}

bool Target::has_dtype(at::ScalarType dtype) const { return missing(*this, dtype) == nullptr; }

void Target::check_dtype(std::string_view who, at::ScalarType dtype) const {
  const MissingDType* found = missing(*this, dtype);
  TXLA_CHECK_KIND(util::ErrorKind::Type, found == nullptr, who, ": expected a dtype that ",
                  platform, " has, got ", c10::getDtypeNames(dtype).first, ". ", found->advice);
}

}  // namespace torch_xla::ops
