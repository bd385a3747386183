// What PyTorch's CPU kernels refuse and its Meta kernels let pass.
#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>

#include <ATen/MemoryOverlap.h>
#include <ATen/native/BucketizationUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "dispatch/mask_index.h"
#include "dispatch/meta.h"
#include "dispatch/view_kernel.h"

namespace torch_xla::dispatch {
namespace {

using torch::jit::Stack;

// (input, weight, bias, stride, padding, dilation, ...)
void convolution(const Stack& stack, size_t base) {
  const auto all = [&](size_t argument, int64_t least) {
    const auto numbers = stack[base + argument].toIntVector();
    return std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n >= least; });
  };
  TORCH_CHECK(all(4, 0), "negative padding is not supported");
  TORCH_CHECK(all(3, 1), "non-positive stride is not supported");
  TORCH_CHECK(all(5, 1), "dilation should be greater than zero");
  const at::Tensor weight = stack[base + 1].toTensor();
  const int64_t groups = stack[base + 8].toInt();
  TORCH_CHECK(weight.size(0) >= groups, "Given groups=", groups,
              ", expected weight to be at least ", groups,
              " at dimension 0, but got weight of size ", weight.sizes(), " instead");
}

// (self, src, size, stride, storage_offset)
void as_strided_scatter(const Stack& stack, size_t base) {
  const at::Tensor self = stack[base].toTensor();
  const c10::IValue& offset = stack[base + 4];
  const auto* window = lazy::intern(self.scalar_type(), stack[base + 2].toIntVector(),
                                    stack[base + 3].toIntVector());
  // What repeats elements is copied first, and so has all of them.
  const bool repeats = at::has_internal_overlap(self) == at::MemOverlap::Yes;
  check_window(*window, offset.isNone() ? 0 : offset.toInt(),
               repeats ? self.nbytes() : self.storage().nbytes());
}

// (real, imag), and perhaps out
void complex(const Stack& stack, size_t base) {
  const at::ScalarType real = stack[base].toTensor().scalar_type();
  const at::ScalarType imag = stack[base + 1].toTensor().scalar_type();
  TORCH_CHECK(real == imag, "Expected object of scalar type ", real, " but got scalar type ", imag,
              " for second argument");
  if (stack.size() - base < 3) return;
  const at::ScalarType out = stack[base + 2].toTensor().scalar_type();
  TORCH_CHECK(out == at::toComplexType(real), "Expected object of scalar type ",
              at::toComplexType(real), " but got scalar type ", out, " for argument 'out'");
}

void vector_product(at::ScalarType self, at::ScalarType matrix, at::ScalarType vector) {
  TORCH_CHECK(matrix == vector && self == vector,
              "addmv input tensors must have the same dtype, but got ", self, ", ", matrix,
              ", and ", vector);
}

// (self, matrix, vector, ..)
void addmv(const Stack& stack, size_t base) {
  vector_product(stack[base].toTensor().scalar_type(), stack[base + 1].toTensor().scalar_type(),
                 stack[base + 2].toTensor().scalar_type());
}

// (matrix, vector)
void mv(const Stack& stack, size_t base) {
  const at::ScalarType vector = stack[base + 1].toTensor().scalar_type();
  vector_product(vector, stack[base].toTensor().scalar_type(), vector);
}

// (self, mask, source)
void masked_scatter(const Stack& stack, size_t base) {
  const at::ScalarType mask = stack[base + 1].toTensor().scalar_type();
  TORCH_CHECK(mask == at::kBool,
              "masked_scatter_ only supports boolean masks, but got mask with "
              "dtype ",
              mask);
}

// (self, kernel_size, output_size, random_samples)
template <int64_t Spatial>
void fractional_max_pool(const Stack& stack, size_t base) {
  const at::Tensor self = stack[base].toTensor(), samples = stack[base + 3].toTensor();
  TORCH_CHECK(self.scalar_type() == samples.scalar_type(),
              "Expect _random_samples to have the same dtype as input");
  const bool batched = self.dim() == Spatial + 2;
  TORCH_CHECK(
      samples.dim() == 3 && samples.size(0) >= (batched ? self.size(0) : 1) &&
          samples.size(1) == self.size(batched ? 1 : 0) && samples.size(2) == Spatial,
      "Expect _random_samples of a row for each sample, of a column for each channel and of ",
      Spatial, " numbers there, got ", samples.sizes(), ".");
}

// (self, index, source, accumulate)
void put(const Stack& stack, size_t base) {
  const int64_t self = stack[base].toTensor().numel();
  const int64_t index = stack[base + 1].toTensor().numel();
  const int64_t source = stack[base + 2].toTensor().numel();
  TORCH_CHECK_INDEX(source == index,
                    "put_(): Expected source and index to have the same number of elements, but "
                    "got source.numel() = ",
                    source, ", index.numel() = ", index);
  TORCH_CHECK_INDEX(self != 0 || index == 0, "put_(): Tried to put elements into an empty tensor");
}

// (scores, target, weight, ..)
void weights_of_classes(const Stack& stack, size_t base) {
  const c10::IValue& weight = stack[base + 2];
  if (weight.isNone() || !weight.toTensor().defined()) return;
  const at::ScalarType wanted = stack[base].toTensor().scalar_type();
  TORCH_CHECK(weight.toTensor().scalar_type() == wanted, "expected scalar type ", wanted,
              " but found ", weight.toTensor().scalar_type());
}

// (probabilities, num_samples, replacement, generator), and out
void multinomial(const Stack& stack, size_t base) {
  const at::Tensor probabilities = stack[base].toTensor();
  const int64_t count = stack[base + 1].toInt();
  const bool replacement = stack[base + 2].toBool();
  if (stack.size() > base + 4) {
    const at::ScalarType out = stack[base + 4].toTensor().scalar_type();
    TORCH_CHECK(out == at::kLong, "multinomial expects Long tensor out, got: ", out);
  }
  TORCH_CHECK(probabilities.dim() == 1 || probabilities.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(at::isFloatingType(probabilities.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ",
              probabilities.scalar_type());
  TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
  const int64_t categories = probabilities.size(-1);
  TORCH_CHECK(replacement || count <= categories,
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  // Beyond, floats do not tell every category from the next.
  TORCH_CHECK(categories <= (1 << 24), "number of categories cannot exceed 2^24");
}

// A tensor or number that is looked up.
at::Tensor looked_up(const c10::IValue& v, const at::Tensor& boundaries) {
  return v.isTensor() ? v.toTensor()
                      : at::native::searchsorted_scalar_tensor(v.toScalar(), boundaries.device());
}

at::Tensor places(const Stack& stack, size_t base, size_t inputs, const at::Tensor& boundaries) {
  if (stack.size() - base > inputs) return stack.back().toTensor();
  return at::empty({0},
                   boundaries.options().dtype(stack[base + 2].toBool() ? at::kInt : at::kLong));
}

// (boundaries, self, out_int32, right, side, sorter), and perhaps out
void searchsorted(const Stack& stack, size_t base) {
  const at::Tensor& boundaries = stack[base].toTensor();
  const c10::IValue& sorter = stack[base + 5];
  at::native::searchsorted_pre_check(boundaries, looked_up(stack[base + 1], boundaries),
                                     places(stack, base, 6, boundaries), stack[base + 2].toBool(),
                                     stack[base + 3].toBool(),
                                     stack[base + 4].toOptional<std::string_view>(), {});
  if (sorter.isNone() || !sorter.toTensor().defined()) return;
  const at::Tensor& order = sorter.toTensor();
  TORCH_CHECK(order.sizes() == boundaries.sizes(),
              "torch.searchsorted(): boundary and sorter must have the same size, but got boundary "
              "tensor ",
              boundaries.sizes(), "and got sorter tensor ", order.sizes());
  TORCH_CHECK(order.scalar_type() == at::kLong,
              "torch.searchsorted(): sorter must be a tensor of long dtype but got dtype ",
              order.scalar_type());
}

// (self, boundaries, out_int32, right), and perhaps out
void bucketize(const Stack& stack, size_t base) {
  const at::Tensor& boundaries = stack[base + 1].toTensor();
  at::native::searchsorted_pre_check(boundaries, looked_up(stack[base], boundaries),
                                     places(stack, base, 4, boundaries), stack[base + 2].toBool(),
                                     stack[base + 3].toBool(), std::nullopt, {});
}

// PyTorch's Meta kernels of these answer with floats. The host has the words for what comes.
void quantized_result(const Stack&, size_t) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "quantize: expected a dtype that a tensor of xla can have.");
}

// (self, ..)
void sort(const Stack& stack, size_t base) {
  TORCH_CHECK(!stack[base].toTensor().is_complex(), " Sort does not support complex dtypes on CPU");
}

// (self, dim, ..)
void aminmax(const Stack& stack, size_t base) {
  const at::Tensor self = stack[base].toTensor();
  TORCH_CHECK(self.dim() != 0 || stack[base + 1].isNone() || !self.is_complex(),
              "aminmax not implemented for ", self.scalar_type());
}

// (self), of all elements
void extreme_of_none(const Stack& stack, const char* name) {
  TORCH_CHECK(stack.back().toTensor().numel() != 0, name,
              "(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
              "reduction dim with the 'dim' argument.");
}
void max_of_all(const Stack& stack, size_t) { extreme_of_none(stack, "max"); }
void min_of_all(const Stack& stack, size_t) { extreme_of_none(stack, "min"); }

// (self, indices, values, accumulate, ..)
void index_put(const Stack& stack, size_t base) {
  const at::ScalarType self = stack[base].toTensor().scalar_type();
  const at::Tensor& values = stack[base + 2].toTensor();
  // One value under a mask is filled in, which converts it.
  if (values.numel() == 1 && !stack[base + 3].toBool()) {
    for (const c10::IValue& index : stack[base + 1].toListRef()) {
      if (index.isTensor() && index.toTensor().defined() && is_mask(index.toTensor())) return;
    }
  }
  TORCH_CHECK(values.scalar_type() == self,
              "Index put requires the source and destination dtypes match, got ", self,
              " for the destination and ", values.scalar_type(), " for the source.");
}

// (self, p, dim, ..)
void norm(const Stack& stack, size_t base) {
  const at::Tensor& self = stack[base].toTensor();
  if (self.numel() != 0 || stack[base + 1].isNone()) return;
  const bool has_dims = stack.size() > base + 2 && stack[base + 2].isIntList();
  const std::vector<int64_t> dims =
      has_dims ? stack[base + 2].toIntVector() : std::vector<int64_t>();
  (void)at::linalg_vector_norm(self, stack[base + 1].toScalar(),
                               dims.empty() ? at::OptionalIntArrayRef() : dims);
}

// (self, dims, ..)
void dims_of_a_bitset(const Stack& stack, size_t base) {
  TORCH_CHECK(stack[base].toTensor().dim() <= 64, "only tensors with up to 64 dims are supported");
}

// (self, ..) of an operator in place
void written_once(const Stack& stack, size_t base) {
  if (stack[base].isTensor()) at::assert_no_internal_overlap(stack[base].toTensor());
}

// Operators in place whose CPU kernels write to an element as often as the tensor shows it.
bool writes_often(std::string_view name) {
  static const std::set<std::string_view> kOperators = {"aten::_index_put_impl_",
                                                        "aten::addmv_",
                                                        "aten::baddbmm_",
                                                        "aten::conj_physical_",
                                                        "aten::fill_",
                                                        "aten::index_fill_",
                                                        "aten::index_put_",
                                                        "aten::fill_diagonal_",
                                                        "aten::masked_fill_",
                                                        "aten::threshold_",
                                                        "aten::tril_",
                                                        "aten::triu_",
                                                        "aten::zero_"};
  return kOperators.contains(name);
}

}  // namespace

MetaCheck meta_check(const c10::OperatorHandle& op) {
  static const std::unordered_map<std::string_view, MetaCheck> kChecks = {
      {"aten::addmv", addmv},
      {"aten::aminmax", aminmax},
      {"aten::as_strided_scatter", as_strided_scatter},
      {"aten::convolution", convolution},
      {"aten::_index_put_impl", index_put},
      {"aten::_unsafe_index_put", index_put},
      {"aten::index_put", index_put},
      {"aten::bucketize", bucketize},
      {"aten::complex", complex},
      {"aten::masked_scatter", masked_scatter},
      {"aten::multinomial", multinomial},
      {"aten::mv", mv},
      {"aten::flip", dims_of_a_bitset},
      {"aten::fractional_max_pool2d", fractional_max_pool<2>},
      {"aten::fractional_max_pool3d", fractional_max_pool<3>},
      {"aten::put", put},
      {"aten::quantize_per_tensor", quantized_result},
      {"aten::quantize_per_tensor_dynamic", quantized_result},
      {"aten::nansum", dims_of_a_bitset},
      {"aten::nll_loss_forward", weights_of_classes},
      {"aten::nll_loss2d_forward", weights_of_classes},
      {"aten::norm", norm},
      {"aten::searchsorted", searchsorted},
      {"aten::sort", sort},
  };
  if (op.schema().arguments().size() == 1) {
    if (op.schema().name() == "aten::max") return max_of_all;
    if (op.schema().name() == "aten::min") return min_of_all;
  }
  const std::string& name = op.schema().name();
  if (const auto it = kChecks.find(name); it != kChecks.end()) return it->second;
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const bool in_place = !arguments.empty() && arguments[0].alias_info() != nullptr &&
                        arguments[0].alias_info()->isWrite() && !arguments[0].is_out();
  return in_place && !writes_often(name) ? written_once : nullptr;
}

}  // namespace torch_xla::dispatch
