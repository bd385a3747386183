// torch._convolution comes to these operators instead of to convolution, which comes to them for
// its shapes: PyTorch checks the arguments before.
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <torch/library.h>

#include "ops/lowering.h"
#include "ops/meta.h"

namespace torch_xla::dispatch {
namespace {

at::Tensor convolution_overrideable(const at::Tensor& input, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                    bool transposed, at::IntArrayRef output_padding,
                                    int64_t groups) {
  return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                         groups);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward_overrideable(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  const at::IntArrayRef bias_sizes(channels);
  return at::convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation,
                                  transposed, output_padding, groups, wanted);
}

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
void shape_of_convolution(ops::MetaCall& call) {
  const at::Tensor input = call.tensor(0), weight = call.tensor(1);
  const auto numbers = [&](size_t i) { return call[i].toIntVector(); };
  const auto sizes =
      call[6].toBool()
          ? at::native::conv_input_size(input.sizes(), weight.sizes(), numbers(4), numbers(7),
                                        numbers(3), numbers(5), call[8].toInt())
          : at::native::conv_output_size(input.sizes(), weight.sizes(), numbers(4), numbers(3),
                                         numbers(5));
  call.results({ops::meta_of_sizes(input, sizes)});
}

// (grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups,
// output_mask)
void shapes_of_gradients(ops::MetaCall& call) {
  const at::Tensor grad = call.tensor(0), input = call.tensor(1), weight = call.tensor(2);
  const c10::List<bool> wanted = call[9].toBoolList();
  const auto shaped = [&](size_t i, const at::Tensor& like, std::vector<int64_t> sizes) {
    return wanted[i] ? ops::meta_of_sizes(like, sizes) : at::Tensor();
  };
  call.results({shaped(0, input, input.sizes().vec()), shaped(1, weight, weight.sizes().vec()),
                shaped(2, weight, {grad.size(1)})});
}

const ops::Rules convolution_rules([](ops::Registry& r) {
  r.all("aten::convolution_overrideable").meta = shape_of_convolution;
  r.all("aten::convolution_backward_overrideable").meta = shapes_of_gradients;
});

TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("convolution_overrideable", TORCH_FN(convolution_overrideable));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward_overrideable));
}

}  // namespace
}  // namespace torch_xla::dispatch
