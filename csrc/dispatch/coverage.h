// The ways in which operators reach the device, for the table of operators in the documentation.
#pragma once

#include <string>
#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch_xla::dispatch {

// "native": a lowering, or a kernel of ours. "composite": PyTorch's kernel calls other operators.
// "decomposition": written by PyTorch in terms of others when the program is lowered. "host
// kernel": the program calls PyTorch's CPU kernel. "host": runs outside of programs. "none": there
// is no kernel that could run it.
std::string_view how_it_runs(const c10::OperatorHandle& op);

}  // namespace torch_xla::dispatch
