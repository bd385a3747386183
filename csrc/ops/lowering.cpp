#include "ops/lowering.h"

#include <stdexcept>

#include "lazy/operator.h"
#include "ops/convert.h"

namespace torch_xla::ops {
namespace {

using Kind = lazy::Argument::Kind;

[[noreturn]] void mismatch(const lazy::Signature& signature, size_t arg, const char* expected) {
  throw std::logic_error(signature.op->name + ": lowering expected argument " +
                         std::to_string(arg) + " (" +
                         signature.op->schema().arguments()[arg].name() + ") to be " + expected +
                         ". Please report this operator.");
}

// PyTorch's three promotion priorities: tensors with dimensions, 0-dim tensors, Python numbers.
struct Promotion {
  at::ScalarType dims = at::ScalarType::Undefined;
  at::ScalarType zero_dim = at::ScalarType::Undefined;
  at::ScalarType number = at::ScalarType::Undefined;

  static at::ScalarType join(at::ScalarType a, at::ScalarType b) {
    if (a == at::ScalarType::Undefined) return b;
    if (b == at::ScalarType::Undefined) return a;
    return c10::promoteTypes(a, b);
  }
  static at::ScalarType weaker(at::ScalarType high, at::ScalarType low) {
    if (high == at::ScalarType::Undefined) return low;
    if (low == at::ScalarType::Undefined) return high;
    if (c10::isComplexType(high)) return high;
    if (c10::isFloatingType(high)) {
      return c10::isComplexType(low)
                 ? c10::promoteTypes(c10::toComplexType(high), c10::toComplexType(high))
                 : high;
    }
    if (high == at::ScalarType::Bool || c10::isFloatingType(low) || c10::isComplexType(low)) {
      return c10::promoteTypes(high, low);
    }
    return high;
  }
  at::ScalarType result() const { return weaker(dims, weaker(zero_dim, number)); }
};

// A Python number counts with the default dtype of its class.
at::ScalarType weak_dtype(at::ScalarType dtype, at::ScalarType default_dtype) {
  if (c10::isComplexType(dtype)) return c10::toComplexType(default_dtype);
  return c10::isFloatingType(dtype) ? default_dtype : dtype;
}

at::ScalarType number_dtype(lazy::NumberKind kind) {
  switch (kind) {
    case lazy::NumberKind::Float:
      return at::kDouble;
    case lazy::NumberKind::Int:
      return at::kLong;
    case lazy::NumberKind::UInt:
      return at::kUInt64;
    case lazy::NumberKind::Bool:
      return at::kBool;
    case lazy::NumberKind::Complex:
      return at::kComplexDouble;
  }
  return at::kDouble;
}

}  // namespace

const lazy::Argument& Lowering::argument(size_t arg) const { return signature_.arguments.at(arg); }

hlo::Value Lowering::in(size_t arg) const {
  const lazy::Argument& a = argument(arg);
  if (a.kind == Kind::Number) {
    return numbers_[a.first];
  }
  if (a.kind == Kind::Static && a.value.isScalar()) {
    return number(arg, to_hlo(a.value.toScalar().type()));
  }
  if (a.kind != Kind::Tensor) mismatch(signature_, arg, "a tensor");
  return operands_[a.first];
}

bool Lowering::has(size_t arg) const {
  const lazy::Argument& a = argument(arg);
  return a.kind != Kind::None && !(a.kind == Kind::Static && a.value.isNone());
}

std::vector<hlo::Value> Lowering::list(size_t arg) const {
  const lazy::Argument& a = argument(arg);
  if (a.kind != Kind::List) mismatch(signature_, arg, "a list of tensors");
  return {operands_.begin() + a.first, operands_.begin() + a.first + a.count};
}

std::vector<std::optional<hlo::Value>> Lowering::optional_list(size_t arg) const {
  const lazy::Argument& a = argument(arg);
  if (a.kind != Kind::List) mismatch(signature_, arg, "a list of optional tensors");
  std::vector<std::optional<hlo::Value>> values;
  if (a.present.empty()) {
    for (uint32_t i = 0; i < a.count; ++i) values.emplace_back(operands_[a.first + i]);
    return values;
  }
  uint32_t next = a.first;
  for (const bool present : a.present) {
    values.push_back(present ? std::optional(operands_[next++]) : std::nullopt);
  }
  return values;
}

hlo::Value Lowering::number(size_t arg, hlo::DType as) const {
  const lazy::Argument& a = argument(arg);
  if (a.kind == Kind::Tensor) return cast(hlo::reshape(operands_[a.first], {}), as);
  if (a.kind == Kind::Number) return cast(numbers_[a.first], as);
  if (a.kind != Kind::Static || a.value.isNone()) mismatch(signature_, arg, "a number");
  const c10::Scalar s = a.value.toScalar();
  if (s.isComplex()) {
    const auto c = s.toComplexDouble();
    const hlo::DType part = hlo::is_complex(as) ? hlo::real_part(as) : as;
    if (!hlo::is_complex(as)) return hlo::scalar(b, c.real(), as);
    return hlo::complex(hlo::scalar(b, c.real(), part), hlo::scalar(b, c.imag(), part));
  }
  if (s.isFloatingPoint()) {
    // A float that meets an integer type truncates, as PyTorch's Scalar::to does.
    if (!hlo::is_float(as) && !hlo::is_complex(as) && as != hlo::DType::Pred) {
      return hlo::scalar_int(b, static_cast<int64_t>(s.toDouble()), as);
    }
    return hlo::scalar(b, s.toDouble(), as);
  }
  return hlo::scalar_int(b, s.isBoolean() ? s.toBool() : s.toLong(), as);
}

int64_t Lowering::integer(size_t arg) const {
  const c10::IValue& v = attr(arg);
  if (v.isInt()) return v.toInt();
  if (v.isBool()) return v.toBool();
  if (v.isScalar()) return v.toScalar().toLong();
  mismatch(signature_, arg, "an int");
}

double Lowering::floating(size_t arg) const {
  const c10::IValue& v = attr(arg);
  if (v.isDouble()) return v.toDouble();
  if (v.isScalar()) return v.toScalar().toDouble();
  mismatch(signature_, arg, "a float");
}

bool Lowering::flag(size_t arg) const { return attr(arg).toBool(); }
std::string Lowering::text(size_t arg) const { return attr(arg).toStringRef(); }
std::vector<int64_t> Lowering::ints(size_t arg) const {
  const c10::IValue& v = attr(arg);
  if (v.isInt()) return {v.toInt()};
  return v.toIntVector();
}
std::vector<int64_t> Lowering::ints_or_empty(size_t arg) const {
  return has(arg) ? ints(arg) : std::vector<int64_t>{};
}

const lazy::Geometry& Lowering::geometry(size_t arg) const {
  const lazy::Argument& a = argument(arg);
  if (a.kind != Kind::Tensor) mismatch(signature_, arg, "a tensor");
  return *signature_.operands[a.first].geometry;
}

at::ScalarType Lowering::promoted(std::initializer_list<size_t> args) const {
  Promotion p;
  const auto add_number = [&](at::ScalarType dtype) {
    p.number = Promotion::join(p.number, weak_dtype(dtype, signature_.default_dtype));
  };
  const auto add = [&](const lazy::OperandInfo& info) {
    const at::ScalarType dtype = info.geometry->dtype;
    if (!info.geometry->sizes.empty()) {
      p.dims = Promotion::join(p.dims, dtype);
    } else if (info.wrapped_number) {
      add_number(dtype);
    } else {
      p.zero_dim = Promotion::join(p.zero_dim, dtype);
    }
  };
  for (const size_t arg : args) {
    const lazy::Argument& a = argument(arg);
    if (a.kind == Kind::Tensor || a.kind == Kind::List) {
      for (uint32_t i = 0; i < (a.kind == Kind::List ? a.count : 1); ++i) {
        add(signature_.operands[a.first + i]);
      }
    } else if (a.kind == Kind::Number) {
      add_number(number_dtype(signature_.numbers[a.first]));
    } else if (a.kind == Kind::Static && a.value.isScalar()) {
      add_number(a.value.toScalar().type());
    }
  }
  return p.result();
}

hlo::Value Lowering::in(size_t arg, hlo::DType dtype, const hlo::Dims& dims) const {
  return hlo::broadcast_to(cast(in(arg), dtype), dims);
}

hlo::Value Lowering::seed() const {
  if (signature_.num_seeds == 0) {
    throw std::logic_error(signature_.op->name +
                           ": lowering asked for a seed of an operator that "
                           "is not tagged nondeterministic_seeded. Please report this operator.");
  }
  return hlo::bitcast_convert(numbers_.back(), {hlo::DType::U64, {}});
}

}  // namespace torch_xla::ops
