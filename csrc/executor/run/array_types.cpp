#include "executor/run/array_types.h"

#include <cctype>
#include <utility>

#include <c10/util/accumulate.h>

#include "executor/run/runtime.h"
#include "ops/dtypes.h"
#include "spmd/sharding.h"
#include "util/error.h"

namespace torch_xla::executor {

namespace {

constexpr std::pair<at::ScalarType, pjrt::DType> kDtypes[] = {
    {at::kBool, PJRT_Buffer_Type_PRED},
    {at::kByte, PJRT_Buffer_Type_U8},
    {at::kChar, PJRT_Buffer_Type_S8},
    {at::kShort, PJRT_Buffer_Type_S16},
    {at::kInt, PJRT_Buffer_Type_S32},
    {at::kLong, PJRT_Buffer_Type_S64},
    {at::kUInt16, PJRT_Buffer_Type_U16},
    {at::kUInt32, PJRT_Buffer_Type_U32},
    {at::kUInt64, PJRT_Buffer_Type_U64},
    {at::kBFloat16, PJRT_Buffer_Type_BF16},
    {at::kHalf, PJRT_Buffer_Type_F16},
    {at::kFloat, PJRT_Buffer_Type_F32},
    {at::kDouble, PJRT_Buffer_Type_F64},
    {at::kComplexFloat, PJRT_Buffer_Type_C64},
    {at::kComplexDouble, PJRT_Buffer_Type_C128},
    {at::kFloat8_e4m3fn, PJRT_Buffer_Type_F8E4M3FN},
    {at::kFloat8_e4m3fnuz, PJRT_Buffer_Type_F8E4M3FNUZ},
    {at::kFloat8_e5m2, PJRT_Buffer_Type_F8E5M2},
    {at::kFloat8_e5m2fnuz, PJRT_Buffer_Type_F8E5M2FNUZ},
};

}  // namespace

pjrt::DType to_pjrt(at::ScalarType dtype) {
  Runtime::get().target().check_dtype("to('xla')", dtype);
  ops::to_hlo(dtype);  // refuses what XLA lacks
  for (const auto& [torch, xla] : kDtypes) {
    if (torch == dtype) return xla;
  }
  util::fail(util::ErrorKind::Runtime, "xla: expected a dtype of PJRT buffers, got ",
             c10::toString(dtype), ". Please report this.");
}

at::ScalarType to_torch(pjrt::DType dtype) {
  for (const auto& [torch, xla] : kDtypes) {
    if (xla == dtype) return torch;
  }
  util::fail(util::ErrorKind::Type, "xla: expected a buffer of a dtype that PyTorch has, got ",
             pjrt::dtype_name(dtype), ".");
}

std::string xla_shape(const lazy::Geometry& geometry) {
  std::string type = pjrt::dtype_name(to_pjrt(ops::device_dtype(geometry.dtype)));
  for (char& c : type) c = static_cast<char>(std::tolower(c));
  std::string sizes, order;
  for (size_t i = 0; i < geometry.sizes.size(); ++i) {
    const char* comma = i == 0 ? "" : ",";
    sizes += comma + std::to_string(geometry.sizes[i]);
    order += comma + std::to_string(geometry.sizes.size() - 1 - i);
  }
  return type + "[" + sizes + "]" + (order.empty() ? "" : "{" + order + "}");
}

at::ScalarType held_dtype(const pjrt::Array& array) { return to_torch(array.dtype()); }

const spmd::Sharding* held_sharding(const spmd::Sharding* sharding, at::IntArrayRef sizes) {
  const bool is_split = sharding != nullptr && !sharding->is_replicated();
  return is_split && c10::multiply_integers(sizes) != 0 ? sharding : nullptr;
}

}  // namespace torch_xla::executor
