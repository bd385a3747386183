// The memory formats that PyTorch's CPU kernels give their results, where its Meta kernels do not.
#include <string_view>
#include <unordered_map>

#include "dispatch/meta.h"

namespace torch_xla::dispatch {
namespace {

using torch::jit::Stack;

at::MemoryFormat contiguous(const Stack&, size_t) { return at::MemoryFormat::Contiguous; }

// (input, ...)
at::MemoryFormat of_input(const Stack& stack, size_t base) {
  return stack[base].toTensor().suggest_memory_format();
}

// (input): absolute values and the like keep their strides, but not this of complex elements.
at::MemoryFormat angle(const Stack& stack, size_t base) {
  return stack[base].toTensor().is_complex() ? at::MemoryFormat::Contiguous
                                             : at::MemoryFormat::Preserve;
}

// (input, ...): dimensions of one element may have any stride.
at::MemoryFormat normalization(const Stack& stack, size_t base) {
  const at::Tensor input = stack[base].toTensor();
  if (input.is_contiguous()) return at::MemoryFormat::Contiguous;
  for (const auto last : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
    const bool fits = input.dim() == (last == at::MemoryFormat::ChannelsLast ? 4 : 5);
    if (fits && input.is_contiguous(last)) return last;
  }
  return input.suggest_memory_format();
}

// (input, shifts, dims): two parts are joined, of which an empty one is row-major. Without dims the
// elements are a row.
at::MemoryFormat roll(const Stack& stack, size_t base) {
  const at::Tensor input = stack[base].toTensor();
  const std::vector<int64_t> shifts = stack[base + 1].toIntVector(),
                             dims = stack[base + 2].toIntVector();
  bool moves = !dims.empty();
  for (size_t i = 0; i < dims.size() && i < shifts.size(); ++i) {
    const int64_t size = input.size(dims[i]);
    moves = moves && size != 0 && shifts[i] % size != 0;
  }
  return moves ? input.suggest_memory_format() : at::MemoryFormat::Contiguous;
}

// (input, weight, ...): channels_last where either is. In three dimensions not in double. Signals
// are images of one row, of which the kernel makes the input row-major.
at::MemoryFormat convolution(const Stack& stack, size_t base) {
  const at::Tensor input = stack[base].toTensor(), weight = stack[base + 1].toTensor();
  if (input.dim() == 3) return weight.unsqueeze(2).suggest_memory_format();
  if (input.scalar_type() == at::kDouble && input.dim() == 5) return at::MemoryFormat::Contiguous;
  const at::MemoryFormat format = input.suggest_memory_format();
  return format == at::MemoryFormat::Contiguous ? weight.suggest_memory_format() : format;
}

}  // namespace

MetaLayout meta_layout(const c10::OperatorHandle& op) {
  static const std::unordered_map<std::string_view, MetaLayout> kLayouts = {
      {"aten::_batch_norm_no_update", normalization},
      {"aten::_batch_norm_with_update_functional", normalization},
      {"aten::_native_batch_norm_legit", normalization},
      {"aten::_native_batch_norm_legit_functional", normalization},
      {"aten::_native_batch_norm_legit_no_training", normalization},
      {"aten::angle", angle},
      {"aten::channel_shuffle", of_input},
      {"aten::convolution", convolution},
      {"aten::diag_embed", contiguous},
      {"aten::max_unpool2d", of_input},
      {"aten::native_batch_norm", normalization},
      {"aten::native_channel_shuffle", of_input},
      {"aten::native_group_norm", of_input},
      {"aten::nll_loss2d_forward", contiguous},
      {"aten::nonzero_static", contiguous},  // the Meta kernel has CUDA's
      {"aten::pixel_shuffle", of_input},
      {"aten::pixel_unshuffle", of_input},
      {"aten::reflection_pad2d", of_input},
      {"aten::reflection_pad3d", of_input},
      {"aten::replication_pad2d", of_input},
      {"aten::replication_pad3d", of_input},
      {"aten::roll", roll},
      {"aten::rrelu_with_noise", contiguous},
      {"aten::rrelu_with_noise_functional", contiguous},
  };
  const auto it = kLayouts.find(op.schema().name());
  return it == kLayouts.end() ? nullptr : it->second;
}

}  // namespace torch_xla::dispatch
