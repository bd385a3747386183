#include "util/error.h"

#include <atomic>

namespace torch_xla::util {

const char* error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Runtime:
      return "Runtime";
    case ErrorKind::Value:
      return "Value";
    case ErrorKind::Type:
      return "Type";
    case ErrorKind::Index:
      return "Index";
    case ErrorKind::NotImplemented:
      return "NotImplemented";
    case ErrorKind::OutOfMemory:
      return "OutOfMemory";
  }
  return "unknown";
}

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
