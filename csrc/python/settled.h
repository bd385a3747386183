// For functions that tell of programs and runs: they first wait for what is compiled in the
// background, so that what they tell is that of the program's lines before.
#pragma once

#include <utility>

#include "executor/step/deferred.h"

namespace torch_xla::python {

template <class R, class... Args>
auto settled(R (*tell)(Args...)) {
  return [tell](Args... args) -> R {
    executor::await_deferred();
    return tell(std::forward<Args>(args)...);
  };
}

}  // namespace torch_xla::python
