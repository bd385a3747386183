// The one maker of signatures. What is static about a call is given argument by argument; equal
// calls get one signature, whichever part of the recorder makes them.
#pragma once

#include "lazy/node.h"
#include "lazy/operator.h"

namespace torch_xla::lazy {

// Hashes what is static about a call. Before its outputs are added, it tells the calls of one
// operator apart that may differ in them.
class CallKey {
 public:
  // `op` is Operator::hash.
  explicit CallKey(const util::Hash128& op) {
    hasher_.add(op).add(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));
  }

  // Each adds the next argument of the schema, or the next element of a list that has begun.
  void none() { add(Tag::None); }
  // An argument that is a part of the program. Fails for what is no plain value.
  void fixed(const c10::IValue& value);
  void fixed(int64_t value) { add(Tag::Int).add(static_cast<uint64_t>(value)); }
  void fixed(bool value) { add(Tag::Bool).add(value); }
  void fixed(c10::IntArrayRef list);
  void tensor(const Geometry* geometry) { add(Tag::Tensor).add(geometry->hash); }
  // A tensor of the CPU without dimensions, whose value is the next runtime number.
  void zero_dim(at::ScalarType dtype, bool wrapped_number) {
    add(wrapped_number ? Tag::WrappedNumber : Tag::ZeroDim).add(static_cast<uint64_t>(dtype));
  }
  void number(NumberKind kind) { add(Tag::Number).add(static_cast<uint64_t>(kind)); }
  void begin_list(size_t size) { add(Tag::List).add(size); }

  void output(const Geometry* geometry);  // null: an undefined tensor

  util::Hash128 finish() const { return hasher_.finish(); }

 private:
  // Stands before each part: None, True, 3 and 3.0 are never the same.
  enum class Tag : uint64_t {
    None = 0x11,
    Tensor,
    WrappedNumber,
    ZeroDim,
    Number,
    List,
    Bool,
    Int,
    Float,
    Complex,
    Text,
  };
  util::Hasher& add(Tag tag) { return hasher_.add(static_cast<uint64_t>(tag)); }

  util::Hasher hasher_;
};

class SignatureBuilder {
 public:
  explicit SignatureBuilder(const Operator& op);

  // As CallKey's.
  void none();
  void fixed(const c10::IValue& value);
  void tensor(const Geometry* geometry);
  void zero_dim(at::ScalarType dtype, bool wrapped_number, NumberKind kind);
  void number(NumberKind kind);
  void begin_list(size_t size);     // of tensors
  void begin_numbers(size_t size);  // of runtime numbers

  // After the arguments: the last number is a random seed.
  void seed();
  void output(const Geometry* geometry);
  uint32_t num_outputs() const { return static_cast<uint32_t>(signature_->outputs.size()); }

  // Ends the call. What is left of the schema's arguments is not given.
  c10::intrusive_ptr<Signature> build();

 private:
  Argument& next(Argument::Kind kind);
  void element(bool present);  // of the list that has begun
  void operand(const OperandInfo& info);

  c10::intrusive_ptr<Signature> signature_;
  CallKey key_;
  size_t left_in_list_ = 0;  // elements that the last argument still takes
};

// The signature with this key that was interned, if it is still known. Under the graph lock.
c10::intrusive_ptr<const Signature> known_signature(const util::Hash128& key);
// The one signature for its key. Under the graph lock.
c10::intrusive_ptr<const Signature> intern(c10::intrusive_ptr<Signature> signature);

}  // namespace torch_xla::lazy
