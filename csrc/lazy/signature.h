// Makes all signatures. The caller adds the static part of a call argument by argument; equal calls
// get one signature, whichever part of the recorder makes them.
#pragma once

#include "lazy/node.h"
#include "lazy/operator.h"

namespace torch_xla::lazy {

// Hashes the static part of a call. Before the outputs are added, the key already tells apart calls
// whose outputs may differ.
class CallKey {
 public:
  // `op` is Operator::hash.
  explicit CallKey(const util::Hash128& op) {
    hasher_.add(op).add(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));
  }

  // Each of these adds the next argument of the schema, or the next element of the list that has
  // begun.
  void none() { add(Tag::None); }
  // Adds an argument that is a part of the program. Throws where it is no plain value.
  void fixed(const c10::IValue& value);
  void fixed(int64_t value) { add(Tag::Int).add(static_cast<uint64_t>(value)); }
  void fixed(bool value) { add(Tag::Bool).add(value); }
  void fixed(c10::IntArrayRef list);
  void tensor(const Geometry* geometry) { add(Tag::Tensor).add(geometry->hash); }
  // Adds a 0-dim CPU tensor, whose value is the next runtime number.
  void zero_dim(at::ScalarType dtype, bool wrapped_number) {
    add(wrapped_number ? Tag::WrappedNumber : Tag::ZeroDim).add(static_cast<uint64_t>(dtype));
  }
  void number(NumberKind kind) { add(Tag::Number).add(static_cast<uint64_t>(kind)); }
  void begin_list(size_t size) { add(Tag::List).add(size); }

  void output(const Geometry* geometry);  // null: an undefined tensor

  util::Hash128 finish() const { return hasher_.finish(); }

 private:
  // Precedes each part, so that None, True, 3 and 3.0 hash differently.
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

  // These add what CallKey's functions of the same names add.
  void none();
  void fixed(const c10::IValue& value);
  void tensor(const Geometry* geometry);
  void zero_dim(at::ScalarType dtype, bool wrapped_number, NumberKind kind);
  void number(NumberKind kind);
  void begin_list(size_t size);     // of tensors
  void begin_numbers(size_t size);  // of runtime numbers

  // Adds a random seed as the last number, after the arguments.
  void seed();
  void output(const Geometry* geometry);
  uint32_t num_outputs() const { return static_cast<uint32_t>(signature_->outputs.size()); }

  // Ends the call. Arguments of the schema that were not added count as not given.
  c10::intrusive_ptr<Signature> build();

 private:
  Argument& next(Argument::Kind kind);
  void element(bool present);  // of the list that has begun
  void operand(const OperandInfo& info);

  c10::intrusive_ptr<Signature> signature_;
  CallKey key_;
  size_t left_in_list_ = 0;  // elements that the last argument still takes
};

// Returns the interned signature with this key, or null. The caller holds the GraphLock.
c10::intrusive_ptr<const Signature> known_signature(const util::Hash128& key);
// Returns the one signature with this key: an earlier one, or the argument. The caller holds the
// GraphLock.
c10::intrusive_ptr<const Signature> intern(c10::intrusive_ptr<Signature> signature);

}  // namespace torch_xla::lazy
