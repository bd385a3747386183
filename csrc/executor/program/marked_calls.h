// The calls of a function with what its marks (ops::Mark) say: which of them are one operation of
// another compiler, and what place the program gives a call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "executor/program/stretch.h"
#include "lazy/function.h"

namespace torch_xla::executor {

// Calls between marks of one id: what a compiler may have under a name.
struct Composite {
  std::string name;
  std::string attributes;       // an MLIR dictionary
  Stretch stretch;              // takes results of marks, then what the calls take beside them
  std::vector<uint32_t> marks;  // the calls that mark its outputs
};

// Composites inside of others are a part of those.
class MarkedCalls {
 public:
  // The function lives as long as this does. Throws where a composite's inputs need its outputs.
  explicit MarkedCalls(const lazy::Function& function);

  struct Step {
    uint32_t call;               // in Function::calls, where there is no
    const Composite* composite;  // or null
  };
  // All of the function, operands before users.
  std::span<const Step> steps() const { return steps_; }
  // Returns the text that the program gives a call for a location, or none.
  std::string place_of(uint32_t call) const;

 private:
  void find();
  void fill(Composite& composite);
  void drop_nested();
  void order();

  const lazy::Function& function_;
  std::vector<std::unique_ptr<Composite>> composites_;
  std::unordered_map<uint32_t, const Composite*> owner_;  // of output marks
  std::unordered_map<uint32_t, std::string> places_;
  std::vector<Step> steps_;
};

}  // namespace torch_xla::executor
