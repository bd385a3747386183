// Doing, a note of what a thread does for long that other processes of the job may wait for.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace torch_xla::executor {

enum class Work : uint8_t {
  Compiles,          // a program
  WaitsForCompiler,  // of another process
  WaitsForExchange,  // with others
};

struct Note {
  Work work;
  std::string text;  // of the program or exchange
  std::chrono::steady_clock::time_point since;
};

// Is told of while it lives.
class Doing {
 public:
  explicit Doing(Note note);
  ~Doing();
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  const uint64_t number_;
};

// Returns what this process does now, the oldest first.
std::vector<Note> doing();

}  // namespace torch_xla::executor
