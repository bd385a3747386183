#include "util/error.h"

#include "util/hooks.h"

namespace torch_xla::util::detail {

void throw_error(ErrorKind kind, const std::string& message) {
  if (hooks.throw_error != nullptr) hooks.throw_error(kind, message);
  throw Error(kind, message);
}

}  // namespace torch_xla::util::detail
