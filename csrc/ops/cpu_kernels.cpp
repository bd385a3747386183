// Where the CPU platform calls PyTorch's kernels instead of running XLA's code. What is chosen by
// default follows benchmarks/host_kernels.py; XLA_HOST_KERNELS overrides it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "lazy/operator.h"
#include "ops/attention.h"
#include "ops/common.h"
#include "ops/host_kernel.h"
#include "util/error.h"
#include "util/flags.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

// Whether to call PyTorch's kernel, given what measurements say for this call.
bool choose_host(bool faster) {
  const std::string way = util::flag::XLA_HOST_KERNELS();
  TXLA_CHECK_KIND(util::ErrorKind::Value, way == "auto" || way == "all" || way == "none",
                  "XLA_HOST_KERNELS: expected auto, all or none, got '", way, "'.");
  return way == "all" || (way == "auto" && faster);
}

Values xla_code(Lowering& l) { return Registry::get().find(l.signature().op->name)->lower(l); }

bool is_empty(Lowering& l, std::initializer_list<size_t> args) {
  for (const size_t arg : args) {
    if (l.in(arg).type().elements() == 0) return true;
  }
  return false;
}

bool is_narrow(DType dtype) { return dtype == DType::BF16 || dtype == DType::F16; }

bool ask_pytorch(const char* op) {
  const auto handle = c10::Dispatcher::singleton().findSchema({op, ""});
  return handle && handle->typed<bool()>().call();
}

// Whether PyTorch has a fast kernel for products of this dtype on this processor. Without the
// instructions for it, a narrow product takes a hundred times what XLA needs, which widens to f32.
bool multiplies(DType dtype) {
  static const bool bf16 = ask_pytorch("mkldnn::_is_mkldnn_bf16_supported");
  static const bool f16 = ask_pytorch("mkldnn::_is_mkldnn_fp16_supported");
  return dtype == DType::BF16 ? bf16 : dtype == DType::F16 ? f16 : true;
}

// Batches at least as large are cut into parts of theirs; of smaller ones, something else is.
constexpr int64_t kBatch = 8;

// --- convolution ---------------------------------------------------------------------------

// By batch, unless the weight is the larger share: then each part takes some output channels.
bool cuts_batch(Lowering& l, size_t input, size_t transposed, size_t groups) {
  if (l.integer(groups) != 1 || l.flag(transposed)) return true;
  const Value x = l.in(input), weight = l.in(input + 1);
  return x.dim(0) >= kBatch && x.type().elements() >= weight.type().elements();
}

// Schema: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups.
Values convolution(Lowering& l) {
  if (is_empty(l, {0, 1}) || !choose_host(multiplies(l.in(0).dtype()))) return xla_code(l);
  if (cuts_batch(l, 0, 6, 8)) return on_host(l, {{{0, 0}}, {0}});
  Partition by = {{{1, 0}}, {1}};
  if (l.has(2)) by.operands.push_back({2, 0});
  return on_host(l, by);
}

// Schema: grad_output, input, weight, bias_sizes, and as above.
Values convolution_backward(Lowering& l) {
  if (is_empty(l, {0, 1, 2}) || !choose_host(multiplies(l.in(0).dtype()))) return xla_code(l);
  constexpr int64_t kSum = Partition::kSum;
  return cuts_batch(l, 1, 7, 9) ? on_host(l, {{{0, 0}, {1, 0}}, {0, kSum, kSum}})
                                : on_host(l, {{{0, 1}, {2, 0}}, {kSum, 0, 0}});
}

// --- matrix products -----------------------------------------------------------------------

// The factors of a product as the parts of the call take them: some rows of the left one, or some
// columns of the right one; of batches, some products.
template <size_t Left, bool Transposed = false>
Partition cut_product(Lowering& l) {
  constexpr size_t kRight = Left + 1;
  const Value left = l.in(Left), right = l.in(kRight);
  if (left.dim(0) >= kBatch || right.rank() != 2) {
    Partition by = {{{Left, 0}}, {0}};
    if (right.rank() == 3) by.operands.push_back({kRight, 0});
    return by;
  }
  return {{{kRight, Transposed ? 0 : 1}}, {l.out().rank() - 1}};
}

// PyTorch multiplies narrow floats as such; XLA widens them to f32 first. `addend`: the position of
// what is added to the product, which may be broadcast.
template <size_t Left, size_t Addend = SIZE_MAX, bool Transposed = false>
Values product(Lowering& l) {
  bool faster = true;
  for (const lazy::OperandInfo& info : l.signature().operands) {
    const DType dtype = to_hlo(*info.geometry).dtype;
    faster = faster && is_narrow(dtype) && multiplies(dtype) && info.geometry->numel != 0;
  }
  if (!choose_host(faster)) return xla_code(l);
  if (is_empty(l, {Left, Left + 1}) || l.in(Left).rank() < 2) return on_host(l);
  Partition by = cut_product<Left, Transposed>(l);
  if (Addend != SIZE_MAX && l.has(Addend)) {
    // Aligned at the last dimension; one that is broadcast along the cut is whole for all parts.
    const Value addend = l.in(Addend);
    const int64_t dim = by.results[0] - (l.out().rank() - addend.rank());
    if (dim >= 0 && addend.dim(dim) == l.out().dims[by.results[0]]) {
      by.operands.push_back({Addend, dim});
    }
  }
  return on_host(l, by);
}

// PyTorch's kernel asks this of its operands' rows.
bool has_aligned_rows(const Value& x) {
  return x.dim(x.rank() - 1) * hlo::bit_width(x.dtype()) % 128 == 0;
}

// PyTorch takes each group's rows alone; XLA's code takes all rows for each group. PyTorch leaves
// what is in no group uninitialized.
Values grouped_product(Lowering& l) {
  const bool possible = l.has(2) && !is_empty(l, {0, 1}) && has_aligned_rows(l.in(0)) &&
                        has_aligned_rows(l.in(1)) && multiplies(l.in(0).dtype());
  return possible && choose_host(true) ? on_host(l) : xla_code(l);
}

// --- attention -----------------------------------------------------------------------------

// PyTorch's kernel widens bfloat16 where that is faster, float16 never.
bool attends(Lowering& l, const AttentionArguments& args) {
  const DType dtype = l.in(args.query).dtype();
  return dtype != DType::F16 || multiplies(dtype);
}

bool fits_flash(Lowering& l, const AttentionArguments& args) {
  const Value q = l.in(args.query), k = l.in(args.key), v = l.in(args.value);
  if (q.rank() != 4 || is_empty(l, {args.query, args.key, args.value}) || l.has(args.keep)) {
    return false;
  }
  return q.dim(1) == k.dim(1) && q.dim(3) == v.dim(3) && hlo::is_float(q.dtype());
}

// The kernel adds its mask, in the query's dtype.
std::optional<Value> additive_mask(Lowering& l, const AttentionArguments& args) {
  if (!l.has(args.mask)) return std::nullopt;
  const Value mask = l.in(args.mask), q = l.in(args.query);
  if (mask.dtype() != DType::Pred) return cast(mask, q.dtype());
  const hlo::Type type = mask.type().with(q.dtype());
  return hlo::select(mask, hlo::zero(l.b, type), hlo::lowest(l.b, type));
}

// Parts of the call take some of the batch, or some of the heads.
int64_t attention_cut(Lowering& l, const AttentionArguments& args) {
  const Value q = l.in(args.query);
  return q.dim(0) >= q.dim(1) ? 0 : 1;
}

void add_mask(HostCall& call, Lowering& l, const AttentionArguments& args, int64_t cut) {
  const std::optional<Value> mask = additive_mask(l, args);
  if (mask && mask->rank() == 4 && mask->dim(cut) != 1) {
    call.part(*mask, cut);
  } else {
    call.tensor(mask);
  }
}

Values attention(Lowering& l) {
  const AttentionArguments args = kAttentionForward;
  if (!fits_flash(l, args) || !choose_host(attends(l, args))) return xla_code(l);
  const std::optional<hlo::Type> types[] = {l.out(0), l.out(1)};
  const int64_t cut = attention_cut(l, args);
  HostCall call(l.b, "aten::_scaled_dot_product_flash_attention_for_cpu");
  for (const size_t operand : {args.query, args.key, args.value}) call.part(l.in(operand), cut);
  call.fixed(0.0).fixed(l.flag(args.is_causal));
  add_mask(call, l, args, cut);
  return call.fixed(l.floating(args.scale)).results(types, std::array{cut, cut});
}

Values attention_backward(Lowering& l) {
  const AttentionArguments args = kAttentionBackward;
  if (!fits_flash(l, args) || l.flag(args.mask_grad) || !choose_host(attends(l, args))) {
    return xla_code(l);
  }
  const std::optional<hlo::Type> types[] = {l.out(0), l.out(1), l.out(2)};
  const int64_t cut = attention_cut(l, args);
  HostCall call(l.b, "aten::_scaled_dot_product_flash_attention_for_cpu_backward");
  for (const size_t operand :
       {args.grad, args.query, args.key, args.value, args.output, args.logsumexp}) {
    call.part(l.in(operand), cut);
  }
  call.fixed(0.0).fixed(l.flag(args.is_causal));
  add_mask(call, l, args, cut);
  Values results = call.fixed(l.floating(args.scale)).results(types, std::array{cut, cut, cut});
  results.push_back(hlo::zero(l.b, l.out(3)));
  return results;
}

// --- optimizers ----------------------------------------------------------------------------

// One call for all parameters, in place. XLA's code is a fusion for each parameter, each of which
// costs compile time. Argument lists come before all else; the results are the first of them again.
Values fused_step(Lowering& l) {
  const lazy::Signature& signature = l.signature();
  const auto& arguments = signature.op->schema().arguments();
  size_t grad_scale = 0;
  while (arguments[grad_scale].name() != "grad_scale") ++grad_scale;
  std::vector<Values> lists;
  size_t given = 0;
  for (size_t i = 0; given < l.num_outputs(); given += lists[i++].size()) {
    lists.push_back(l.list(i));
  }
  bool suits = true;
  for (const Values& list : lists) {
    for (const Value& x : list) {
      suits = suits && hlo::is_float(x.dtype()) && x.dtype() == lists[0][0].dtype() &&
              x.type().elements() != 0;
    }
  }
  if (lists.empty() || !suits || !choose_host(true)) return xla_code(l);

  // The kernel stores gradients only where it unscales them.
  constexpr size_t kGradients = 1;
  std::vector<size_t> updated;
  for (size_t i = 0; i < lists.size(); ++i) {
    if (i != kGradients || l.has(grad_scale)) updated.push_back(i);
  }
  std::string name = signature.op->name;
  name.insert(std::min(name.find('.'), name.size()), "_");
  Values results;
  const Values updates = on_host_in_place(l, name, updated);
  auto next = updates.begin();
  for (size_t i = 0; i < lists.size(); ++i) {
    const bool kept = std::find(updated.begin(), updated.end(), i) == updated.end();
    for (const Value& old : lists[i]) results.push_back(kept ? old : *next++);
  }
  return results;
}

// LAPACK has it.
Values lapack(Lowering& l) { return choose_host(true) ? on_host(l) : xla_code(l); }
// The factors that these return with their result are those of the transpose, for a matrix that
// lies row by row.
Values with_factors(Lowering& l) {
  return choose_host(true) ? on_host_as_laid_out(l) : xla_code(l);
}

}  // namespace

void register_cpu_kernels(Registry& r) {
  r.override_on("CPU", "aten::convolution", convolution);
  r.override_on("CPU", "aten::convolution_backward", convolution_backward);
  r.override_on("CPU", "aten::mm", product<0>);
  r.override_on("CPU", "aten::bmm", product<0>);
  r.override_on("CPU", "aten::addmm", product<1, 0>);
  r.override_on("CPU", "aten::baddbmm", product<1, 0>);
  r.override_on("CPU", "aten::_grouped_mm", grouped_product);
  r.override_on("CPU", "aten::linear", product<0, 2, true>);
  for (const char* name : {"aten::_fused_adam", "aten::_fused_adamw", "aten::_fused_sgd"}) {
    r.override_on("CPU", name, fused_step);
    r.override_on("CPU", std::string(name) + ".tensor_lr", fused_step);
  }
  for (const char* name :
       {"aten::linalg_cholesky_ex", "aten::linalg_solve_triangular", "aten::triangular_solve",
        "aten::_cholesky_solve_helper", "aten::cholesky_inverse", "aten::linalg_lu_factor_ex",
        "aten::linalg_lu", "aten::lu_unpack", "aten::linalg_inv_ex", "aten::linalg_lu_solve",
        "aten::geqrf", "aten::linalg_householder_product", "aten::linalg_qr", "aten::ormqr",
        "aten::cholesky", "aten::_linalg_svd", "aten::_linalg_eigh",
        "aten::linalg_pinv.atol_rtol_tensor", "aten::linalg_matrix_exp"}) {
    r.override_on("CPU", name, lapack);
  }
  for (const char* name :
       {"aten::_linalg_det", "aten::_linalg_slogdet", "aten::_linalg_solve_ex"}) {
    r.override_on("CPU", name, with_factors);
  }
  r.override_on("CPU", "torch_xla::attention", attention);
  r.override_on("CPU", "torch_xla::attention_backward", attention_backward);
}

}  // namespace torch_xla::ops
