#include "util/error.h"

#include <atomic>

namespace torch_xla::util {

namespace {

std::atomic<void (*)(ErrorKind, const std::string&)> thrower{nullptr};

}  // namespace

void set_thrower(void (*fn)(ErrorKind, const std::string&)) { thrower = fn; }

namespace detail {

void throw_error(ErrorKind kind, const std::string& message) {
  if (const auto fn = thrower.load()) fn(kind, message);
  throw Error(kind, message);
}

}  // namespace detail

}  // namespace torch_xla::util
