// Operators whose result has a shape that only the data tells. They are recorded at their longest,
// the graph runs up to there, one number comes back, and what it counts is cut on the device.
#include <algorithm>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_lstsq.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "debug/metrics.h"
#include "debug/waits.h"
#include "dispatch/calls/own_operator.h"
#include "dispatch/judge/known_values.h"
#include "dispatch/record/fallback.h"
#include "dispatch/views/resize.h"
#include "executor/run/runtime.h"
#include "lazy/tensor.h"
#include "ops/on_host.h"
#include "ops/rules.h"

namespace torch_xla::dispatch {
namespace {

using at::Tensor;

at::TensorOptions positions_like(const Tensor& t) { return t.options().dtype(at::kLong); }

// --- shapes of the longest forms -----------------------------------------------------------

std::tuple<Tensor, Tensor> nonzero_meta(const Tensor& self) {
  return {at::empty({self.numel(), self.dim()}, positions_like(self)),
          at::empty({}, positions_like(self))};
}

std::tuple<Tensor, Tensor> masked_select_meta(const Tensor& self, const Tensor&) {
  return {at::empty({self.numel()}, self.options()), at::empty({}, positions_like(self))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> unique_meta(const Tensor& self, bool rows, bool) {
  const at::TensorOptions integers = positions_like(self);
  const int64_t most = rows ? self.size(0) : self.numel();
  const Tensor counts = at::empty({most}, integers);
  return {rows ? at::empty(self.sizes(), self.options()) : at::empty({most}, self.options()),
          rows ? counts : at::empty(self.sizes(), integers), counts, at::empty({}, integers)};
}

Tensor runs_meta(const Tensor& repeats, int64_t size) {
  return at::empty({size}, repeats.options());
}

Tensor one_hot_meta(const Tensor& self, int64_t num_classes) {
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.push_back(num_classes);
  return at::empty(sizes, self.options());
}

const OwnOperator longest_nonzero("nonzero(Tensor self) -> (Tensor, Tensor)", nonzero_meta,
                                  ops::rules::nonzero);
const OwnOperator longest_masked_select(
    "masked_select(Tensor self, Tensor mask) -> (Tensor, Tensor)", masked_select_meta,
    ops::rules::masked_select);
const OwnOperator longest_unique(
    "unique(Tensor self, bool rows, bool consecutive) -> (Tensor, Tensor, Tensor, Tensor)",
    unique_meta, ops::rules::unique);
const OwnOperator runs("runs(Tensor repeats, int size) -> Tensor", runs_meta, ops::rules::runs);
const OwnOperator one_hot_of("one_hot(Tensor self, int num_classes) -> Tensor", one_hot_meta,
                             ops::rules::one_hot);

// --- what the data tells ---------------------------------------------------------------------

constexpr const char* kSizeRead = "a size that values decide";

// Counts the call that cuts the graph under its name, where users look for it.
int64_t read_size(const char* call, const Tensor& size) {
  debug::counter(call)->add();
  return fetch({size}, kSizeRead)[0].item<int64_t>();
}

Tensor read_sizes(const std::vector<Tensor>& sizes) {
  const debug::WaitScope waits(kSizeRead);
  return at::stack(sizes).to(at::kLong).cpu();
}

// Its own memory: a view would keep the longest form.
Tensor front(const Tensor& t, int64_t count) { return t.narrow(0, 0, count).clone(); }

Tensor nonzero(const Tensor& self) {
  if (self.numel() == 0) return at::empty({self.dim(), 0}, positions_like(self)).t();
  if (self.dim() == 0) {
    return at::empty({read_size("aten::nonzero", self != 0), 0}, positions_like(self));
  }
  const auto [positions, count] = longest_nonzero(self);
  // One dimension after the other, as the CPU's kernel lays them out.
  const Tensor rows = positions.narrow(0, 0, read_size("aten::nonzero", count));
  return rows.t().clone(at::MemoryFormat::Contiguous).t();
}

Tensor& nonzero_out(const Tensor& self, Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type",
              out.scalar_type());
  return write_out("nonzero", out, dispatch::nonzero(self), {self});
}

Tensor masked_select(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_select: expected BoolTensor for mask, got a tensor of ", mask.scalar_type(),
              ".");
  TORCH_CHECK(lazy::is_lazy(self) && lazy::is_lazy(mask),
              "Expected all tensors to be on the same device, but found self on ", self.device(),
              " and mask on ", mask.device(), ".");
  const auto expanded = at::expand_outplace(mask, self);
  const Tensor& values = *std::get<1>(expanded);
  if (values.numel() == 0) return at::empty({0}, self.options());
  const auto [selected, count] = longest_masked_select(values, *std::get<0>(expanded));
  return front(selected, read_size("aten::masked_select", count));
}

Tensor& masked_select_out(const Tensor& self, const Tensor& mask, Tensor& out) {
  TORCH_CHECK(out.scalar_type() == self.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  return write_out("masked_select", out, dispatch::masked_select(self, mask), {self, mask});
}

// Distinct elements, or rows of a matrix: (values, inverse, counts).
std::tuple<Tensor, Tensor, Tensor> distinct(const char* call, const Tensor& self, bool rows,
                                            bool consecutive) {
  const auto [values, inverse, counts, found] = longest_unique(self, rows, consecutive);
  const int64_t count = read_size(call, found);
  return {front(values, count), inverse, front(counts, count)};
}

std::tuple<Tensor, Tensor, Tensor> unique(const Tensor& self, bool consecutive, bool with_inverse,
                                          bool with_counts) {
  TORCH_CHECK_NOT_IMPLEMENTED(consecutive || !self.is_complex(), "\"unique\" not implemented for '",
                              self.scalar_type(), "'");
  const at::TensorOptions integers = positions_like(self);
  const Tensor none = at::empty({0}, integers);
  if (self.numel() == 0) {
    return {at::empty({0}, self.options()), with_inverse ? at::empty(self.sizes(), integers) : none,
            none};
  }
  const char* call = consecutive ? "aten::unique_consecutive" : "aten::_unique2";
  const auto [values, inverse, counts] = distinct(call, self, /*rows=*/false, consecutive);
  return {values, with_inverse ? inverse : none, with_counts ? counts : none};
}

// Slices along a dimension, as rows. PyTorch gives all three results whether asked for or not.
std::tuple<Tensor, Tensor, Tensor> unique_slices(const Tensor& self, int64_t dim_arg,
                                                 bool consecutive) {
  const int64_t dim = c10::maybe_wrap_dim(dim_arg, self.dim(), /*wrap_scalar=*/false);
  const auto empty_dims = std::count(self.sizes().begin(), self.sizes().end(), 0);
  if (self.size(dim) == 0) {
    TORCH_CHECK(empty_dims == 1,
                "Number of zero sized dimensions is more than one, so unique cannot be applied");
    const Tensor none = at::empty({0}, positions_like(self));
    return {at::empty(self.sizes(), self.options()), none, none};
  }
  TORCH_CHECK(empty_dims == 0,
              "There are 0 sized dimensions, and they aren't selected, so unique cannot be "
              "applied");
  const Tensor slices = self.movedim(dim, 0);
  const char* call = consecutive ? "aten::unique_dim_consecutive" : "aten::unique_dim";
  auto [rows, inverse, counts] =
      distinct(call, slices.reshape({slices.size(0), -1}), /*rows=*/true, consecutive);
  std::vector<int64_t> sizes = slices.sizes().vec();
  sizes[0] = rows.size(0);
  return {rows.reshape(sizes).movedim(0, dim), inverse, counts};
}

std::tuple<Tensor, Tensor, Tensor> unique_dim(const Tensor& self, int64_t dim, bool /*sorted*/,
                                              bool /*return_inverse*/, bool /*return_counts*/) {
  return unique_slices(self, dim, /*consecutive=*/false);
}

std::tuple<Tensor, Tensor, Tensor> unique_dim_consecutive(const Tensor& self, int64_t dim,
                                                          bool /*return_inverse*/,
                                                          bool /*return_counts*/) {
  return unique_slices(self, dim, /*consecutive=*/true);
}

// Always sorted, which `sorted=False` permits.
std::tuple<Tensor, Tensor, Tensor> unique2(const Tensor& self, bool, bool return_inverse,
                                           bool return_counts) {
  return unique(self, false, return_inverse, return_counts);
}

std::tuple<Tensor, Tensor> unique1(const Tensor& self, bool, bool return_inverse) {
  auto [values, inverse, counts] = unique(self, false, return_inverse, false);
  return {values, inverse};
}

std::tuple<Tensor, Tensor, Tensor> unique_consecutive(const Tensor& self, bool return_inverse,
                                                      bool return_counts,
                                                      std::optional<int64_t> dim) {
  return dim ? unique_slices(self, *dim, true) : unique(self, true, return_inverse, return_counts);
}

Tensor bincount(const Tensor& self, const std::optional<Tensor>& weights, int64_t minlength) {
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  const bool weighted = weights && weights->defined();
  const bool counted = self.dim() == 1 && at::isIntegralType(self.scalar_type(), false);
  TORCH_CHECK(counted, "bincount only supports 1-d non-negative integral inputs.");
  TORCH_CHECK(!weighted || weights->sizes() == self.sizes(),
              "weights should be 1-d and have the same length as input");
  const at::TensorOptions options = !weighted ? positions_like(self)
                                    : weights->scalar_type() == at::kFloat
                                        ? weights->options()
                                        : weights->options().dtype(at::kDouble);
  if (self.numel() == 0) return at::zeros({minlength}, positions_like(self));
  const Tensor ends = read_sizes({self.min(), self.max()});
  const int64_t least = ends[0].item<int64_t>(), greatest = ends[1].item<int64_t>();
  TORCH_CHECK(least >= 0, "bincount only supports 1-d non-negative integral inputs.");
  const Tensor added = weighted ? weights->to(options.dtype()) : at::ones(self.sizes(), options);
  return at::zeros({std::max(greatest + 1, minlength)}, options)
      .index_add(0, self.to(at::kLong), added);
}

Tensor repeat_interleave(const Tensor& repeats, std::optional<int64_t> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  const at::ScalarType dtype = repeats.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(dtype == at::kLong || dtype == at::kInt,
                              "\"repeat_interleave_cpu\" not implemented for '", dtype, "'");
  if (!output_size) {
    if (repeats.numel() == 0) return at::empty_like(repeats);
    const Tensor ends = read_sizes({repeats.min().to(at::kLong), repeats.sum()});
    TORCH_CHECK(ends[0].item<int64_t>() >= 0, "repeats can not be negative");
    output_size = ends[1].item<int64_t>();
  }
  if (repeats.numel() != 0) {
    const lazy::GraphLock lock;
    if (const std::optional<Tensor> known = known_values(repeats)) {
      TORCH_CHECK(known->sum().item<int64_t>() == *output_size,
                  "allocated size does not match required size");
      TORCH_CHECK(known->min().item<int64_t>() >= 0, "repeats can not be negative");
    }
  }
  return runs(repeats, *output_size);
}

// The least and the greatest class, where they are known or have to be.
std::optional<std::pair<int64_t, int64_t>> ends_of(const Tensor& classes, bool wanted) {
  const auto read = [](const Tensor& t) {
    return std::pair(t.min().item<int64_t>(), t.max().item<int64_t>());
  };
  {
    const lazy::GraphLock lock;
    if (const std::optional<Tensor> known = known_values(classes)) return read(*known);
  }
  if (!wanted) return std::nullopt;
  return read(read_sizes({classes.min(), classes.max()}));
}

// Classes out of range give zeros where nobody can tell when the call is made.
Tensor one_hot(const Tensor& self, int64_t num_classes) {
  TORCH_CHECK(self.scalar_type() == at::kLong,
              "one_hot is only applicable to index tensor of type LongTensor.");
  TORCH_CHECK(num_classes >= -1, "one_hot: expected num_classes >= 0, or -1, got ", num_classes);
  if (self.numel() == 0) {
    TORCH_CHECK(num_classes >= 0, "Can not infer total number of classes from empty tensor.");
  } else if (const auto ends = ends_of(self, num_classes < 0)) {
    const auto [least, greatest] = *ends;
    TORCH_CHECK(least >= 0, "Class values must be non-negative.");
    if (num_classes < 0) num_classes = greatest + 1;
    TORCH_CHECK(greatest < num_classes, "Class values must be smaller than num_classes.");
  }
  TORCH_CHECK(num_classes > 0 || self.numel() == 0,
              "Class values must be smaller than num_classes.");
  return one_hot_of(self, num_classes);
}

// --- least squares -------------------------------------------------------------------------

using LeastSquares = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// Returns whether all matrices have more rows than columns and a solver that tells their ranks:
// PyTorch gives residuals only where all ranks are full.
bool residuals_depend_on_ranks(const Tensor& self, std::optional<std::string_view> driver) {
  return (driver == "gelss" || driver == "gelsd") && self.size(-2) > self.size(-1);
}

// (.., columns of the right side), one column where that is a vector.
std::vector<int64_t> residual_sizes(const Tensor& self, const Tensor& b) {
  const bool vector = at::native::linalg_solve_is_vector_rhs(self, b);
  const Tensor right = vector ? b.unsqueeze(-1) : b;
  std::vector<int64_t> sizes = at::native::broadcast_batch_size(self, right, self.dim() - 2);
  sizes.push_back(right.size(-1));
  return sizes;
}

// The CPU's kernel, which has the words, is shown a call that is refused here.
LeastSquares linalg_lstsq_meta(const Tensor& self, const Tensor& b, std::optional<double>,
                               std::optional<std::string_view> driver_arg) {
  const std::string_view driver = driver_arg.value_or("gelsy");
  const bool known =
      driver == "gels" || driver == "gelsy" || driver == "gelsd" || driver == "gelss";
  const int64_t missing = self.dim() - b.dim();
  const at::ScalarType real_type = c10::toRealValueType(self.scalar_type());
  const bool fits = known && self.dim() >= 2 && b.dim() >= 1 && (missing == 0 || missing == 1) &&
                    self.scalar_type() == b.scalar_type() &&
                    (real_type == at::kFloat || real_type == at::kDouble);
  TORCH_CHECK(fits, "torch.linalg.lstsq: expected matrices, right sides and a driver.");
  const bool vector = at::native::linalg_solve_is_vector_rhs(self, b);
  TORCH_CHECK(self.size(-2) == b.size(vector ? -1 : -2),
              "torch.linalg.lstsq: input.size(-2) should match other.size(-1)");
  const int64_t rows = self.size(-2), columns = self.size(-1);
  std::vector<int64_t> sizes = residual_sizes(self, b);
  const std::vector<int64_t> batch(sizes.begin(), sizes.end() - 1), none = {0};
  const at::TensorOptions real = self.options().dtype(real_type);
  const bool has_residuals = rows > columns && driver != "gelsy";
  const Tensor residuals = at::empty(has_residuals ? sizes : none, real);
  if (vector) sizes.pop_back();
  sizes.insert(sizes.begin() + static_cast<int64_t>(batch.size()), columns);
  std::vector<int64_t> matrices(self.sizes().begin(), self.sizes().end() - 2);
  const Tensor rank = at::empty(driver == "gels" ? none : matrices, positions_like(self));
  matrices.push_back(std::min(rows, columns));
  const bool has_values = driver == "gelsd" || driver == "gelss";
  if (!vector) std::swap(sizes[sizes.size() - 2], sizes.back());
  const Tensor solution = at::empty(sizes, self.options());
  return {vector ? solution : solution.mT(), residuals, rank,
          at::empty(has_values ? matrices : none, real)};
}

const OwnOperator least_squares(
    "linalg_lstsq(Tensor self, Tensor b, float? rcond, str? driver) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    linalg_lstsq_meta);

LeastSquares linalg_lstsq(const Tensor& self, const Tensor& b, std::optional<double> rcond,
                          std::optional<std::string_view> driver) {
  static const auto aten = c10::Dispatcher::singleton().findSchemaOrThrow("aten::linalg_lstsq", "");
  if (!ops::has_host_kernel(least_squares.handle(), executor::Runtime::get().target())) {
    torch::jit::Stack stack{self, b, rcond, driver};
    host_fallback(aten, &stack);
    return {stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor(), stack[3].toTensor()};
  }
  auto [solution, residuals, rank, singular_values] = least_squares(self, b, rcond, driver);
  if (residuals_depend_on_ranks(self, driver) && !rank.eq(self.size(-1)).all().item<bool>()) {
    residuals = at::empty({0}, residuals.options());
  }
  return {solution, residuals, rank, singular_values};
}

std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> linalg_lstsq_out(
    const Tensor& self, const Tensor& b, std::optional<double> rcond,
    std::optional<std::string_view> driver, Tensor& solution, Tensor& residuals, Tensor& rank,
    Tensor& singular_values) {
  const LeastSquares found = dispatch::linalg_lstsq(self, b, rcond, driver);
  const auto write = [&](const char* name, Tensor& out, const Tensor& result) {
    TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()),
                "torch.linalg.lstsq: Expected ", name, " to be safely castable from ",
                result.scalar_type(), " dtype, but got ", name, " with dtype ", out.scalar_type());
    write_out("torch.linalg.lstsq", out, result, {self, b});
  };
  write("solution", solution, std::get<0>(found));
  write("residuals", residuals, std::get<1>(found));
  write("rank", rank, std::get<2>(found));
  write("singular_values", singular_values, std::get<3>(found));
  return {solution, residuals, rank, singular_values};
}

// PyTorch's kernel, but residuals that ranks decide about are always there.
LeastSquares linalg_lstsq_cpu(const Tensor& self, const Tensor& b, std::optional<double> rcond,
                              std::optional<std::string_view> driver) {
  auto [solution, residuals, rank, singular_values] = at::linalg_lstsq(self, b, rcond, driver);
  if (residuals_depend_on_ranks(self, driver)) {
    const std::vector<int64_t> sizes = residual_sizes(self, b);
    if (residuals.sizes() != sizes) residuals = at::zeros(sizes, residuals.options());
  }
  return {solution, residuals, rank, singular_values};
}

const ops::Rules value_shapes_rules([](ops::Registry& r) {
  r.all("aten::linalg_lstsq").autocast = ops::Autocast::Float32;
});

TORCH_LIBRARY_IMPL(torch_xla, CPU, m) { m.impl("linalg_lstsq", TORCH_FN(linalg_lstsq_cpu)); }

TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("nonzero", TORCH_FN(nonzero));
  m.impl("nonzero.out", TORCH_FN(nonzero_out));
  m.impl("masked_select", TORCH_FN(masked_select));
  m.impl("masked_select.out", TORCH_FN(masked_select_out));
  m.impl("_unique", TORCH_FN(unique1));
  m.impl("_unique2", TORCH_FN(unique2));
  m.impl("unique_dim", TORCH_FN(unique_dim));
  m.impl("unique_dim_consecutive", TORCH_FN(unique_dim_consecutive));
  m.impl("unique_consecutive", TORCH_FN(unique_consecutive));
  m.impl("bincount", TORCH_FN(bincount));
  m.impl("repeat_interleave.Tensor", TORCH_FN(repeat_interleave));
  m.impl("one_hot", TORCH_FN(one_hot));
  m.impl("linalg_lstsq", TORCH_FN(linalg_lstsq));
  m.impl("linalg_lstsq.out", TORCH_FN(linalg_lstsq_out));
}

}  // namespace
}  // namespace torch_xla::dispatch
