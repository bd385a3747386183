// Writes a call of a PyTorch operator into a program of the CPU target: its CPU kernel runs on the
// program's own buffers (host_kernel.h).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "cpu/call_text.h"
#include "hlo/builder.h"

namespace torch_xla::ops {

// Says whether a kernel may find fault with values (a matrix without an inverse), or raise for an
// algorithm that does not converge. Arithmetic on each element never does, whatever is said.
enum class Fails : bool { Never, Perhaps };

// The call, argument by argument in schema order. All that is not a tensor or a runtime number is
// written into the program as text (call_text.h).
class HostCall {
 public:
  // `op` is "aten::convolution" or "aten::sum.dim_IntList".
  HostCall(hlo::Builder& b, std::string_view op, Fails fails = Fails::Perhaps);

  HostCall& tensor(const hlo::Value& x);
  HostCall& tensor(const std::optional<hlo::Value>& x);
  // Each part of the call takes one along `dim`, or all of it (Partition::kWhole). The kernel sees
  // one that is transposed with its middle two dimensions swapped, nothing is copied.
  HostCall& part(const hlo::Value& x, int64_t dim);
  HostCall& transposed(const hlo::Value& x, int64_t dim);
  HostCall& columns(const hlo::Value& x);
  HostCall& wrapped_number(const hlo::Value& x);
  HostCall& tensors(std::span<const std::optional<hlo::Value>> list);
  // A list of which each part of the call takes parts, all along `dim`.
  HostCall& parts(std::span<const hlo::Value> list, int64_t dim);
  // Lists of one operation element by element: each part takes the same elements of all of them,
  // and whole tensors of other sizes that belong to those. `updated`: see on_host_in_place.
  HostCall& shared_out(std::span<const hlo::Value> list, bool updated);
  HostCall& number(const hlo::Value& x);
  HostCall& floating(const hlo::Value& x);
  HostCall& seed(const hlo::Value& x);
  HostCall& none();
  // int, float, bool, complex, string, None, and lists of these; a Device is the CPU.
  HostCall& fixed(const c10::IValue& value);
  template <class T>
  HostCall& fixed(const T& value) {
    return fixed(c10::IValue(value));
  }

  // One entry per tensor that the operator returns, the elements of a returned list counting each;
  // nullopt where the program needs none. Gives the others, in order. `cuts` as in Partition.
  hlo::Values results(std::span<const std::optional<hlo::Type>> types,
                      std::span<const int64_t> cuts = {});
  // Those of a kernel that lays out its first `transposed` results with the middle two dimensions
  // swapped. `types` and `cuts` are of how they lie; gives them as the kernel does.
  hlo::Values transposed_results(size_t transposed, std::span<const std::optional<hlo::Type>> types,
                                 std::span<const int64_t> cuts);
  hlo::Value result(const hlo::Type& type, int64_t cut = cpu::Partition::kWhole);
  // For an operator that returns nothing: the updated tensors, in order.
  hlo::Values updates();

 private:
  HostCall& argument(cpu::CallText::ArgumentText argument);
  HostCall& operand(cpu::CallText::Kind kind, const hlo::Value& x,
                    int64_t dim = cpu::Partition::kWhole);
  int64_t add_operand(const hlo::Value& x);
  int64_t known_operand(const hlo::Value& x);  // adds it once
  std::string config() const;

  hlo::Builder& b_;
  bool can_fail_;
  cpu::CallText text_;
  hlo::Values operands_;
  std::vector<std::pair<int64_t, int64_t>> updates_;  // result and operand
};

}  // namespace torch_xla::ops
