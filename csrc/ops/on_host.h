// Rules that call PyTorch's CPU kernel for the node that they lower.
#pragma once

#include <span>
#include <string_view>

#include "ops/host_call.h"
#include "ops/lowering.h"

namespace torch_xla::ops {

// Rule: PyTorch's CPU kernel for this very node.
hlo::Values on_host(Lowering& l, const cpu::Partition& partition = {},
                    Fails fails = Fails::Perhaps);
// The same, with the first operand laid out as the node's is, row by row or column by column: what
// such kernels give depends on it, and PyTorch's formulas of gradients know.
hlo::Values on_host_as_laid_out(Lowering& l);
// The results of PyTorch's in-place kernel `op` for this node of the operator's functional form,
// which works on lists element by element: `updated` are the positions of the lists that it
// updates, in their own memory where nobody else needs that. Gives their new values, list after
// list.
hlo::Values on_host_in_place(Lowering& l, std::string_view op, std::span<const size_t> updated,
                             Fails fails);
// Returns whether programs of this platform can hold the operator though no rule is registered for
// it: they call PyTorch's CPU kernel, if there is one, and if its random numbers come from a
// Generator.
bool has_host_kernel(const c10::OperatorHandle& op, const Target& target);

}  // namespace torch_xla::ops
