// The one exception of the project's C++ code: a message and the kind of Python exception it
// becomes. Nothing in csrc/ aborts; a violated expectation throws util::Error, or what
// Hooks::throw_error makes of it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace torch_xla::util {

// Each kind names the Python exception that the bindings raise.
enum class ErrorKind { Runtime, Value, Type, Index, NotImplemented, OutOfMemory };

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

namespace detail {
[[noreturn]] void throw_error(ErrorKind kind, const std::string& message);
}  // namespace detail

// Joins everything that can be streamed into one string.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail(ErrorKind kind, const Parts&... parts) {
  static_assert(sizeof...(Parts) > 0, "an error needs a message: what was expected, what came");
  detail::throw_error(kind, concat(parts...));
}

}  // namespace torch_xla::util

// TXLA_CHECK(lhs.rank() == 2, "mm: expected a matrix, got rank ", lhs.rank(), ". Reshape it.");
// The message parts are evaluated only on failure.
#define TXLA_CHECK(condition, ...) \
  TXLA_CHECK_KIND(::torch_xla::util::ErrorKind::Runtime, condition, __VA_ARGS__)

#define TXLA_CHECK_KIND(kind, condition, ...)       \
  do {                                              \
    if (!(condition)) [[unlikely]] {                \
      ::torch_xla::util::fail((kind), __VA_ARGS__); \
    }                                               \
  } while (false)
