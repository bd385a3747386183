// The recorded graph: a node is one ATen call, a value is one of its results.
// All that is static about a call sits in its interned Signature; a node adds operands and numbers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include "lazy/geometry.h"
#include "lazy/source.h"
#include "util/hash.h"

namespace torch_xla::pjrt {
class Array;
}

namespace torch_xla::lazy {

class Node;
struct Operator;  // an ATen operator as the recorder knows it (lazy/operator.h)

// One argument of the schema, as a Signature holds it.
struct Argument {
  enum class Kind : uint8_t {
    Static,  // `value` holds it: part of the program's identity
    None,    // an optional argument that was not given
    Tensor,  // operand `first`
    List,    // operands first .. first+count (Tensor[], or Tensor?[] with gaps in `present`)
    Number,  // dynamic scalar `first`: a runtime input of the program
  };
  Kind kind = Kind::Static;
  uint32_t first = 0;
  uint32_t count = 0;
  std::vector<bool> present;  // of a Tensor?[] with gaps: one entry per element
  c10::IValue value;
};

// A number that reaches the program at run time, by its class in PyTorch's type promotion.
// UInt is an integer that needs 64 bits without a sign; `integer` holds its bits.
enum class NumberKind : uint8_t { Float, Int, Bool, Complex, UInt };

// Describes one operand of a call.
struct OperandInfo {
  const Geometry* geometry = nullptr;
  bool wrapped_number = false;  // a Python number: weak in type promotion
  // Not negative: this operand is a 0-dim CPU tensor whose value travels as this dynamic scalar.
  int32_t number = -1;
};

struct Function;  // lazy/function.h

// The static part of a recorded call. Interned: one per distinct call, shared by its nodes.
struct Signature : c10::intrusive_ptr_target {
  const Operator* op = nullptr;
  util::Hash128 key;                     // over everything below: the node's share of a graph key
  std::vector<Argument> arguments;       // in schema order
  std::vector<OperandInfo> operands;     // in the order of Node::operands
  std::vector<NumberKind> numbers;       // in the order of Node::numbers
  std::vector<const Geometry*> outputs;  // of the functional form
  uint32_t num_seeds = 0;                // the last numbers are fresh random seeds
  // PyTorch's default dtype at the call; it may have changed when the program is made.
  at::ScalarType default_dtype = c10::get_default_dtype_as_scalartype();
  // The calls that the call is made of: the decomposition of an operator without a lowering of its
  // own, or a traced function.
  std::shared_ptr<const Function> expansion;
  // The functions that a control flow operator runs.
  std::vector<std::shared_ptr<const Function>> regions;

  bool is_seed(size_t number) const { return number + num_seeds >= numbers.size(); }
};

// Result `index` of `node`.
struct Value {
  c10::intrusive_ptr<Node> node;
  uint32_t index = 0;

  explicit operator bool() const { return node.defined(); }
  friend bool operator==(const Value& a, const Value& b) {
    return a.node == b.node && a.index == b.index;
  }
  const Geometry& geometry() const;
};

// A runtime number. Complex numbers use both halves.
struct Number {
  union {
    double real;
    int64_t integer;
  };
  double imag = 0;
};

// Device memory that a node stands for; filled when a run is launched.
struct DeviceData {
  std::shared_ptr<pjrt::Array> array;
  bool donatable = true;  // false for memory that the host shares
};

using Operands = c10::SmallVector<Value, 3>;
using Numbers = c10::SmallVector<Number, 1>;

// Returns a number that this process has not given before; on one thread, the larger the later.
uint64_t next_id();
// Returns a number above all that were given so far, and below those that this thread gets next.
uint64_t id_boundary();

class Node final : public c10::intrusive_ptr_target {
 public:
  // A recorded call, as `make_node` makes it.
  Node(c10::intrusive_ptr<const Signature> signature, Operands&& operands, Numbers&& numbers,
       int device)
      : device_(device),
        signature_(std::move(signature)),
        operands_(std::move(operands)),
        numbers_(std::move(numbers)) {}
  // A leaf: data on the device.
  Node(const Geometry* geometry, int device, DeviceData data)
      : is_data_(true), device_(device), leaf_geometry_(geometry), data_(std::move(data)) {}
  ~Node() override;

  // Nodes lie next to each other: a walk over thousands that malloc has scattered over a large heap
  // waits for memory at each of them.
  static void* operator new(size_t size);
  static void operator delete(void* node);

  bool is_data() const { return is_data_; }
  const DeviceData& data() const { return data_; }
  int device() const { return device_; }
  uint64_t id() const { return id_; }  // next_id() of the time it was made

  const Signature& signature() const { return *signature_; }
  const c10::intrusive_ptr<const Signature>& shared_signature() const { return signature_; }
  const Operands& operands() const { return operands_; }
  const Numbers& numbers() const { return numbers_; }
  const Geometry& output(size_t i) const {
    return is_data_ ? *leaf_geometry_ : *signature_->outputs[i];
  }
  size_t num_outputs() const { return is_data_ ? 1 : signature_->outputs.size(); }

  // A call with one result that has been computed becomes a leaf; its operands are let go.
  void become_data(DeviceData data);
  // Data that cannot be had becomes a call with one result. The caller sets its source.
  void become_call(c10::intrusive_ptr<const Signature> signature, Operands&& operands,
                   Numbers&& numbers);

  // For PyTorch: called when only weak references are left.
  void release_resources() override;

  // The line of the user's program that recorded this call; empty for data.
  const Source& source() const { return source_; }
  Source& source() { return source_; }

  // In the NodeSet that it has entered last (lazy/walk.h). Guarded by the GraphLock.
  mutable uint32_t place = 0;

 private:
  // Releases the operands without recursion: a long chain of nodes must not exhaust the stack.
  void release_operands();

  const uint64_t id_ = next_id();
  bool is_data_ = false;
  int device_ = 0;
  c10::intrusive_ptr<const Signature> signature_;
  Operands operands_;
  Numbers numbers_;
  const Geometry* leaf_geometry_ = nullptr;
  DeviceData data_;
  Source source_;
};

// Makes the node of a recorded call; every call is recorded by it. `source` is its place in the
// user's program, if that is not the place which the thread has reached. The caller holds the
// GraphLock.
c10::intrusive_ptr<Node> make_node(c10::intrusive_ptr<const Signature> signature,
                                   Operands&& operands, Numbers&& numbers, int device,
                                   const Source* source = nullptr);

inline const Geometry& Value::geometry() const { return node->output(index); }

}  // namespace torch_xla::lazy
