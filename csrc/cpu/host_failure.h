// Carries the failure of a PyTorch kernel inside a program through XLA, which knows errors as text:
// the class of the exception, its words, and the recorded call that the kernel was called for.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace torch_xla::cpu {

// Returns whether a program holds a call whose kernel may throw once it sees the values.
bool can_fail(std::string_view program);

// The text of a kernel's exception; `call` is -1 where the program does not say which it was.
std::string failure_text(const std::exception& failure, int64_t call);

// If it was such a kernel that made a run fail, as XLA says in `message`: the call that it was made
// for (hlo::Builder::call), or else nothing; and throws what the kernel threw, of the same class.
std::optional<int64_t> failing_call(std::string_view message);
void rethrow_host_failure(std::string_view message, const std::string& context);

}  // namespace torch_xla::cpu
