// Hooks, functions of the Python bindings that C++ calls. The bindings set them when the extension
// is loaded, before other threads call into it; C++ programs have none.
#pragma once

#include <memory>
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

  // Called before each launch of a program that exchanges values with other replicas; throws where
  // they have disagreed. Where replicas begin a program together, waits for those that have not
  // come to a new one.
  void (*exchanging)(const std::shared_ptr<const std::vector<ops::ExchangeNote>>& exchanges,
                     bool begin_together, bool is_new) = nullptr;
  // Returns what each process of the job does, for errors of those that have waited in vain.
  std::string (*tell_job)() = nullptr;
};

inline constinit Hooks hooks;

}  // namespace torch_xla::util
