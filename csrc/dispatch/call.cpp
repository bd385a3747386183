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

void hash_static(util::Hasher& h, const c10::IValue& v) {
  if (v.isNone()) {
    h.add(1);
  } else if (v.isInt()) {
    h.add(2).add(static_cast<uint64_t>(v.toInt()));
  } else if (v.isIntList()) {
    const auto list = v.toIntVector();
    h.add(3).add(list.size());
    for (const int64_t i : list) h.add(static_cast<uint64_t>(i));
  } else if (v.isBool()) {
    h.add(4).add(v.toBool());
  } else if (v.isDouble()) {
    h.add(5).add_double(v.toDouble());
  } else {
    util::fail(util::ErrorKind::Runtime, "call: expected an int, int list, bool or float, got ",
               v.tagKind());
  }
}

// Values are row-major whatever the strides of the tensor that they were recorded for.
const Geometry* geometry_of(const CallArgument& a) {
  if (a.geometry != nullptr) return a.geometry;
  const Geometry& g = a.value.geometry();
  return g.contiguous ? &g : lazy::intern_contiguous(g.dtype, g.sizes);
}

}  // namespace

Value call(const char* op, int device, std::initializer_list<CallArgument> arguments,
           const Geometry* result) {
  util::Hasher h;
  h.add_bytes(op);
  lazy::Operands operands;
  for (const CallArgument& a : arguments) {
    if (a.value) {
      h.add(7).add(geometry_of(a)->hash);
      operands.push_back(a.value);
    } else {
      hash_static(h, a.fixed);
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
