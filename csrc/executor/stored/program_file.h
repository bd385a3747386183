// An executable as bytes: a file of the disk cache, or what processes of a job send each other.
// They hold its key, everything that it depends on: nothing in it belongs to one process.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "pjrt/executable.h"
#include "util/hash.h"

namespace torch_xla::executor {

struct ProgramKey {
  std::string text;  // a line for each thing that the executable depends on
  util::Hash128 hash;

  friend bool operator==(const ProgramKey&, const ProgramKey&) = default;
};
// Later another one for the same program, where the plugin has shown that it does not move programs
// to other devices of their kind.
ProgramKey key_of(std::string_view program, const pjrt::CompileOptions& options);
// False once it has shown that.
bool moves_programs();

// Throws pjrt::Error; its code is UNIMPLEMENTED where the plugin serializes no programs.
std::string pack(const ProgramKey& key, const pjrt::Executable& executable);
// Returns the executable in a file of this key, or empty if it is not whole.
std::string_view packed_in(std::string_view bytes, const ProgramKey& key);
// Loads it. Returns null where it runs on other devices than those of `options`. Throws
// pjrt::Error.
std::unique_ptr<pjrt::Executable> load_packed(std::string_view packed,
                                              const pjrt::CompileOptions& options);

}  // namespace torch_xla::executor
