#include "util/error.h"

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

namespace detail {

void throw_error(ErrorKind kind, const std::string& message) { throw Error(kind, message); }

}  // namespace detail

}  // namespace torch_xla::util
