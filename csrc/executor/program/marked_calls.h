// The calls of a function with what its marks (ops::Mark) say: which of them are one operation of
// another compiler, and what place the program gives a call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "lazy/function.h"

namespace torch_xla::executor {

// Calls between marks of one id: what a compiler may have under a name.
struct Composite {
  struct Input {
    const lazy::Node* node;
    uint32_t index;
  };
  std::string name;
  std::string attributes;                  // an MLIR dictionary
  std::vector<Input> inputs;               // marks, then what the calls take beside them
  std::vector<const lazy::Node*> calls;    // operands before users
  std::vector<const lazy::Node*> outputs;  // marks
};

// Composites inside of others are a part of those.
class MarkedCalls {
 public:
  // The function lives as long as this does. Throws where a composite's inputs need its outputs.
  explicit MarkedCalls(const lazy::Function& function);

  struct Step {
    const lazy::Node* call;      // or
    const Composite* composite;  // not null
  };
  // All of the function, operands before users.
  std::span<const Step> steps() const { return steps_; }
  // Returns the text that the program gives a call for a location, or none.
  std::string place_of(const lazy::Node& call) const;

 private:
  void find(const lazy::Function& function);
  void fill(Composite& composite);
  void drop_nested();
  void order(const lazy::Function& function);

  std::vector<std::unique_ptr<Composite>> composites_;
  std::unordered_map<const lazy::Node*, const Composite*> owner_;  // of calls and output marks
  std::unordered_map<const lazy::Node*, std::string> places_;
  std::vector<Step> steps_;
};

}  // namespace torch_xla::executor
