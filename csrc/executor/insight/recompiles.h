// Says why a line of the user's program needs another program than the one that it had: which
// earlier one is nearest, what is different, and what to do. Costs nothing until one is compiled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/compile/cause.h"
#include "executor/program/program.h"

namespace torch_xla::executor {

struct Recompile {
  uint64_t number;   // of the program among those of its line, from 2
  std::string name;  // Program::name
  std::string place;
  double seconds;  // that the compiler took; 0 where it was not asked
  bool from_disk;  // or from another process of the job
  bool from_job;
  std::string key, earlier_key;
  // The kind is one of Difference::Kind, "memory", "sharding" or "settings"; then the place.
  std::string kind, what, line, earlier_line;
  std::string advice;

  std::string str() const;
};

// Called for each new program before it is kept, with the seconds that its compiler took, or none
// if it came from the disk. Warns of recompiles, the less often the more a line has had, unless
// XLA_EXPLAIN says not to.
void note_program(const Program& program, const Cause& cause, std::optional<double> seconds);
// Called where all programs are dropped: each line begins anew.
void forget_lines();
// The newest of them, oldest first; the caller takes them where `clear`.
std::vector<Recompile> recompiles(bool clear);

}  // namespace torch_xla::executor
