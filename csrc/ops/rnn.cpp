// One direction of one layer of an LSTM, GRU or plain RNN, and its gradient: torch_xla::rnn_layer
// and rnn_layer_backward (dispatch/rnn.cpp defines them and builds PyTorch's modules from them).
// What does not depend on the previous step is one matrix product outside the loop over time.
#include <array>
#include <functional>
#include <string>

#include "ops/common.h"
#include "ops/contraction.h"
#include "util/error.h"

namespace torch_xla::ops {
namespace {

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
             "rnn_layer: expected the mode lstm, gru, rnn_tanh or rnn_relu, got ", mode, ".");
}

// [T, B, D] at step t: [B, D].
Value at_step(const Value& x, const Value& t) {
  const Value zero = hlo::scalar_int(t.builder(), 0, t.dtype());
  const std::array<Value, 3> starts = {t, zero, zero};
  const Value step = hlo::dynamic_slice(x, starts, {1, x.dim(1), x.dim(2)});
  return hlo::reshape(step, {x.dim(1), x.dim(2)});
}

Value with_step(const Value& x, const Value& t, const Value& step) {
  const Value zero = hlo::scalar_int(t.builder(), 0, t.dtype());
  const std::array<Value, 3> starts = {t, zero, zero};
  return hlo::dynamic_update_slice(x, hlo::reshape(step, {1, x.dim(1), x.dim(2)}), starts);
}

// Part i of n equal parts of the last dimension.
Value part(const Value& x, int64_t i, int64_t n) {
  const int64_t size = x.dim(x.rank() - 1) / n;
  return hlo::slice_dim(x, x.rank() - 1, i * size, (i + 1) * size);
}

Value join(std::initializer_list<Value> parts) {
  return hlo::concatenate(std::span<const Value>(parts.begin(), parts.size()), 1);
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

Value empty_result(Lowering& l, size_t i) { return hlo::zero(l.b, l.out(i)); }

struct Step {
  Value h, c, reserve;
};

// `gates` holds the part of the gates that comes from the input; all values in the wide type.
Step lstm_step(const Value& gates, const Value& c) {
  const Value i = hlo::logistic(part(gates, 0, 4)), f = hlo::logistic(part(gates, 1, 4)),
              g = hlo::tanh(part(gates, 2, 4)), o = hlo::logistic(part(gates, 3, 4));
  const Value next = f * c + i * g;
  return {o * hlo::tanh(next), next, join({i, f, g, o, next})};
}

Step gru_step(const Value& gates_x, const Value& gates_h, const Value& h) {
  const Value r = hlo::logistic(part(gates_x, 0, 3) + part(gates_h, 0, 3)),
              z = hlo::logistic(part(gates_x, 1, 3) + part(gates_h, 1, 3)),
              from_h = part(gates_h, 2, 3), n = hlo::tanh(part(gates_x, 2, 3) + r * from_h);
  return {n + z * (h - n), {}, join({r, z, n, from_h})};
}

// rnn_layer(input [T, B, I], hx [B, H], cx?, w_ih, w_hh, b_ih?, b_hh?, mode, reverse, train)
//   -> (output [T, B, H], hy, cy, reserve [T, B, R])
// The reserve keeps what the gradient needs: the gates and, of an LSTM, the cell state.
Values rnn_layer(Lowering& l) {
  const Value x = l.in(0), w_hh = l.in(4);
  const Cell cell = read_cell(l.text(7));
  const bool reverse = l.flag(8), train = l.flag(9) && (cell == Cell::Lstm || cell == Cell::Gru);
  const DType dtype = l.out(0).dtype, wide = accumulator(dtype);
  const int64_t steps = x.dim(0);
  const bool is_lstm = cell == Cell::Lstm;

  Value gates_x = contract(x, "tbi", l.in(3), "gi", "tbg");
  if (l.has(5)) {
    Value bias = cast(l.in(5), wide);
    // The GRU multiplies the hidden part, bias included, by a gate.
    if (cell != Cell::Gru) bias = bias + cast(l.in(6), wide);
    gates_x = add_row(gates_x, bias);
  }
  const Value w = hlo::transpose(w_hh, std::array<int64_t, 2>{1, 0});

  Values state = {l.in(1), is_lstm ? cast(l.in(2), wide) : l.in(1), hlo::zero(l.b, l.out(0)),
                  gates_x, w};
  if (train) state.push_back(hlo::zero(l.b, l.out(3)));
  if (cell == Cell::Gru && l.has(6)) state.push_back(cast(l.in(6), wide));
  const Values end =
      over_time(l.b, steps, reverse, state, [&](const Value& t, std::span<const Value> s) {
        const Value h = s[0], c = s[1], now = at_step(s[3], t);
        Value from_h = contract(h, "bh", s[4], "hg", "bg");
        Step step;
        if (is_lstm) {
          step = lstm_step(now + from_h, c);
        } else if (cell == Cell::Gru) {
          if (l.has(6)) from_h = add_row(from_h, s[s.size() - 1]);
          step = gru_step(now, from_h, cast(h, wide));
        } else {
          const Value sum = now + from_h;
          step.h = cell == Cell::Tanh ? hlo::tanh(sum) : hlo::max(sum, hlo::zero(l.b, sum.type()));
        }
        const Value h_next = cast(step.h, dtype);
        Values next(s.begin(), s.end());
        next[0] = h_next;
        next[1] = is_lstm ? step.c : h_next;
        next[2] = with_step(s[2], t, h_next);
        if (train) next[5] = with_step(s[5], t, cast(step.reserve, dtype));
        return next;
      });
  return {end[2], end[0], is_lstm ? cast(end[1], dtype) : empty_result(l, 2),
          train ? end[5] : empty_result(l, 3)};
}

struct Gradient {
  Value gates;         // of the input's part of the gates
  Value hidden_gates;  // of the hidden part, where it differs (GRU)
  Value h;             // of the previous hidden state, beside what goes through hidden_gates
  Value c;             // of the previous cell state
};

Gradient lstm_gradient(const Value& dh, const Value& dc_next, const Value& reserve,
                       const Value& c_previous) {
  const Value i = part(reserve, 0, 5), f = part(reserve, 1, 5), g = part(reserve, 2, 5),
              o = part(reserve, 3, 5), tanh_c = hlo::tanh(part(reserve, 4, 5));
  const Value dc = dc_next + dh * o * (1.0 - tanh_c * tanh_c);
  return {join({dc * g * i * (1.0 - i), dc * c_previous * f * (1.0 - f), dc * i * (1.0 - g * g),
                dh * tanh_c * o * (1.0 - o)}),
          {},
          {},
          dc * f};
}

Gradient gru_gradient(const Value& dh, const Value& reserve, const Value& h_previous) {
  const Value r = part(reserve, 0, 4), z = part(reserve, 1, 4), n = part(reserve, 2, 4),
              from_h = part(reserve, 3, 4);
  const Value dn = dh * (1.0 - z) * (1.0 - n * n);
  const Value dz = dh * (h_previous - n) * z * (1.0 - z);
  const Value dr = dn * from_h * r * (1.0 - r);
  return {join({dr, dz, dn}), join({dr, dz, dn * r}), dh * z, {}};
}

// Each step's predecessor: x one step later in time, `first` in the place without one.
Value shifted(const Value& x, const Value& first, bool reverse) {
  const Value start = hlo::reshape(first, {1, x.dim(1), x.dim(2)});
  const Value rest =
      reverse ? hlo::slice_dim(x, 0, 1, x.dim(0)) : hlo::slice_dim(x, 0, 0, x.dim(0) - 1);
  const std::array<Value, 2> parts = reverse ? std::array{rest, start} : std::array{start, rest};
  return hlo::concatenate(parts, 0);
}

// rnn_layer_backward(grad_output, grad_hy, grad_cy?, input, hx, cx?, w_ih, w_hh, output, reserve,
// mode, reverse, has_biases, input_grad)
//   -> gradients of (input, hx, cx, w_ih, w_hh, b_ih, b_hh)
Values rnn_layer_backward(Lowering& l) {
  const Value x = l.in(3), hx = l.in(4), w_hh = l.in(7), output = l.in(8);
  const Cell cell = read_cell(l.text(10));
  const bool reverse = l.flag(11), has_biases = l.flag(12), input_grad = l.flag(13);
  const bool is_lstm = cell == Cell::Lstm, is_gru = cell == Cell::Gru;
  const DType dtype = output.dtype(), wide = accumulator(dtype);
  const int64_t steps = x.dim(0), gates = w_hh.dim(0);

  const Value h_previous = shifted(output, hx, reverse);
  const Type gates_type = {dtype, {steps, output.dim(1), gates}};
  Values state = {cast(l.in(1), wide),
                  is_lstm ? cast(l.in(2), wide) : cast(l.in(1), wide),
                  l.in(0),
                  w_hh,
                  hlo::zero(l.b, gates_type),
                  output};
  if (is_lstm) {
    const Value reserve = l.in(9);
    const int64_t size = output.dim(2);
    state.push_back(reserve);
    state.push_back(shifted(hlo::slice_dim(reserve, 2, 4 * size, 5 * size), l.in(5), reverse));
  } else if (is_gru) {
    state.push_back(l.in(9));
    state.push_back(h_previous);
    state.push_back(hlo::zero(l.b, gates_type));
  }
  const Values end =
      over_time(l.b, steps, !reverse, state, [&](const Value& t, std::span<const Value> s) {
        const Value dh = s[0] + cast(at_step(s[2], t), wide);
        const auto step_of = [&](size_t i) { return cast(at_step(s[i], t), wide); };
        Gradient g;
        if (is_lstm) {
          g = lstm_gradient(dh, s[1], step_of(6), step_of(7));
        } else if (is_gru) {
          g = gru_gradient(dh, step_of(6), step_of(7));
        } else {
          const Value h = step_of(5);
          g.gates = cell == Cell::Tanh
                        ? dh * (1.0 - h * h)
                        : hlo::select(hlo::greater(h, 0), dh, hlo::zero(l.b, dh.type()));
        }
        const Value through = cast(is_gru ? g.hidden_gates : g.gates, dtype);
        const Value dh_previous = contract(through, "bg", s[3], "gh", "bh");
        Values next(s.begin(), s.end());
        next[0] = is_gru ? dh_previous + g.h : dh_previous;
        next[1] = is_lstm ? g.c : next[0];
        next[4] = with_step(s[4], t, cast(g.gates, dtype));
        if (is_gru) next[8] = with_step(s[8], t, through);
        return next;
      });

  const Value d_gates = end[4], d_hidden = is_gru ? end[8] : d_gates;
  const auto sum_rows = [&](const Value& v) {
    return reduce_sum(cast(v, wide), std::array<int64_t, 2>{0, 1});
  };
  return {
      input_grad ? cast(contract(d_gates, "tbg", l.in(6), "gi", "tbi"), dtype) : empty_result(l, 0),
      cast(end[0], dtype),
      is_lstm ? cast(end[1], dtype) : empty_result(l, 2),
      cast(contract(d_gates, "tbg", x, "tbi", "gi"), dtype),
      cast(contract(d_hidden, "tbg", h_previous, "tbh", "gh"), dtype),
      has_biases ? cast(sum_rows(d_gates), dtype) : empty_result(l, 5),
      has_biases ? cast(sum_rows(d_hidden), dtype) : empty_result(l, 6)};
}

}  // namespace

void register_rnn(Registry& r) {
  r.add("torch_xla::rnn_layer", rnn_layer);
  r.add("torch_xla::rnn_layer_backward", rnn_layer_backward);
}

}  // namespace torch_xla::ops
