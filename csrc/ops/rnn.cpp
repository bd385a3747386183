// One direction of one layer of an LSTM, GRU or plain RNN, and its gradient: torch_xla::rnn_layer
// and rnn_layer_backward; and a whole LSTM in inference, torch_xla::lstm.
// dispatch/composites/rnn.cpp defines them and builds PyTorch's modules from them. What does not
// depend on another step is computed for all steps at once, outside the loop over time. The loop's
// body is written for XLA on CPU, where it costs most: eight kernels at most (more run as tasks of
// a thread pool, at several times their own cost), and in them a value read from a sequence has one
// use and no reshape between different shapes, or they are not vectorized.
#include <array>
#include <functional>
#include <optional>
#include <string>

#include "ops/common.h"
#include "ops/contraction.h"
#include "ops/host_rules.h"
#include "ops/rearrange.h"
#include "ops/rules.h"
#include "util/error.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Type;
using hlo::Value;
using hlo::Values;

enum class Cell { Lstm, Gru, Tanh, Relu };

Cell read_cell(const std::string& mode) {
  if (mode == "lstm") return Cell::Lstm;
  if (mode == "gru") return Cell::Gru;
  if (mode == "rnn_tanh") return Cell::Tanh;
  if (mode == "rnn_relu") return Cell::Relu;
  util::fail(util::ErrorKind::Value,
             "recurrent layer: expected the mode lstm, gru, rnn_tanh or rnn_relu, got ", mode, ".");
}

// A sequence [T, ...] at step t.
Value at_step(const Value& x, const Value& t) {
  Values starts(x.rank(), hlo::scalar_int(t.builder(), 0, t.dtype()));
  starts[0] = t;
  Dims dims = x.dims();
  dims[0] = 1;
  const Value step = hlo::dynamic_slice(x, starts, dims);
  return hlo::reshape(step, {dims.begin() + 1, dims.end()});
}

// `size` columns of [T, B, D] at step t: [B, size].
Value at_step(const Value& x, const Value& t, int64_t column, int64_t size) {
  const auto index = [&](int64_t i) { return hlo::scalar_int(t.builder(), i, t.dtype()); };
  const std::array<Value, 3> starts = {t, index(0), index(column)};
  return hlo::reshape(hlo::dynamic_slice(x, starts, {1, x.dim(1), size}), {x.dim(1), size});
}

// A sequence [T, ...] with step t replaced.
Value with_step(const Value& x, const Value& t, const Value& step) {
  Values starts(x.rank(), hlo::scalar_int(t.builder(), 0, t.dtype()));
  starts[0] = t;
  Dims dims = x.dims();
  dims[0] = 1;
  return hlo::dynamic_update_slice(x, hlo::reshape(step, dims), starts);
}

// Part i of parts of `size` of the last dimension.
Value part(const Value& x, int64_t i, int64_t size) {
  return hlo::slice_dim(x, x.rank() - 1, i * size, (i + 1) * size);
}

// Runs `body(t, state)` for each step in time order, or from the last step back.
Values over_time(hlo::Builder& b, int64_t steps, bool backwards, const Values& state,
                 const std::function<Values(const Value&, std::span<const Value>)>& body) {
  Values init = {hlo::scalar_int(b, 0, DType::S32)};
  init.insert(init.end(), state.begin(), state.end());
  const Values end = hlo::while_loop(
      init,
      [&](std::span<const Value> s) {
        return hlo::compare(hlo::Direction::LT, s[0], hlo::scalar_int(b, steps, DType::S32));
      },
      [&](std::span<const Value> s) {
        const Value t =
            backwards ? hlo::sub(hlo::scalar_int(b, steps - 1, DType::S32), s[0]) : s[0];
        Values next = {hlo::add(s[0], hlo::scalar_int(b, 1, DType::S32))};
        for (const Value& v : body(t, s.subspan(1))) next.push_back(v);
        return next;
      });
  return {end.begin() + 1, end.end()};
}

Value add_row(const Value& x, const Value& row) {
  return x + hlo::broadcast_to(cast(row, x.dtype()), x.dims());
}

Value swapped(const Value& x) { return hlo::transpose(x, std::array<int64_t, 2>{1, 0}); }

Value empty_result(Lowering& l, size_t i) { return hlo::zero(l.b, l.out(i)); }

// One direction of one layer: x is [T, B, I], states are [B, H].
struct Layer {
  Value x, hx;
  std::optional<Value> cx = {};  // of an LSTM
  Value w_ih, w_hh;
  std::optional<Value> b_ih = {}, b_hh = {};
  Cell cell;
  bool reverse;
  bool train = false;  // keeps what the gradient needs
};

struct LayerResults {
  Value output, hy;                            // [T, B, H], [B, H]
  std::optional<Value> cy = {};                // of an LSTM
  std::optional<Value> gates = {}, kept = {};  // as rnn_layer gives them
};

LayerResults run(const Layer& layer) {
  hlo::Builder& b = layer.x.builder();
  const bool is_lstm = layer.cell == Cell::Lstm, is_gru = layer.cell == Cell::Gru;
  const bool train = layer.train && (is_lstm || is_gru);
  const DType dtype = layer.x.dtype(), wide = accumulator(dtype);
  const int64_t steps = layer.x.dim(0), size = layer.w_hh.dim(1);
  const Dims dims = {steps, layer.x.dim(1), size};

  Value gates_x = contract(layer.x, "tbi", layer.w_ih, "gi", "tbg");
  if (layer.b_ih) {
    Value bias = cast(*layer.b_ih, wide);
    // The GRU multiplies the hidden part, bias included, by a gate.
    if (!is_gru) bias = bias + cast(*layer.b_hh, wide);
    gates_x = add_row(gates_x, bias);
  }

  // Other is the cell state of an LSTM and the new gate of a GRU.
  enum { H, Other, Output, FromX, Weight, Bias, Kept, KeptCell };
  const bool adds_bias = is_gru && layer.b_hh;
  Values state = {layer.hx,
                  is_lstm ? cast(*layer.cx, wide) : cast(layer.hx, wide),
                  hlo::zero(b, {dtype, dims}),
                  gates_x,
                  swapped(layer.w_hh),
                  adds_bias ? cast(*layer.b_hh, wide) : layer.hx};
  if (train) state.push_back(hlo::zero(b, {wide, gates_x.dims()}));
  if (train && is_lstm) state.push_back(hlo::zero(b, {wide, dims}));
  const Values end =
      over_time(b, steps, layer.reverse, state, [&](const Value& t, std::span<const Value> s) {
        Values next(s.begin(), s.end());
        const auto x_part = [&](int64_t i) { return at_step(s[FromX], t, i * size, size); };
        Value from_h = contract(s[H], "bh", s[Weight], "hg", "bg"), h;
        if (adds_bias) from_h = add_row(from_h, s[Bias]);
        const auto gate = [&](int64_t i) { return x_part(i) + part(from_h, i, size); };
        if (is_lstm) {
          const Value c =
              hlo::logistic(gate(1)) * s[Other] + hlo::logistic(gate(0)) * hlo::tanh(gate(2));
          h = hlo::logistic(gate(3)) * hlo::tanh(c);
          next[Other] = c;
          if (train) next[Kept] = with_step(s[Kept], t, at_step(s[FromX], t) + from_h);
          if (train) next[KeptCell] = with_step(s[KeptCell], t, c);
        } else if (is_gru) {
          const Value n = hlo::tanh(x_part(2) + hlo::logistic(gate(0)) * part(from_h, 2, size));
          h = n + hlo::logistic(gate(1)) * (cast(s[H], wide) - n);
          next[Other] = n;
          if (train) next[Kept] = with_step(s[Kept], t, from_h);
        } else {
          h = layer.cell == Cell::Tanh ? hlo::tanh(gate(0)) : hlo::max(gate(0), like(gate(0), 0));
        }
        next[H] = cast(h, dtype);
        next[Output] = with_step(s[Output], t, next[H]);
        return next;
      });
  LayerResults results = {.output = end[Output], .hy = end[H]};
  if (is_lstm) results.cy = cast(end[Other], dtype);
  if (train) results.gates = cast(is_gru ? gates_x : end[Kept], dtype);
  if (train) results.kept = cast(end[is_gru ? Kept : KeptCell], dtype);
  return results;
}

// rnn_layer(input [T, B, I], hx [B, H], cx?, w_ih, w_hh, b_ih?, b_hh?, mode, reverse, train)
//   -> (output [T, B, H], hy, cy, gates [T, B, G], kept)
// The last two are for the gradient: the gates before their nonlinearity and the cell states of an
// LSTM; of a GRU the input's and the hidden part of the gates.
Values rnn_layer(Lowering& l) {
  const auto given = [&](size_t arg) {
    return l.has(arg) ? std::optional(l.in(arg)) : std::nullopt;
  };
  const LayerResults r = run({.x = l.in(0),
                              .hx = l.in(1),
                              .cx = given(2),
                              .w_ih = l.in(3),
                              .w_hh = l.in(4),
                              .b_ih = given(5),
                              .b_hh = given(6),
                              .cell = read_cell(l.text(7)),
                              .reverse = l.flag(8),
                              .train = l.flag(9)});
  const auto or_empty = [&](const std::optional<Value>& x, size_t i) {
    return x ? *x : empty_result(l, i);
  };
  return {r.output, r.hy, or_empty(r.cy, 2), or_empty(r.gates, 3), or_empty(r.kept, 4)};
}

// Swaps the dimensions of time and batch.
Value batch_swapped(const Value& x) { return hlo::transpose(x, std::array<int64_t, 3>{1, 0, 2}); }

// lstm(input [T, B, I], hx [L, B, H], cx, weights, has_biases, layers, bidirectional, batch_first)
//   -> (output [T, B, D H], hy, cy)
// L counts the directions of all layers. With batch_first, input and output are [B, T, ..].
Values lstm(Lowering& l) {
  const Values weights = l.list(3);
  const bool has_biases = l.flag(4), batch_first = l.flag(7);
  const int64_t directions = l.flag(6) ? 2 : 1;
  Value x = batch_first ? batch_swapped(l.in(0)) : l.in(0);
  Values hy, cy;
  const auto state = [&](size_t arg, int64_t i) {
    return remove_dim(hlo::slice_dim(l.in(arg), 0, i, i + 1), 0);
  };
  const Value* w = weights.data();
  for (int64_t layer = 0, i = 0; layer < l.integer(5); ++layer) {
    Values outputs;
    for (int64_t direction = 0; direction < directions; ++direction, ++i) {
      Layer one = {.x = x,
                   .hx = state(1, i),
                   .cx = state(2, i),
                   .w_ih = w[0],
                   .w_hh = w[1],
                   .cell = Cell::Lstm,
                   .reverse = direction == 1};
      if (has_biases) one.b_ih = w[2];
      if (has_biases) one.b_hh = w[3];
      w += has_biases ? 4 : 2;
      const LayerResults r = run(one);
      outputs.push_back(r.output);
      hy.push_back(insert_dim(r.hy, 0));
      cy.push_back(insert_dim(*r.cy, 0));
    }
    x = hlo::concatenate(outputs, 2);
  }
  return {batch_first ? batch_swapped(x) : x, hlo::concatenate(hy, 0), hlo::concatenate(cy, 0)};
}

// oneDNN's layers, in parts of the batch: each runs all layers.
Values lstm_on_host(Lowering& l) {
  const Value x = l.in(0);
  const int64_t batch = l.flag(7) ? 0 : 1;
  const bool possible = kHasOneDnn && x.dtype() == DType::F32 && !is_empty(l, {0, 1});
  if (!possible || !choose_host(x.dim(batch) >= kBatch)) return xla_code(l);
  HostCall call(l.b, "aten::lstm.input", Fails::Never);
  call.part(x, batch).parts(std::array{l.in(1), l.in(2)}, 1);
  call.tensors(l.optional_list(3)).fixed(l.flag(4)).fixed(l.integer(5));
  call.fixed(0.0).fixed(false);  // dropout, train
  call.fixed(l.flag(6)).fixed(l.flag(7));
  const std::optional<Type> types[] = {l.out(0), l.out(1), l.out(2)};
  const int64_t cuts[] = {batch, 1, 1};
  return call.results(types, cuts);
}

// Each step's predecessor: x one step later in time, `first` in the place without one.
Value shifted(const Value& x, const Value& first, bool reverse) {
  const Value start = hlo::reshape(first, {1, x.dim(1), x.dim(2)});
  const Value rest =
      reverse ? hlo::slice_dim(x, 0, 1, x.dim(0)) : hlo::slice_dim(x, 0, 0, x.dim(0) - 1);
  const std::array<Value, 2> parts = reverse ? std::array{rest, start} : std::array{start, rest};
  return hlo::concatenate(parts, 0);
}

// N sequences [T, B, H] as one [T, B, N, H], each written in place: on CPU this takes a fraction of
// a concatenation's time.
Value stacked(std::initializer_list<Value> parts) {
  const Value& first = *parts.begin();
  hlo::Builder& b = first.builder();
  const Dims dims = {first.dim(0), first.dim(1), static_cast<int64_t>(parts.size()), first.dim(2)};
  const Value zero = hlo::scalar_int(b, 0, DType::S32);
  if (parts.size() == 1) return hlo::reshape(first, dims);
  Value all = hlo::zero(b, {first.dtype(), dims});
  int64_t i = 0;
  for (const Value& v : parts) {
    const std::array<Value, 4> starts = {zero, zero, hlo::scalar_int(b, i++, DType::S32), zero};
    all = hlo::dynamic_update_slice(all, hlo::reshape(v, {dims[0], dims[1], 1, dims[3]}), starts);
  }
  return all;
}

// Derivatives within each step, for all steps at once: the loop back in time only multiplies.
struct Derivatives {
  Value gates;  // [T, B, N, H], by the hidden state; of an LSTM by the cell state, its last by h
  Value keep;   // of the previous cell state (LSTM) or hidden state (GRU), beside the gates
  Value cell;   // of the cell state by the hidden state (LSTM)
};

Derivatives lstm_derivatives(const Value& gates, const Value& c, const Value& c_previous) {
  const int64_t size = c.dim(2);
  const Value i = hlo::logistic(part(gates, 0, size)), f = hlo::logistic(part(gates, 1, size)),
              g = hlo::tanh(part(gates, 2, size)), o = hlo::logistic(part(gates, 3, size)),
              tanh_c = hlo::tanh(c);
  return {stacked({g * i * (1.0 - i), c_previous * f * (1.0 - f), i * (1.0 - g * g),
                   tanh_c * o * (1.0 - o)}),
          f, o * (1.0 - tanh_c * tanh_c)};
}

// The derivatives have four parts: r, z, the hidden part of n and the input's part of n.
Derivatives gru_derivatives(const Value& from_x, const Value& from_h, const Value& h_previous) {
  const int64_t size = h_previous.dim(2);
  const Value hidden_n = part(from_h, 2, size),
              r = hlo::logistic(part(from_x, 0, size) + part(from_h, 0, size)),
              z = hlo::logistic(part(from_x, 1, size) + part(from_h, 1, size)),
              n = hlo::tanh(part(from_x, 2, size) + r * hidden_n);
  const Value dn = (1.0 - z) * (1.0 - n * n);
  return {stacked({dn * hidden_n * r * (1.0 - r), (h_previous - n) * z * (1.0 - z), dn * r, dn}),
          z,
          {}};
}

Value rnn_derivative(Cell cell, const Value& h) {
  return cell == Cell::Tanh ? 1.0 - h * h : hlo::convert(hlo::greater(h, 0), h.dtype());
}

// The gradients of the layer's gates and states, from what its forward pass has kept.
Derivatives derivatives(const Lowering& l, Cell cell, const Value& h_previous, DType wide,
                        bool reverse) {
  if (cell == Cell::Lstm) {
    const Value c = cast(l.in(10), wide);
    return lstm_derivatives(cast(l.in(9), wide), c, shifted(c, cast(l.in(5), wide), reverse));
  }
  if (cell == Cell::Gru) {
    return gru_derivatives(cast(l.in(9), wide), cast(l.in(10), wide), cast(h_previous, wide));
  }
  Derivatives by;
  by.gates = stacked({rnn_derivative(cell, cast(l.in(8), wide))});
  return by;
}

// The gradients of w_ih and w_hh.
std::pair<Value, Value> weight_gradients(bool is_gru, const Value& d_gates, const Value& d_hidden,
                                         const Value& x, const Value& h_previous) {
  if (is_gru) {
    return {contract(d_gates, "tbg", x, "tbi", "gi"),
            contract(d_hidden, "tbg", h_previous, "tbh", "gh")};
  }
  // One product for both: the gates' derivatives are transposed once.
  const int64_t inputs = x.dim(2), size = h_previous.dim(2);
  const Value both = contract(
      d_gates, "tbg", hlo::concatenate(std::array<Value, 2>{x, h_previous}, 2), "tbi", "gi");
  return {hlo::slice_dim(both, 1, 0, inputs), hlo::slice_dim(both, 1, inputs, inputs + size)};
}

// rnn_layer_backward(grad_output, grad_hy, grad_cy?, input, hx, cx?, w_ih, w_hh, output, gates,
// extra, b_ih?, b_hh?, mode, reverse, input_grad)
//   -> gradients of (input, hx, cx, w_ih, w_hh, b_ih, b_hh)
// The biases are those of the forward pass, which its results make superfluous here.
Values rnn_layer_backward(Lowering& l) {
  const Value x = l.in(3), w_hh = l.in(7), output = l.in(8);
  const Cell cell = read_cell(l.text(13));
  const bool reverse = l.flag(14), has_biases = l.has(11), input_grad = l.flag(15);
  const bool is_lstm = cell == Cell::Lstm, is_gru = cell == Cell::Gru;
  const DType dtype = output.dtype(), wide = accumulator(dtype);
  const int64_t steps = x.dim(0), batch = x.dim(1), size = w_hh.dim(1), rows = w_hh.dim(0);

  const Value h_previous = shifted(output, l.in(4), reverse);
  const Derivatives by = derivatives(l, cell, h_previous, wide, reverse);
  const Type each = {wide, {batch, by.gates.dim(2), size}};

  // The hidden state's gradient of a step is complete when the step begins: the step after it has
  // added the output's. The cell state's is completed in the step.
  const Value d_output = cast(l.in(0), wide);
  const auto step = [&](const Value& v, int64_t t) {
    return hlo::reshape(hlo::slice_dim(v, 0, t, t + 1), {batch, size});
  };
  const Value dh = cast(l.in(1), wide) + step(d_output, reverse ? 0 : steps - 1);
  enum { H, C, Output, Weight, Gates, ByGates, Keep, ByCell };
  Values state = {dh,
                  is_lstm ? cast(l.in(2), wide) : dh,
                  shifted(d_output, hlo::zero(l.b, dh.type()), reverse),
                  w_hh,
                  hlo::zero(l.b, {dtype, by.gates.dims()}),
                  by.gates};
  if (is_gru) state.push_back(by.keep);
  if (is_lstm) state.push_back(shifted(by.keep, hlo::one(l.b, dh.type()), !reverse));
  if (is_lstm) state.push_back(by.cell);
  const Values end =
      over_time(l.b, steps, !reverse, state, [&](const Value& t, std::span<const Value> s) {
        Values next(s.begin(), s.end());
        const auto to_each = [&](const Value& v) {
          return hlo::broadcast_in_dim(v, each.dims, std::array<int64_t, 2>{0, 2});
        };
        Value from = to_each(s[H]);
        if (is_lstm) {
          next[C] = s[C] * at_step(s[Keep], t) + s[H] * at_step(s[ByCell], t);
          const Value gate = hlo::iota(l.b, {DType::S32, each.dims}, 1);
          from = hlo::select(hlo::less(gate, 3), to_each(next[C]), from);
        }
        const Value d_parts = cast(from * at_step(s[ByGates], t), dtype);
        next[Gates] = with_step(s[Gates], t, d_parts);
        // Several parts are read back, where their layout is that of the product's operand.
        const Value d_gates = hlo::reshape(each.dims[1] == 1 ? d_parts : at_step(next[Gates], t),
                                           {batch, each.dims[1] * size});
        next[H] = contract(hlo::slice_dim(d_gates, 1, 0, rows), "bg", s[Weight], "gh", "bh") +
                  at_step(s[Output], t);
        if (is_gru) next[H] = next[H] + s[H] * at_step(s[Keep], t);
        if (!is_lstm) next[C] = next[H];
        return next;
      });

  const Value all = hlo::reshape(end[Gates], {steps, batch, each.dims[1] * size});
  const Value d_hidden = hlo::slice_dim(all, 2, 0, rows);
  Value d_gates = d_hidden;
  if (is_gru) {
    const std::array<Value, 2> parts = {hlo::slice_dim(all, 2, 0, 2 * size), part(all, 3, size)};
    d_gates = hlo::concatenate(parts, 2);
  }
  // A product with ones: CPU backends reduce the leading dimensions with strided reads.
  const auto sum_rows = [&](const Value& v) {
    return contract(hlo::one(l.b, {dtype, {steps, batch}}), "tb", v, "tbg", "g");
  };
  const auto [d_w_ih, d_w_hh] = weight_gradients(is_gru, d_gates, d_hidden, x, h_previous);
  return {
      input_grad ? cast(contract(d_gates, "tbg", l.in(6), "gi", "tbi"), dtype) : empty_result(l, 0),
      cast(end[H], dtype),
      is_lstm ? cast(end[C] * step(by.keep, reverse ? steps - 1 : 0), dtype) : empty_result(l, 2),
      cast(d_w_ih, dtype),
      cast(d_w_hh, dtype),
      has_biases ? cast(sum_rows(d_gates), dtype) : empty_result(l, 5),
      has_biases ? cast(sum_rows(d_hidden), dtype) : empty_result(l, 6)};
}

}  // namespace

namespace rules {

const RuleFunction lstm = ops::lstm, lstm_on_host = ops::lstm_on_host;
const RuleFunction rnn_layer = ops::rnn_layer;
const RuleFunction rnn_layer_backward = ops::rnn_layer_backward;

}  // namespace rules

}  // namespace torch_xla::ops
