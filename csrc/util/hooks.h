// Hooks, functions of the Python bindings that C++ calls. The bindings set them when the extension
// is loaded, before other threads call into it; C++ programs have none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

namespace torch_xla::lazy {
enum class Frames;
struct Source;
struct SourceFrame;
}  // namespace torch_xla::lazy

namespace torch_xla::ops {
struct ExchangeNote;
}

namespace torch_xla::util {

enum class ErrorKind;

struct Hooks {
  // Throws an error whose kind survives the way through PyTorch's dispatcher to Python.
  void (*throw_error)(ErrorKind kind, const std::string& message) = nullptr;

  // The interpreter's lock. `release` lets it go and returns what `take` needs to take it again;
  // null where the calling thread does not hold it.
  bool (*holds_interpreter)() = nullptr;
  void* (*release_interpreter)() = nullptr;
  void (*take_interpreter)(void* released) = nullptr;

  // Sets a place to the frames of the user's program that the calling thread is in, and returns the
  // whole stack of that thread.
  void (*read_source)(lazy::Frames which, lazy::Source& place) = nullptr;
  std::vector<lazy::SourceFrame> (*read_stack)() = nullptr;

  // Looks an operator up in PyTorch's tables of decompositions, and calls what is there with the
  // stack's arguments; leaves the results.
  bool (*has_decomposition)(const c10::OperatorHandle& op) = nullptr;
  void (*decompose)(const c10::OperatorHandle& op, std::vector<c10::IValue>* stack) = nullptr;

  // Called before each launch of a program that exchanges values with other replicas. Compares the
  // exchanges of a new program with theirs; throws where they differ.
  void (*exchanging)(const std::vector<ops::ExchangeNote>& exchanges, bool is_new) = nullptr;
  // Called while an exchange waits for long, the one of this number of its group; throws where the
  // others will not come.
  void (*stalled)(const std::vector<int64_t>& group, int64_t number, const std::string& text,
                  double seconds) = nullptr;
  // Returns what each process of the job does, for errors of those that have waited in vain.
  std::string (*tell_job)() = nullptr;
};

inline constinit Hooks hooks;

}  // namespace torch_xla::util
