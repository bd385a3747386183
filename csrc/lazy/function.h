// Function, a computation as it is stored: calls by index, over parameters. Everything that is
// compiled is one: the calls of a sync, the decomposition of an operator, the body of a loop. The
// numbers and random seeds of its calls are parameters too, unless its user makes them constants.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "lazy/node.h"
#include "lazy/walk.h"

namespace torch_xla::lazy {

// A value of a function.
struct Ref {
  uint32_t index = ~uint32_t{0};  // among the parameters, then the calls
  uint32_t result = 0;            // of a call that gives several

  explicit operator bool() const { return index != Ref().index; }  // false: no value
  friend auto operator<=>(const Ref&, const Ref&) = default;
};

struct Function {
  struct Call {
    c10::intrusive_ptr<const Signature> signature;
    Source source;
    uint32_t ordinal;                      // the call's number in texts of programs
    uint32_t first_operand, num_operands;  // in `operands`
    uint32_t first_number;                 // in `numbers`
  };
  std::vector<const Geometry*> parameters;
  std::vector<Call> calls;  // operands before users
  std::vector<Ref> operands;
  std::vector<Number> numbers;  // that the calls were recorded with
  std::vector<Ref> results;     // none where the function does not give one

  size_t num_values() const { return parameters.size() + calls.size(); }
  bool is_parameter(const Ref& r) const { return r.index < parameters.size(); }
  uint32_t index_of(size_t call) const { return static_cast<uint32_t>(parameters.size() + call); }
  size_t call_of(const Ref& r) const { return r.index - parameters.size(); }  // no parameter
  const Geometry& geometry(const Ref& r) const {
    return is_parameter(r) ? *parameters[r.index] : *calls[call_of(r)].signature->outputs[r.result];
  }
  std::span<const Ref> operands_of(const Call& call) const {
    return std::span(operands).subspan(call.first_operand, call.num_operands);
  }
  std::span<const Number> numbers_of(const Call& call) const {
    return std::span(numbers).subspan(call.first_number, call.signature->numbers.size());
  }
  size_t num_seeds() const;  // that the calls draw

  // Adds a call of these operands, whose ordinal is its place, and returns it.
  Call& add(const c10::intrusive_ptr<const Signature>& signature, const Source& source,
            std::span<const Ref> of, std::span<const Number> with);

  // Over all that decides what is computed from parameters and seeds.
  util::Hash128 hash() const;
  // One line per call, as lazy/print.h prints them.
  std::vector<std::string> lines() const;
};

// Hashes a computation part by part, in the order of a walk. Values are given by their places in
// that order.
class FunctionKey {
 public:
  void parameter(const Geometry& geometry) { hasher_.add(0xda7a).add(geometry.hash); }
  void call(const Signature& signature) { hasher_.add(signature.key); }
  // An operand of the last call, or a result.
  void value(uint32_t place, uint32_t result) { hasher_.add((uint64_t{place} << 32) | result); }
  // A number of the last call that is a part of the computation.
  void constant(size_t i, const Number& number) {
    hasher_.add(0xc0de + i).add(static_cast<uint64_t>(number.integer)).add_double(number.imag);
  }
  util::Hasher& hasher() { return hasher_; }

 private:
  util::Hasher hasher_;
};

// Stores what a walk has found.
Function function_of(const Walk& walk);
// Stores the calls that compute `results`, as far as they `belong` to the function, over
// `parameters`. Every other value on the way becomes a parameter after those, and is added to
// `captured`. An undefined result is none.
Function function_of(std::span<const Value> parameters, std::span<const Value> results,
                     c10::function_ref<bool(const Node&)> belongs, std::vector<Value>& captured);

// Returns the function with the calls of large expansions in place of the calls that they expand.
// `opened` takes, of each call of the function, where the calls that stand for it begin, and the
// number of all.
Function open(const Function& function, c10::function_ref<bool(const Signature&)> is_large,
              std::vector<size_t>* opened = nullptr);

// A leaf without data: it stands for what a function will be given.
Value placeholder(const Geometry& geometry, int device);

struct Instance {
  std::vector<c10::intrusive_ptr<Node>> calls;
  std::vector<Value> results;
};
// Makes the calls of a function over values that stand for its parameters, with these numbers in
// place of its own. A call takes the node of its `places` where there is one, data so far, so that
// whoever refers to that has the call.
Instance instantiate(const Function& function, std::span<const Value> parameters,
                     std::span<const Number> numbers, int device,
                     std::span<const c10::intrusive_ptr<Node>> places = {});
// Makes one of the calls.
c10::intrusive_ptr<Node> instantiate(const Function::Call& call, Operands&& operands,
                                     std::span<const Number> numbers, int device);

}  // namespace torch_xla::lazy
