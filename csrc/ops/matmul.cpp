// Matrix products: mm, bmm, addmm and their relatives, trilinear.
#include "ops/matmul.h"

#include <algorithm>
#include <array>
#include <optional>

#include <ATen/ExpandUtils.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/bmm.h>

#include "lazy/operator.h"
#include "ops/common.h"
#include "ops/contraction.h"
#include "ops/host_rules.h"
#include "ops/meta.h"
#include "ops/notation.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

// --- products alone ------------------------------------------------------------------------

Values mm(Lowering& l) { return result(l, contract(l.in(0), "ik", l.in(1), "kj", "ij")); }
Values bmm(Lowering& l) { return result(l, contract(l.in(0), "bik", l.in(1), "bkj", "bij")); }
Values mv(Lowering& l) { return result(l, contract(l.in(0), "ik", l.in(1), "k", "i")); }
Values dot_product(Lowering& l) { return result(l, contract(l.in(0), "k", l.in(1), "k", "")); }

Values vdot(Lowering& l) { return result(l, contract(conjugate(l.in(0)), "k", l.in(1), "k", "")); }

// Products of narrow integers that are summed in a wider type.
Values int_mm(Lowering& l) {
  const DType wide = l.out().dtype;
  return result(l, contract(cast(l.in(0), wide), "ik", cast(l.in(1), wide), "kj", "ij"));
}

// --- beta * self + alpha * product ---------------------------------------------------------

// The product scaled and added to operand 0. As in PyTorch, beta = 0 hides self, even its nan.
Value scaled_sum(Lowering& l, const Value& product, size_t beta_arg, size_t alpha_arg) {
  Value sum = product;
  if (!is_static_number(l, alpha_arg, 1)) sum = sum * number_like(l, alpha_arg, sum);
  if (is_static_number(l, beta_arg, 0)) return sum;
  const Value self = operand(l, 0, sum.dtype());
  if (is_static_number(l, beta_arg, 1)) return self + sum;
  const Value beta = number_like(l, beta_arg, sum);
  const Value zero = hlo::zero(l.b, sum.type());
  return hlo::select(hlo::equal(beta, zero), zero, beta * self) + sum;
}

template <char Kind>
Value product_of(Lowering& l) {
  if constexpr (Kind == 'm') return contract(l.in(1), "ik", l.in(2), "kj", "ij");
  if constexpr (Kind == 'b') return contract(l.in(1), "bik", l.in(2), "bkj", "bij");
  if constexpr (Kind == 's') return contract(l.in(1), "bik", l.in(2), "bkj", "ij");
  if constexpr (Kind == 'v') return contract(l.in(1), "ik", l.in(2), "k", "i");
}

// `Beta` is the schema position of beta; alpha follows it.
template <char Kind, size_t Beta>
Values add_product(Lowering& l) {
  return result(l, scaled_sum(l, product_of<Kind>(l), Beta, Beta + 1));
}

Values addr(Lowering& l) {
  const DType dtype = accumulator(l.out().dtype);
  const hlo::Dims dims = l.out().dims;
  const std::array<int64_t, 1> row = {0}, column = {1};
  const Value product = hlo::mul(hlo::broadcast_in_dim(cast(l.in(1), dtype), dims, row),
                                 hlo::broadcast_in_dim(cast(l.in(2), dtype), dims, column));
  if (dtype != DType::Pred) return result(l, scaled_sum(l, product, 3, 4));
  // On bool, alpha and beta switch their terms on, and the sum is "or".
  const Value sum = product & number_like(l, 4, product);
  return result(l, sum | (operand(l, 0, dtype) & number_like(l, 3, product)));
}

Values addmm_activation(Lowering& l) {
  const Value x = scaled_sum(l, product_of<'m'>(l), 3, 4);
  if (!l.flag(5)) return result(l, hlo::max(x, hlo::zero(l.b, x.type())));
  return result(l, 0.5 * x * (1.0 + hlo::erf(x * 0.70710678118654752440)));
}

// --- products of groups --------------------------------------------------------------------

// x with a first dimension of the groups, in each of which the places of other groups along `dim`
// of x are zero. `ends`: where each group ends.
Value split_into_groups(const Value& x, const Value& ends, int64_t dim) {
  const int64_t groups = ends.dim(0);
  hlo::Dims dims = x.dims();
  dims.insert(dims.begin(), groups);
  const hlo::Type places{ends.dtype(), dims};
  const std::array<int64_t, 1> first = {0};
  const Value end = hlo::broadcast_in_dim(ends, dims, first);
  const std::array<Value, 2> shifted = {hlo::zero(x.builder(), {ends.dtype(), {1}}),
                                        hlo::slice_dim(ends, 0, 0, groups - 1)};
  const Value start = hlo::broadcast_in_dim(hlo::concatenate(shifted, 0), dims, first);
  const Value place = hlo::iota(x.builder(), places, dim + 1);
  const Value inside = hlo::greater_equal(place, start) & hlo::less(place, end);
  return hlo::select(inside, hlo::broadcast_to(x, dims), 0.0);
}

// A product per group (Mixture of Experts). The groups are matrices of their own or parts of a
// dimension, where the product is that of all groups with zeros for the others: the work of
// all of them for each. Schema: self, mat2, offs, bias, out_dtype.
Values grouped_mm(Lowering& l) {
  const Value a = l.in(0), b = l.in(1);
  if (!l.has(2)) return result(l, contract(a, "gik", b, "gkj", "gij"));
  const Value ends = l.in(2);
  if (a.rank() == 3)
    return result(l, contract(a, "gik", split_into_groups(b, ends, 1), "gkj", "ij"));
  const Value left = split_into_groups(a, ends, b.rank() == 3 ? 0 : 1);
  return b.rank() == 3 ? result(l, contract(left, "gik", b, "gkj", "ij"))
                       : result(l, contract(left, "gik", b, "kj", "gij"));
}

// --- trilinear -----------------------------------------------------------------------------

// sum(i1 * i2 * i3) over `sumdim`, each operand first given dimensions of size 1 at its `expand`.
// Two matrix products: i1 with i3, then with i2.
Values trilinear(Lowering& l) {
  std::array<Value, 3> x;
  std::array<std::string, 3> letters;
  int64_t rank = 0;
  for (size_t i = 0; i < 3; ++i) {
    x[i] = l.in(i);
    rank = std::max<int64_t>(rank, x[i].rank() + static_cast<int64_t>(l.ints(3 + i).size()));
  }
  std::vector<int64_t> sizes(rank, 1);
  std::array<std::vector<int64_t>, 3> dims_of;
  for (size_t i = 0; i < 3; ++i) {
    std::vector<bool> expanded(rank, false);
    for (const int64_t dim : l.ints(3 + i)) expanded[wrap_dim(dim, rank)] = true;
    int64_t next = 0;
    for (int64_t dim = 0; dim < rank; ++dim) {
      if (expanded[dim]) continue;
      dims_of[i].push_back(dim);
      if (const int64_t size = x[i].dim(next++); size != 1) sizes[dim] = size;
    }
  }
  // A dimension of size 1 that another operand has in full broadcasts: it carries no letter.
  for (size_t i = 0; i < 3; ++i) {
    hlo::Dims kept;
    for (size_t j = 0; j < dims_of[i].size(); ++j) {
      const int64_t size = x[i].dim(static_cast<int64_t>(j));
      if (size != sizes[dims_of[i][j]]) continue;
      kept.push_back(size);
      letters[i] += static_cast<char>('a' + dims_of[i][j]);
    }
    x[i] = hlo::reshape(x[i], kept);
  }
  std::vector<bool> summed(rank, false);
  for (const int64_t dim : l.ints(6)) summed[wrap_dim(dim, rank)] = true;
  std::string middle, out;
  hlo::Dims out_sizes;
  double repeats = 1;  // a dimension that no operand has and that is summed counts its size
  for (int64_t dim = 0; dim < rank; ++dim) {
    const char c = static_cast<char>('a' + dim);
    const bool first =
        letters[0].find(c) != std::string::npos || letters[2].find(c) != std::string::npos;
    const bool second = letters[1].find(c) != std::string::npos;
    if (first && (second || !summed[dim])) middle += c;
    if (summed[dim]) {
      if (!first && !second) repeats *= static_cast<double>(sizes[dim]);
    } else if (first || second) {
      out += c;
    }
  }
  const Value y = contract(contract(x[0], letters[0], x[2], letters[2], middle), middle,
                           cast(x[1], accumulator(x[1].dtype())), letters[1], out);
  return {hlo::reshape(cast(repeats == 1 ? y : y * repeats, l.out().dtype), l.out().dims)};
}

// --- PyTorch's kernels ---------------------------------------------------------------------

// The call's next argument: the factor, or its transpose, cut along `dim` of what is asked for.
void give(HostCall& call, const Factor& f, bool transpose, int64_t dim) {
  const bool turn = transpose != f.transposed;
  const int64_t own = dim == cpu::Partition::kWhole || !turn ? dim : 1 - dim;
  const std::array<int64_t, 2> given = {f.rows(), f.columns()};
  const Value matrix = hlo::reshape(f.matrix, {given[f.transposed], given[!f.transposed]});
  turn ? call.transposed(matrix, own) : call.part(matrix, own);
}

// Elements of a product that is too large to be copied whole: the C library maps its memory anew
// each time. Its parts are some of its columns, of which each packs its own weights alone.
constexpr int64_t kLargeProduct = 1 << 22;

// oneDNN's product by a transposed weight, where it is faster than MKL's though its result must be
// copied: it takes long to begin.
bool takes_onednn(DType dtype, const Extents& p, const Factor& left, const Factor& right) {
  static const bool found =
      c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""}).has_value();
  return kHasOneDnn && found && dtype == DType::F32 && !left.transposed && p.work() >= 1 << 22 &&
         std::min({p.left, p.right, p.contracted}) >= 16 &&
         (right.transposed || p.left * p.right <= kLargeProduct);
}

// XLA packs a right factor anew for each product, at a cost that counts where there are few rows,
// and gathers a left one that lies across what is contracted.
bool is_faster(DType dtype, const Extents& p, const Factor& left, const Factor& right) {
  if (p.work() == 0 || is_few_long_sums(p, dtype)) return false;
  if (is_narrow(dtype)) return multiplies(dtype);  // XLA widens them to f32 first
  if (!is_whole_float(dtype)) return false;
  if (takes_onednn(dtype, p, left, right)) return true;
  if (left.transposed) return p.work() >= 1 << 20 && p.contracted >= 256;
  return right.transposed && p.work() >= 1 << 17 && p.left * p.right <= 1024 * p.contracted;
}

}  // namespace

Factor factor_of(const Value& x) {
  const Value* from = x.builder().transposed_from(x);
  return from != nullptr ? Factor{*from, true} : Factor{x};
}

std::optional<Value> host_product(const Factor& left, const Factor& right,
                                  const std::optional<Value>& row) {
  const DType dtype = left.matrix.dtype();
  const Extents p{left.columns(), left.rows(), right.columns()};
  if (!choose_host(is_faster(dtype, p, left, right))) return std::nullopt;
  const bool onednn = takes_onednn(dtype, p, left, right);
  const bool is_large = p.left * p.right > kLargeProduct;
  // Parts of the product's larger side. Of a factor with gaps in its memory, oneDNN's product is
  // ten thousand times slower.
  const bool by_rows =
      onednn ? !right.transposed || (p.left >= p.right && !is_large) : p.left >= p.right;
  const auto rows_cut = [&](int64_t dim) { return by_rows ? dim : cpu::Partition::kWhole; };
  const auto columns_cut = [&](int64_t dim) { return by_rows ? cpu::Partition::kWhole : dim; };
  HostCall call(left.matrix.builder(),
                onednn ? "mkldnn::_linear_pointwise"
                : row  ? "aten::addmm"
                       : "aten::mm",
                Fails::Never);
  if (row && !onednn) call.part(*row, columns_cut(0));
  give(call, left, false, rows_cut(0));
  if (onednn) {
    give(call, right, true, columns_cut(0));
    row ? call.part(*row, columns_cut(0)) : call.none();
    call.fixed("none").fixed(c10::List<int64_t>()).fixed("");  // what is done to the sum: nothing
  } else {
    give(call, right, false, columns_cut(1));
    if (row) call.fixed(1).fixed(1);  // beta, alpha
  }
  return call.result({dtype, {p.left, p.right}}, by_rows ? 0 : 1);
}

namespace {

// The factors of a product as the parts of the call take them: some rows of the left one, or some
// columns of the right one; of batches, some products.
template <size_t Left>
cpu::Partition cut_product(Lowering& l) {
  constexpr size_t kRight = Left + 1;
  const Value left = l.in(Left), right = l.in(kRight);
  if (left.dim(0) >= kBatch || right.rank() != 2) {
    cpu::Partition by = {{{Left, 0}}, {0}};
    if (right.rank() == 3) by.operands.push_back({kRight, 0});
    return by;
  }
  return {{{kRight, 1}}, {l.out().rank() - 1}};
}

// PyTorch multiplies narrow floats as such; XLA widens them to f32 first. `addend`: the position of
// what is added to the product, which may be broadcast.
template <size_t Left, size_t Addend = SIZE_MAX>
Values product_on_host(Lowering& l) {
  bool faster = true;
  for (const lazy::OperandInfo& info : l.signature().operands) {
    const DType dtype = to_hlo(*info.geometry).dtype;
    faster = faster && is_narrow(dtype) && multiplies(dtype) && info.geometry->numel != 0;
  }
  if (!choose_host(faster)) return xla_code(l);
  if (is_empty(l, {Left, Left + 1}) || l.in(Left).rank() < 2) {
    return on_host(l, {}, Fails::Never);
  }
  cpu::Partition by = cut_product<Left>(l);
  if (Addend != SIZE_MAX && l.has(Addend)) {
    // Aligned at the last dimension; one that is broadcast along the cut is whole for all parts.
    const Value addend = l.in(Addend);
    const int64_t dim = by.results[0] - (l.out().rank() - addend.rank());
    if (dim >= 0 && addend.dim(dim) == l.out().dims[by.results[0]]) {
      by.operands.push_back({Addend, dim});
    }
  }
  return on_host(l, by, Fails::Never);
}

// A product of matrices in whole floats; of others, nothing.
template <size_t Left>
std::optional<Value> whole_product(Lowering& l, const std::optional<Value>& row = std::nullopt) {
  const Value left = l.in(Left), right = l.in(Left + 1);
  if (left.rank() != 2 || right.rank() != 2 || is_narrow(left.dtype())) return std::nullopt;
  return host_product(factor_of(left), factor_of(right), row);
}

Values mm_on_host(Lowering& l) {
  const std::optional<Value> product = whole_product<0>(l);
  return product ? result(l, *product) : product_on_host<0>(l);
}

Values addmm_on_host(Lowering& l) {
  const Value self = l.in(0);
  const bool is_row = is_static_number(l, 3, 1) && is_static_number(l, 4, 1) && self.rank() == 1 &&
                      self.dim(0) == l.out().dims[1];
  const std::optional<Value> product =
      whole_product<1>(l, is_row ? std::optional(self) : std::nullopt);
  if (!product) return product_on_host<1, 0>(l);
  return result(l, is_row ? *product : scaled_sum(l, *product, 3, 4));
}

// PyTorch's kernel asks this of its operands' rows.
bool has_aligned_rows(const Value& x) {
  return x.dim(x.rank() - 1) * hlo::bit_width(x.dtype()) % 128 == 0;
}

// PyTorch takes each group's rows alone; XLA's code takes all rows for each group. PyTorch leaves
// what is in no group uninitialized.
Values grouped_product_on_host(Lowering& l) {
  const bool possible = l.has(2) && !is_empty(l, {0, 1}) && has_aligned_rows(l.in(0)) &&
                        has_aligned_rows(l.in(1)) && multiplies(l.in(0).dtype());
  return possible && choose_host(true) ? on_host(l) : xla_code(l);
}

// --- What PyTorch's Meta kernels leave out ------------------------------------------------

// (self, batch1, batch2, out_dtype, ..): PyTorch's Python function takes the dtype for a factor.
void baddbmm_to_dtype(MetaCall& call) {
  const at::Tensor product = at::bmm(call.tensor(1), call.tensor(2));
  (void)call.tensor(0).expand(product.sizes());
  call.results({product.to(call[3].toScalarType())});
}

// (self, mat2, offs, bias, out_dtype): a matrix per group, or two dimensions of which one is cut
// into the groups.
void grouped_mm_meta(MetaCall& call) {
  const at::Tensor a = call.tensor(0), b = call.tensor(1);
  const bool has_ends = call[2].isTensor();
  TORCH_CHECK((a.dim() == 2 || a.dim() == 3) && (b.dim() == 2 || b.dim() == 3),
              "Multiplicands must be 2D or 3D but got mat_a.dim()=", a.dim(),
              " and mat_b.dim()=", b.dim());
  TORCH_CHECK(a.size(-1) == b.size(-2), "contraction dimension of mat_a and mat_b must match");
  TORCH_CHECK(
      has_ends == (a.dim() == 2 || b.dim() == 2),
      "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d");
  TORCH_CHECK(call[3].isNone(), "Bias not supported yet");
  std::vector<int64_t> sizes = {a.size(-2), b.size(-1)};
  if (has_ends) {
    const at::Tensor ends = call.tensor(2);
    TORCH_CHECK(ends.dim() == 1, "offs has to be 1D");
    TORCH_CHECK(ends.scalar_type() == at::kInt, "Offsets have to be int32");
    const at::Tensor& groups = a.dim() == 3 ? a : b;
    TORCH_CHECK(groups.dim() == 2 || groups.size(0) == ends.size(0),
                "matrix batch sizes have to match");
    if (groups.dim() == 2) sizes.insert(sizes.begin(), ends.size(0));
  } else {
    TORCH_CHECK(a.size(0) == b.size(0), "batched dimension has to match");
    sizes.insert(sizes.begin(), a.size(0));
  }
  const at::ScalarType dtype =
      call[4].isNone() ? a.scalar_type() : static_cast<at::ScalarType>(call[4].toInt());
  const auto* geometry = lazy::intern_contiguous(dtype, sizes);
  call.results({meta_tensor(*geometry, false)});
}

// (self, tensor)
void dot_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0), y = call.tensor(1);
  const bool usual = x.dim() == 1 && x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type();
  if (!usual) return call.pytorch();
  call.results({meta_of_sizes(x, {})});
}

// (self, batch1, batch2, ..)
void addbmm_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0), a = call.tensor(1), b = call.tensor(2);
  bool usual = a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.size(2) == b.size(1);
  for (const at::Tensor& factor : {a, b}) usual = usual && factor.scalar_type() == x.scalar_type();
  if (!usual || !at::is_expandable_to(x.sizes(), {a.size(1), b.size(2)})) return call.pytorch();
  call.results({meta_of_sizes(x, {a.size(1), b.size(2)})});
}

void vector_product(at::ScalarType self, at::ScalarType matrix, at::ScalarType vector) {
  TORCH_CHECK(matrix == vector && self == vector,
              "addmv input tensors must have the same dtype, but got ", self, ", ", matrix,
              ", and ", vector);
}

// (self, matrix, vector, ..)
void check_addmv(const Arguments& a) {
  vector_product(a.tensor(0).scalar_type(), a.tensor(1).scalar_type(), a.tensor(2).scalar_type());
}

// (matrix, vector)
void check_mv(const Arguments& a) {
  const at::ScalarType vector = a.tensor(1).scalar_type();
  vector_product(vector, a.tensor(0).scalar_type(), vector);
}

}  // namespace

const Rules matmul_rules([](Registry& r) {
  r.add("aten::mm", mm).on_cpu = mm_on_host;
  r.add("aten::mm.dtype", mm);
  r.add("aten::bmm", bmm).on_cpu = product_on_host<0>;
  r.add("aten::bmm.dtype", bmm);
  r.add("aten::mv", mv);
  r.add("aten::dot", dot_product);
  r.add("aten::vdot", vdot);
  r.add("aten::_int_mm", int_mm);

  r.add("aten::addmm", add_product<'m', 3>).on_cpu = addmm_on_host;
  r.add("aten::addmm.dtype", add_product<'m', 4>);
  r.add("aten::baddbmm", add_product<'b', 3>).on_cpu = product_on_host<1, 0>;
  r.add("aten::baddbmm.dtype", add_product<'b', 4>);
  r.add("aten::addbmm", add_product<'s', 3>);
  r.add("aten::addmv", add_product<'v', 3>);
  r.add("aten::addr", addr);
  r.add("aten::_addmm_activation", addmm_activation);

  r.add("aten::_grouped_mm", grouped_mm).on_cpu = grouped_product_on_host;

  r.add("aten::_trilinear", trilinear);

  for (const char* name : {"aten::dot", "aten::vdot"}) r.all(name).meta = dot_meta;
  r.all("aten::mv").checks_call = check_mv;
  r.all("aten::addmv") = {.checks_call = check_addmv, .writes_repeated = true};
  r.all("aten::baddbmm").writes_repeated = true;
  r.all("aten::addbmm").meta = addbmm_meta;
  r.one("aten::baddbmm.dtype") = {.meta = baddbmm_to_dtype, .writes_repeated = true};
  r.all("aten::_addmm_activation").autocast = Autocast::Narrow;
  r.all("aten::_grouped_mm").meta = grouped_mm_meta;
});

}  // namespace torch_xla::ops
