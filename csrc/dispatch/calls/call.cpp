#include "dispatch/calls/call.h"

#include "dispatch/calls/plan.h"
#include "lazy/signature.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::Value;

// Values are row-major whatever the strides of the tensor that they were recorded for.
const Geometry* geometry_of(const CallArgument& a) {
  if (a.geometry != nullptr) return a.geometry;
  const Geometry& g = a.value.geometry();
  return g.contiguous ? &g : g.row_major();
}

}  // namespace

Value call(const char* op, int device, std::initializer_list<CallArgument> arguments,
           const Geometry* result) {
  lazy::CallKey key(hash_of_name(op));
  lazy::Operands operands;
  for (const CallArgument& a : arguments) {
    if (a.value) {
      key.tensor(geometry_of(a));
      operands.push_back(a.value);
    } else {
      key.fixed(a.fixed);
    }
  }
  key.output(result);

  const lazy::GraphLock lock;
  auto signature = lazy::known_signature(key.finish());
  if (!signature.defined()) {
    lazy::SignatureBuilder builder(*find_operator(lazy::operator_name(op)));
    for (const CallArgument& a : arguments) {
      if (a.value) {
        builder.tensor(geometry_of(a));
      } else {
        builder.fixed(a.fixed);
      }
    }
    builder.output(result);
    signature = lazy::intern(builder.build());
  }
  return {lazy::make_node(std::move(signature), std::move(operands), {}, device), 0};
}

Value cast(const Value& value, at::ScalarType dtype, int device) {
  const Geometry& g = value.geometry();
  if (g.dtype == dtype) return value;
  return call("aten::_to_copy", device, {value, c10::IValue(static_cast<int64_t>(dtype))},
              lazy::intern_contiguous(dtype, g.sizes));
}

Value reshape(const Value& value, c10::IntArrayRef sizes, int device) {
  const Geometry& g = value.geometry();
  if (sizes == c10::IntArrayRef(g.sizes)) return value;
  return call("aten::view", device, {value, c10::IValue(sizes)},
              lazy::intern_contiguous(g.dtype, sizes));
}

Value expand(const Value& value, c10::IntArrayRef sizes, int device) {
  const Geometry& g = value.geometry();
  if (sizes == c10::IntArrayRef(g.sizes)) return value;
  return call("aten::expand", device, {value, c10::IValue(sizes), c10::IValue(false)},
              lazy::intern_contiguous(g.dtype, sizes));
}

}  // namespace torch_xla::dispatch
