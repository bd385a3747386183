// The functions that a loaded library imports, replaced in its table of them.
#pragma once

#include <string>
#include <string_view>

namespace torch_xla::pjrt {

// For the library at `path`, which is loaded: calls of each imported function for which
// `replacement` gives another go there from now on. Returns whether any do: the table must be
// writable, as it is where functions are bound when they are first called.
bool replace_imports(const std::string& path, void* (*replacement)(std::string_view name));

}  // namespace torch_xla::pjrt
