// Makes a program of dynamic sizes out of programs that were built alike for several sizes: where
// their texts differ tells what depends on a size, and how.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace torch_xla::hlo {

struct SizedProgram {
  std::vector<int64_t> sizes;  // of each dynamic size
  std::string text;            // as Builder prints it, with locations
};

// Sizes in the result are `?`, and operations that need them get them as operands, computed from
// the sizes of main's arguments. Each must be n * s + m or n * s * t + m of dynamic sizes s and t;
// with at least three programs, whose sizes differ in their remainders by small numbers, no other
// dependence looks like that. Throws where one does not, or an operation has no dynamic form, and
// names the operator and its line.
std::string dynamic_program(std::span<const SizedProgram> programs, bool with_locations);

}  // namespace torch_xla::hlo
