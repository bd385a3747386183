// Runs a PyTorch CPU kernel inside a program of the CPU platform, on the program's own buffers.
// A rule writes the call with HostCall (any operator, `on_host` the node's own); one typed FFI
// handler, registered under kHostKernelTarget for platform "Host", serves them all.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

#include "ops/lowering.h"

namespace torch_xla::ops {

inline constexpr char kHostKernelTarget[] = "torch_xla.host_kernel";
// The XLA_FFI_Handler*. It needs neither the GIL nor any state of this process but PyTorch's
// operators: a serialized executable runs in another process that registers it too.
void* host_kernel_handler();

// Rule: PyTorch's CPU kernel for this very node.
hlo::Values on_host(Lowering& l);
// Whether on_host can serve the operator: it has a kernel for CPU tensors, and its random numbers,
// if any, come from a Generator argument.
bool can_run_on_host(const c10::OperatorHandle& op);

// A call of a PyTorch operator, argument by argument in schema order. All that is not a tensor or a
// runtime number is written into the program as text:
//   tN wN    operand N as a tensor; as a 0-dim tensor that is a wrapped Python number
//   sN fN gN operand N (0-dim) as a Scalar; as a float; as the seed of a fresh Generator
//   (..)     list of tensors, with - for a missing one
//   -        None
//   iN dX bN cX,Y qN:text    int, float (hexadecimal), bool, complex, string of N bytes
//   [..]     list of these
class HostCall {
 public:
  // `op` is "aten::convolution" or "aten::sum.dim_IntList".
  HostCall(hlo::Builder& b, std::string_view op);

  HostCall& tensor(const hlo::Value& x);
  HostCall& tensor(const std::optional<hlo::Value>& x);
  HostCall& wrapped_number(const hlo::Value& x);
  HostCall& tensors(std::span<const std::optional<hlo::Value>> list);
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
  // nullopt where the program needs none. Gives the others, in order.
  hlo::Values results(std::span<const std::optional<hlo::Type>> types);
  hlo::Value result(const hlo::Type& type);

 private:
  HostCall& argument(const std::string& token);
  HostCall& operand(char tag, const hlo::Value& x);
  std::string operand_token(char tag, const hlo::Value& x);

  hlo::Builder& b_;
  std::string key_;
  hlo::Values operands_;
};

}  // namespace torch_xla::ops
