#include "hlo/recompute.h"

#include <unordered_set>

namespace torch_xla::hlo {

int64_t fused_work(std::string_view operation) {
  static const std::unordered_set<std::string_view> in_memory = {
      "func.call",
      "stablehlo.case",
      "stablehlo.cholesky",
      "stablehlo.constant",
      "stablehlo.convolution",
      "stablehlo.custom_call",
      "stablehlo.dot_general",
      "stablehlo.fft",
      "stablehlo.if",
      "stablehlo.optimization_barrier",
      "stablehlo.reduce",
      "stablehlo.reduce_window",
      "stablehlo.scatter",
      "stablehlo.select_and_scatter",
      "stablehlo.sort",
      "stablehlo.triangular_solve",
      "stablehlo.while",
  };
  static const std::unordered_set<std::string_view> moves = {
      "stablehlo.bitcast_convert",
      "stablehlo.broadcast_in_dim",
      "stablehlo.concatenate",
      "stablehlo.dynamic_slice",
      "stablehlo.iota",
      "stablehlo.pad",
      "stablehlo.get_tuple_element",
      "stablehlo.reshape",
      "stablehlo.reverse",
      "stablehlo.slice",
      "stablehlo.transpose",
  };
  constexpr int64_t kApproximation = 10;  // what CHLO has is polynomials
  if (in_memory.contains(operation)) return -1;
  if (moves.contains(operation)) return 0;
  return operation.starts_with("chlo.") ? kApproximation : 1;
}

}  // namespace torch_xla::hlo
