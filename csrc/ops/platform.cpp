#include "ops/platform.h"

#include <algorithm>
#include <utility>

#include "util/error.h"

namespace torch_xla::ops {
namespace {

constexpr MissingDType kTpuDTypes[] = {
    {at::kComplexDouble, "A TPU has no complex128; use complex64."},
};

const std::pair<std::string_view, Limits> kPlatforms[] = {
    {"CPU", {{}, {.updates_from_self = true}}},
    {"TPU", {kTpuDTypes, {.wide_products = true}}},
};

const MissingDType* missing(std::string_view platform, at::ScalarType dtype) {
  const std::span<const MissingDType> dtypes = limits_of(platform).dtypes;
  const auto found = std::ranges::find(dtypes, dtype, &MissingDType::dtype);
  return found == dtypes.end() ? nullptr : &*found;
}

}  // namespace

const Limits& limits_of(std::string_view platform) {
  static const Limits none;
  for (const auto& [name, limits] : kPlatforms) {
    if (name == platform) return limits;
  }
  return none;
}

bool has_dtype(std::string_view platform, at::ScalarType dtype) {
  return missing(platform, dtype) == nullptr;
}

void check_dtype(std::string_view platform, std::string_view who, at::ScalarType dtype) {
  const MissingDType* found = missing(platform, dtype);
  TXLA_CHECK_KIND(util::ErrorKind::Type, found == nullptr, who, ": expected a dtype that ",
                  platform, " has, got ", c10::getDtypeNames(dtype).first, ". ", found->advice);
}

}  // namespace torch_xla::ops
