// Cuts a program into pieces that run one after the other. Where parts of it repeat, as layers of a
// network do, one executable runs them all: the compiler's time does not grow with their number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "executor/program/lower.h"
#include "executor/program/numbers.h"
#include "executor/program/repeats.h"

namespace torch_xla::executor {

// One run of an executable. Arrays lie in slots; the program's parameters have the first ones.
struct Piece {
  uint32_t executable;
  std::vector<uint32_t> arguments;     // slots
  std::vector<uint32_t> results;       // slots
  std::vector<uint32_t> floats, ints;  // which of the program's numbers it takes, then constants
  std::vector<uint32_t> ended;         // slots of results that nothing reads any more
};

struct Plan {
  std::vector<Piece> pieces;
  std::vector<uint32_t> results;  // of the program: slots
  uint32_t num_slots = 0;
  PackedNumbers constants;  // numbers that each run takes beside its own
};

struct LoweredPieces {
  std::vector<Lowered> executables;
  Plan plan;
};

// Programs beyond these limits are cut. Guarded by the GraphLock; tests change it.
struct PieceLimits {
  RepeatLimits repeats;
  size_t saved = 800;  // calls that need not be compiled
};
PieceLimits& piece_limits();

// Returns nothing where the program is better compiled whole: where few calls repeat, and, unless
// it is asked for, on other targets than the CPU.
std::optional<LoweredPieces> lower_in_pieces(const lazy::Function& function,
                                             const Interface& interface, const ops::Target& target);

}  // namespace torch_xla::executor
