#include "dispatch/call.h"

#include <mutex>
#include <unordered_map>

#include "dispatch/plan.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Argument;
using lazy::Geometry;
using lazy::Signature;
using lazy::Value;

// Values are row-major whatever the strides of the tensor that they were recorded for.
const Geometry* geometry_of(const CallArgument& a) {
  if (a.geometry != nullptr) return a.geometry;
  const Geometry& g = a.value.geometry();
  return g.contiguous ? &g : lazy::intern_contiguous(g.dtype, g.sizes);
}

}  // namespace

void add_static(util::Hasher& h, const c10::IValue& v) {
  if (v.isInt()) {
    add(h, KeyTag::Int).add(static_cast<uint64_t>(v.toInt()));
  } else if (v.isBool()) {
    add(h, KeyTag::Bool).add(v.toBool());
  } else if (v.isNone() || v.isDevice()) {
    // Where a program runs is no part of what it computes.
    add(h, KeyTag::None);
  } else if (v.isDouble()) {
    add(h, KeyTag::Float).add_double(v.toDouble());
  } else if (v.isString()) {
    add(h, KeyTag::Text).add_bytes(v.toStringRef());
  } else if (v.isComplexDouble()) {
    const auto z = v.toComplexDouble();
    add(h, KeyTag::Complex).add_double(z.real()).add_double(z.imag());
  } else if (v.isList()) {
    const auto list = v.toListRef();
    add(h, KeyTag::List).add(list.size());
    for (const c10::IValue& e : list) add_static(h, e);
  } else {
    util::fail(util::ErrorKind::Type, "expected an argument that can be recorded, got ",
               v.tagKind(), ". Call the operator with plain Python values.");
  }
}

Value call(const char* op, int device, std::initializer_list<CallArgument> arguments,
           const Geometry* result) {
  util::Hasher h;
  h.add_bytes(op);
  lazy::Operands operands;
  for (const CallArgument& a : arguments) {
    if (a.value) {
      add(h, KeyTag::Tensor).add(geometry_of(a)->hash);
      operands.push_back(a.value);
    } else {
      add_static(h, a.fixed);
    }
  }
  h.add(result->hash);
  const util::Hash128 key = h.finish();

  static auto& table = *new std::unordered_map<util::Hash128, c10::intrusive_ptr<const Signature>,
                                               util::Hash128Hasher>;
  c10::intrusive_ptr<const Signature> signature;
  {
    const lazy::GraphLock lock;
    auto& slot = table[key];
    if (!slot.defined()) {
      auto s = c10::make_intrusive<Signature>();
      const std::string name(op);
      const size_t dot = name.find('.');
      s->op =
          find_operator({name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)})
              .get();
      s->key = key;
      s->arguments.resize(s->op->schema().arguments().size());
      for (auto& a : s->arguments) a.kind = Argument::Kind::None;
      size_t i = 0;
      for (const CallArgument& a : arguments) {
        Argument& argument = s->arguments.at(i++);
        if (a.value) {
          argument.kind = Argument::Kind::Tensor;
          argument.first = static_cast<uint32_t>(s->operands.size());
          s->operands.push_back({geometry_of(a), false, -1});
        } else if (!a.fixed.isNone()) {
          argument.kind = Argument::Kind::Static;
          argument.value = a.fixed;
        }
      }
      s->outputs.push_back(result);
      slot = std::move(s);
    }
    signature = slot;
    // Attributes that never repeat must not fill memory; nodes in flight keep what they use.
    if (table.size() > 65536) table.clear();
  }
  auto node =
      c10::make_intrusive<lazy::Node>(std::move(signature), std::move(operands), lazy::Numbers{});
  node->set_device(device);
  return {std::move(node), 0};
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
