#include "lazy/signature.h"

#include "util/error.h"
#include "util/memo.h"

namespace torch_xla::lazy {

void CallKey::fixed(const c10::IValue& v) {
  if (v.isInt()) {
    fixed(v.toInt());
  } else if (v.isBool()) {
    fixed(v.toBool());
  } else if (v.isNone() || v.isDevice()) {
    none();  // where a program runs is no part of what it computes
  } else if (v.isDouble()) {
    add(Tag::Float).add_double(v.toDouble());
  } else if (v.isString()) {
    add(Tag::Text).add_bytes(v.toStringRef());
  } else if (v.isComplexDouble()) {
    const auto z = v.toComplexDouble();
    add(Tag::Complex).add_double(z.real()).add_double(z.imag());
  } else if (v.isList()) {
    const auto list = v.toListRef();
    begin_list(list.size());
    for (const c10::IValue& e : list) fixed(e);
  } else {
    util::fail(util::ErrorKind::Type, "expected an argument that can be recorded, got ",
               v.tagKind(), ". Call the operator with plain Python values.");
  }
}

void CallKey::fixed(c10::IntArrayRef list) {
  begin_list(list.size());
  for (const int64_t v : list) fixed(v);
}

void CallKey::output(const Geometry* geometry) {
  if (geometry == nullptr) {
    none();
  } else {
    tensor(geometry);
  }
}

SignatureBuilder::SignatureBuilder(const Operator& op)
    : signature_(c10::make_intrusive<Signature>()), key_(op.hash) {
  signature_->op = &op;
  signature_->arguments.reserve(op.schema().arguments().size());
}

Argument& SignatureBuilder::next(Argument::Kind kind) {
  Argument& argument = signature_->arguments.emplace_back();
  argument.kind = kind;
  const bool is_number = kind == Argument::Kind::Number;
  argument.first =
      static_cast<uint32_t>(is_number ? signature_->numbers.size() : signature_->operands.size());
  return argument;
}

void SignatureBuilder::element(bool present) {
  Argument& list = signature_->arguments.back();
  list.present.push_back(present);
  if (present) ++list.count;
  if (--left_in_list_ == 0 && list.count == list.present.size()) list.present.clear();
}

void SignatureBuilder::none() {
  key_.none();
  if (left_in_list_ != 0) {
    element(false);
  } else {
    next(Argument::Kind::None);
  }
}

void SignatureBuilder::fixed(const c10::IValue& value) {
  if (value.isNone() || value.isDevice()) {
    none();
    return;
  }
  key_.fixed(value);
  next(Argument::Kind::Static).value = value;
}

void SignatureBuilder::operand(const OperandInfo& info) {
  if (left_in_list_ != 0) {
    element(true);
  } else {
    next(Argument::Kind::Tensor).count = 1;
  }
  signature_->operands.push_back(info);
}

void SignatureBuilder::tensor(const Geometry* geometry) {
  key_.tensor(geometry);
  operand({geometry, false, -1});
}

void SignatureBuilder::zero_dim(at::ScalarType dtype, bool wrapped_number, NumberKind kind) {
  key_.zero_dim(dtype, wrapped_number);
  operand({lazy::intern(dtype, {}, {}), wrapped_number,
           static_cast<int32_t>(signature_->numbers.size())});
  signature_->numbers.push_back(kind);
}

void SignatureBuilder::number(NumberKind kind) {
  key_.number(kind);
  if (left_in_list_ != 0) {
    element(true);
  } else {
    next(Argument::Kind::Number);
  }
  signature_->numbers.push_back(kind);
}

void SignatureBuilder::begin_list(size_t size) {
  key_.begin_list(size);
  next(Argument::Kind::List);
  left_in_list_ = size;
}

void SignatureBuilder::begin_numbers(size_t size) {
  key_.begin_list(size);
  next(Argument::Kind::Number);
  left_in_list_ = size;
}

void SignatureBuilder::seed() {
  signature_->numbers.push_back(NumberKind::Int);
  ++signature_->num_seeds;
}

void SignatureBuilder::output(const Geometry* geometry) {
  key_.output(geometry);
  signature_->outputs.push_back(geometry);
}

c10::intrusive_ptr<Signature> SignatureBuilder::build() {
  const size_t taken = signature_->op->schema().arguments().size();
  while (signature_->arguments.size() < taken) next(Argument::Kind::None);
  signature_->key = key_.finish();
  return std::move(signature_);
}

namespace {

util::Memo<c10::intrusive_ptr<const Signature>, 65536>& interned() {
  static auto& signatures = *new util::Memo<c10::intrusive_ptr<const Signature>, 65536>;
  return signatures;
}

}  // namespace

c10::intrusive_ptr<const Signature> known_signature(const util::Hash128& key) {
  const auto* signature = interned().find(key);
  return signature == nullptr ? c10::intrusive_ptr<const Signature>() : *signature;
}

c10::intrusive_ptr<const Signature> intern(c10::intrusive_ptr<Signature> signature) {
  const util::Hash128 key = signature->key;
  if (const auto* known = interned().find(key)) return *known;
  return interned().add(key, std::move(signature));
}

}  // namespace torch_xla::lazy
