// Overloaded, one visitor of several functions, for std::visit.
#pragma once

namespace torch_xla::util {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

}  // namespace torch_xla::util
