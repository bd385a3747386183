// Replaces functions that a loaded library imports, in the library's own table of them.
#pragma once

#include <string>
#include <string_view>

namespace torch_xla::cpu {

// Makes the library at `path`, which is loaded, call what `replacement` gives for an imported
// function; null leaves the function as it is. Returns whether it replaced any: the table must be
// writable, as it is where functions are bound when they are first called.
bool replace_imports(const std::string& path, void* (*replacement)(std::string_view name));

}  // namespace torch_xla::cpu
