// Runs a PyTorch CPU kernel inside a program of the CPU target, on the program's own buffers.
// A rule writes the call with HostCall (any operator, `on_host` the node's own); one typed FFI
// handler, registered under kHostKernelTarget for platform "Host", serves them all.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "ops/lowering.h"

namespace torch_xla::ops {

inline constexpr char kHostKernelTarget[] = "torch_xla.host_kernel";
// The XLA_FFI_Handler*. It needs neither the GIL nor any state of this process but PyTorch's
// operators: a serialized executable runs in another process that registers it too.
void* host_kernel_handler();

// How a call falls into parts that can run side by side.
struct Partition {
  static constexpr int64_t kWhole = -1, kSum = -2;
  struct Cut {
    size_t position;  // of an operand, in the schema
    int64_t dim;
  };
  std::vector<Cut> operands;  // all others are given whole to each part
  // Of each tensor that the operator returns: the dimension along which parts lie next to each
  // other, kSum where parts add up, kWhole where there is one part only.
  std::vector<int64_t> results;
};

// Whether a program holds a call whose kernel may throw once it sees the values.
bool can_fail(std::string_view program);
// If it was such a kernel that made a run fail, as XLA says in `message`: the call that it was made
// for (hlo::Builder::call), or else nothing; and throws what the kernel threw, of the same class.
std::optional<int64_t> failing_call(std::string_view message);
void rethrow_host_failure(std::string_view message, const std::string& context);

// Whether a kernel may find fault with values (a matrix without an inverse), or raise for an
// algorithm that does not converge. Arithmetic on each element never does, whatever is said.
enum class Fails : bool { Never, Perhaps };

// Rule: PyTorch's CPU kernel for this very node.
hlo::Values on_host(Lowering& l, const Partition& partition = {}, Fails fails = Fails::Perhaps);
// The same, with the first operand laid out as the node's is, row by row or column by column: what
// such kernels give depends on it, and PyTorch's formulas of gradients know.
hlo::Values on_host_as_laid_out(Lowering& l);
// The results of PyTorch's in-place kernel `op` for this node of the operator's functional form,
// which works on lists element by element: `updated` are the positions of the lists that it
// updates, in their own memory where nobody else needs that. Gives their new values, list after
// list.
hlo::Values on_host_in_place(Lowering& l, std::string_view op, std::span<const size_t> updated,
                             Fails fails);
// Whether programs of this platform can hold the operator though no rule is registered for it: they
// call PyTorch's CPU kernel, if there is one, and if its random numbers come from a Generator.
bool has_host_kernel(const c10::OperatorHandle& op, const Target& target);

// A call of a PyTorch operator, argument by argument in schema order. All that is not a tensor or a
// runtime number is written into the program as text:
//   tN wN    operand N as a tensor; as a 0-dim tensor that is a wrapped Python number
//   mN       operand N as a tensor whose matrices lie column by column
//   pN/D     in each part of the call, a part of operand N along dimension D
//   xN/D     the same of a matrix, transposed after that; the whole where D is -1
//   kN/D     as pN/D, without gaps in its memory
//   sN fN gN operand N (0-dim) as a Scalar; as a float; as the seed of a fresh Generator
//   (..)     list of tensors, with - for a missing one; in it uN:R is operand N, which the operator
//            updates to be result R
//   {..}     the same, of tensors whose elements are shared out among the parts of the call
//   -        None
//   iN dX bN cX,Y qN:text    int, float (hexadecimal), bool, complex, string of N bytes
//   [..]     list of these
class HostCall {
 public:
  // `op` is "aten::convolution" or "aten::sum.dim_IntList".
  HostCall(hlo::Builder& b, std::string_view op, Fails fails = Fails::Perhaps);

  HostCall& tensor(const hlo::Value& x);
  HostCall& tensor(const std::optional<hlo::Value>& x);
  // Each part of the call takes one along `dim`, or all of it (Partition::kWhole). The kernel sees
  // a transposed matrix as it lies.
  HostCall& part(const hlo::Value& x, int64_t dim);
  HostCall& transposed(const hlo::Value& x, int64_t dim);
  HostCall& dense_part(const hlo::Value& x, int64_t dim);
  HostCall& columns(const hlo::Value& x);
  HostCall& wrapped_number(const hlo::Value& x);
  HostCall& tensors(std::span<const std::optional<hlo::Value>> list);
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
  hlo::Value result(const hlo::Type& type, int64_t cut = Partition::kWhole);
  // Of an operator that returns nothing: the updated tensors, in order.
  hlo::Values updates();

 private:
  HostCall& argument(const std::string& token);
  HostCall& operand(char tag, const hlo::Value& x);
  HostCall& cut(char tag, const hlo::Value& x, int64_t dim);
  std::string operand_token(char tag, const hlo::Value& x);
  std::string config(const std::string& wanted) const;

  hlo::Builder& b_;
  bool can_fail_;
  std::string key_;
  hlo::Values operands_;
  std::vector<std::pair<int64_t, int64_t>> updates_;  // result and operand
};

}  // namespace torch_xla::ops
