// Says of tensors how they are split among the devices of the job.
#pragma once

#include <ATen/core/Tensor.h>

#include "spmd/sharding.h"

namespace torch_xla::lazy {
class TensorImpl;
}

namespace torch_xla::dispatch {

// Splits the tensor so from now on, whatever is written into it. Data is sent to the devices at
// once; what waits to be computed is split when it is. The tensor's history and gradients stay.
void mark_sharding(const at::Tensor& tensor, const spmd::Sharding* sharding);
// Throws where the tensor has data that mark_sharding() has split otherwise.
void expect_unmarked(const at::Tensor& tensor, const spmd::Sharding* sharding);
// Splits the present value only: what is written into the tensor later is not.
void annotate_sharding(const at::Tensor& tensor, const spmd::Sharding* sharding);
// Gives each device the whole of the tensor again.
void clear_sharding(const at::Tensor& tensor);
// Splits `made` as `model` is split: optimizer state like its parameter.
void split_like(const at::Tensor& model, const at::Tensor& made);
// Says that each device has its own of the tensor's present value, now that of all of them.
void mark_manual(const at::Tensor& tensor, const spmd::Sharding* sharding);
// Returns what mark_sharding() has said of all that the tensor's storage holds, or null.
const spmd::Sharding* asked_sharding(const lazy::TensorImpl& impl);
// Returns how a tensor is split, or will be; null where nothing says so.
const spmd::Sharding* sharding_of(const at::Tensor& tensor);
// Returns whether each device of an SPMD process has its data, or its part.
bool is_on_all_devices(const at::Tensor& tensor);

}  // namespace torch_xla::dispatch
