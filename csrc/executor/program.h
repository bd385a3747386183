// Program, a compiled function: its executables, its interface, its results and the calls that it
// was made from. launch() runs it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "executor/lower.h"
#include "executor/numbers.h"
#include "executor/pieces.h"
#include "lazy/function.h"
#include "lazy/source.h"
#include "pjrt/client.h"
#include "util/hash.h"

namespace torch_xla::executor {

// The calls that a program was made from, as they were recorded. Some 40 bytes a call.
struct Recipe {
  struct Operand {
    uint32_t index;   // among the parameters, then the calls
    uint32_t result;  // of a call that gives several
  };
  struct Call {
    c10::intrusive_ptr<const lazy::Signature> signature;
    lazy::Source source;
    uint32_t first_operand, num_operands;  // in `operands`
  };
  uint32_t num_parameters = 0;
  std::vector<Call> calls;
  std::vector<Operand> operands;

  Recipe() = default;
  explicit Recipe(const lazy::Function& function);

  // Prints a call without its operands: aten::sqrt() : Float[5,2]  // train.py:3
  static std::string text_of(const Call& call, const std::string& operands = "");
  // One line per call, as lazy/print.h prints them.
  std::vector<std::string> lines() const;
  // Says where this one first differs from another, which came before it.
  std::string difference_from(const Recipe& last) const;
};

struct Program {
  std::string name;  // who asked for it: "sync", "read"
  util::Hash128 key;
  std::vector<std::unique_ptr<pjrt::Executable>> executables;  // one, where there is no plan
  std::optional<Plan> plan;
  Interface interface;
  std::vector<const lazy::Geometry*> results;
  std::vector<const spmd::Sharding*> shardings;  // of results; null, or none: each has the whole
  bool reuses_buffers = false;                   // those that its interface names
  bool can_fail = false;                         // once it runs: such a program is waited for
  Recipe recipe;
  std::string text;  // StableHLO, kept when XLA_CHECK_GRAPH_KEY was set
};

// Runs a program asynchronously, on the devices that it was compiled for; nothing else runs a
// Program. The arrays have a buffer on each device. Those whose buffers the program reuses are gone
// afterwards, but for those in the places `kept`. Throws pjrt::Error.
pjrt::Executable::ArrayResult launch(const Program& program, std::vector<const pjrt::Array*> arrays,
                                     const PackedNumbers& numbers,
                                     std::span<const pjrt::Device> devices,
                                     std::span<const int64_t> kept = {});

}  // namespace torch_xla::executor
