// torch.nn.LSTM, GRU and RNN on xla: one recorded call for each layer and direction, with a
// gradient of its own, where PyTorch would unroll every step into a dozen calls. A whole LSTM is
// one call in inference.
#include <array>
#include <tuple>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "dispatch/calls/composite.h"
#include "dispatch/calls/own_operator.h"
#include "ops/rules.h"

namespace torch_xla::dispatch {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

using LayerResults = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using LayerGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// --- shapes --------------------------------------------------------------------------------

int64_t gates_of(c10::string_view mode) { return mode == "lstm" ? 4 : mode == "gru" ? 3 : 1; }
// True where the gradient needs more than the output.
bool keeps_gates(c10::string_view mode) { return mode == "lstm" || mode == "gru"; }

void check_sizes(const char* name, const Tensor& t, c10::IntArrayRef expected) {
  TORCH_CHECK(t.sizes() == expected, "recurrent layer: expected ", name, " of size ", expected,
              ", got ", t.sizes());
}

void check_dtype(const Tensor& t, const Tensor& input) {
  TORCH_CHECK(t.scalar_type() == input.scalar_type(),
              "recurrent layer: expected states and weights of the input's dtype ",
              input.scalar_type(), ", got ", t.scalar_type());
}

void check_weights(const Tensor& input, int64_t inputs, int64_t hidden, int64_t gates,
                   const Tensor& w_ih, const Tensor& w_hh, const OptionalTensor& b_ih,
                   const OptionalTensor& b_hh) {
  check_sizes("the input's weight", w_ih, {gates, inputs});
  check_sizes("the hidden state's weight", w_hh, {gates, hidden});
  for (const OptionalTensor* bias : {&b_ih, &b_hh}) {
    if (*bias) check_sizes("a bias", **bias, {gates});
  }
  for (const Tensor* t : {&w_ih, &w_hh}) check_dtype(*t, input);
}

LayerResults rnn_layer_meta(const Tensor& input, const Tensor& hx, const OptionalTensor& cx,
                            const Tensor& w_ih, const Tensor& w_hh, const OptionalTensor& b_ih,
                            const OptionalTensor& b_hh, c10::string_view mode, bool /*reverse*/,
                            bool train) {
  TORCH_CHECK(input.dim() == 3, "recurrent layer: expected an input of 3 dimensions, got ",
              input.dim());
  const int64_t steps = input.size(0), batch = input.size(1), hidden = w_hh.size(1);
  const int64_t gates = gates_of(mode) * hidden;
  check_sizes("hx", hx, {batch, hidden});
  if (cx) check_sizes("cx", *cx, {batch, hidden});
  check_dtype(hx, input);
  check_weights(input, input.size(2), hidden, gates, w_ih, w_hh, b_ih, b_hh);
  const auto options = input.options();
  const bool keep = train && keeps_gates(mode);
  return {at::empty({steps, batch, hidden}, options), at::empty({batch, hidden}, options),
          cx ? at::empty({batch, hidden}, options) : at::empty({0}, options),
          keep ? at::empty({steps, batch, gates}, options) : at::empty({0}, options),
          keep ? at::empty({steps, batch, mode == "gru" ? gates : hidden}, options)
               : at::empty({0}, options)};
}

LayerGradients rnn_layer_backward_meta(const Tensor& grad_output, const Tensor& /*grad_hy*/,
                                       const OptionalTensor& /*grad_cy*/, const Tensor& input,
                                       const Tensor& hx, const OptionalTensor& cx,
                                       const Tensor& w_ih, const Tensor& w_hh,
                                       const Tensor& /*output*/, const Tensor& /*gates*/,
                                       const Tensor& /*extra*/, const OptionalTensor& b_ih,
                                       const OptionalTensor& b_hh, c10::string_view /*mode*/,
                                       bool /*reverse*/, bool input_grad) {
  const auto options = grad_output.options();
  const auto like = [&](const Tensor& t) { return at::empty(t.sizes(), options); };
  const auto none = [&] { return at::empty({0}, options); };
  const auto like_bias = [&](const OptionalTensor& bias) { return bias ? like(*bias) : none(); };
  return {input_grad ? like(input) : none(),
          like(hx),
          cx ? like(*cx) : none(),
          like(w_ih),
          like(w_hh),
          like_bias(b_ih),
          like_bias(b_hh)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_meta(const Tensor& input, const Tensor& hx,
                                             const Tensor& cx, at::TensorList weights,
                                             bool has_biases, int64_t layers, bool bidirectional,
                                             bool batch_first) {
  const size_t directions = bidirectional ? 2 : 1, per_direction = has_biases ? 4 : 2;
  TORCH_CHECK(input.dim() == 3 && hx.dim() == 3, "lstm: expected input and states of 3 dimensions");
  TORCH_CHECK(weights.size() == static_cast<size_t>(layers) * directions * per_direction,
              "lstm: expected ", per_direction, " weights a layer and direction");
  const int64_t steps = input.size(batch_first ? 1 : 0), batch = input.size(batch_first ? 0 : 1);
  const int64_t hidden = hx.size(2), outputs = static_cast<int64_t>(directions) * hidden;
  for (const Tensor* state : {&hx, &cx}) {
    check_sizes("a state", *state, {layers * static_cast<int64_t>(directions), batch, hidden});
    check_dtype(*state, input);
  }
  for (size_t i = 0; i < weights.size(); i += per_direction) {
    const Tensor* w = &weights[i];
    const auto bias = [&](size_t k) { return has_biases ? OptionalTensor(w[k]) : std::nullopt; };
    const int64_t inputs = i < directions * per_direction ? input.size(2) : outputs;
    check_weights(input, inputs, hidden, 4 * hidden, w[0], w[1], bias(2), bias(3));
  }
  const Tensor output = at::empty({steps, batch, outputs}, input.options());
  const auto state = [&] { return at::empty(hx.sizes(), input.options()); };
  return {batch_first ? output.transpose(0, 1) : output, state(), state()};
}

// --- by PyTorch's operators ------------------------------------------------------------------

// The schema of gru.input, rnn_tanh.input and rnn_relu.input.
using OneState = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, at::TensorList, bool,
                                            int64_t, double, bool, bool, bool);

// One layer, unrolled by PyTorch: for gradients of gradients, and to compare with.
std::vector<Tensor> unrolled_layer(const Tensor& input, const Tensor& hx, const OptionalTensor& cx,
                                   std::vector<Tensor> weights, const std::string& mode,
                                   bool reverse) {
  const bool has_biases = weights.size() == 4;
  const Tensor x = reverse ? input.flip(0) : input;
  const Tensor h = hx.unsqueeze(0);
  std::vector<Tensor> results;
  if (mode == "lstm") {
    const std::array<Tensor, 2> states = {h, cx->unsqueeze(0)};
    auto [y, hy, cy] =
        at::native::lstm(x, states, weights, has_biases, 1, 0.0, false, false, false);
    results = {y, hy.squeeze(0), cy.squeeze(0)};
  } else {
    OneState* const layer = mode == "gru"        ? static_cast<OneState*>(&at::native::gru)
                            : mode == "rnn_tanh" ? static_cast<OneState*>(&at::native::rnn_tanh)
                                                 : static_cast<OneState*>(&at::native::rnn_relu);
    auto [y, hy] = layer(x, h, weights, has_biases, 1, 0.0, false, false, false);
    results = {y, hy.squeeze(0)};
  }
  if (reverse) results[0] = results[0].flip(0);
  return results;
}

// Values for the backward pass alone are left out.
LayerResults rnn_layer_on_cpu(const Tensor& input, const Tensor& hx, const OptionalTensor& cx,
                              const Tensor& w_ih, const Tensor& w_hh, const OptionalTensor& b_ih,
                              const OptionalTensor& b_hh, c10::string_view mode, bool reverse,
                              bool /*train*/) {
  std::vector<Tensor> weights = {w_ih, w_hh};
  if (b_ih) weights.insert(weights.end(), {*b_ih, *b_hh});
  const auto states = unrolled_layer(input, hx, cx, weights, std::string(mode), reverse);
  return {states[0], states[1], states.size() > 2 ? states[2] : Tensor(), Tensor(), Tensor()};
}

LayerGradients rnn_layer_backward_on_cpu(const Tensor& grad_output, const Tensor& grad_hy,
                                         const OptionalTensor& grad_cy, const Tensor& input,
                                         const Tensor& hx, const OptionalTensor& cx,
                                         const Tensor& w_ih, const Tensor& w_hh,
                                         const Tensor& /*output*/, const Tensor& /*gates*/,
                                         const Tensor& /*extra*/, const OptionalTensor& b_ih,
                                         const OptionalTensor& b_hh, c10::string_view mode,
                                         bool reverse, bool input_grad) {
  const at::AutoGradMode with_grad(true);
  Tensors inputs = {input, hx, cx.value_or(Tensor()), w_ih, w_hh};
  if (b_ih) inputs.insert(inputs.end(), {*b_ih, *b_hh});
  for (Tensor& t : inputs) {
    if (t.defined()) t = t.detach().requires_grad_(input_grad || &t != &inputs[0]);
  }
  Tensors grads = {grad_output, grad_hy}, results(7);
  if (grad_cy) grads.push_back(*grad_cy);
  const auto formula = [&](const Tensors& x) {
    return unrolled_layer(x[0], x[1], given(x[2]), {x.begin() + 3, x.end()}, std::string(mode),
                          reverse);
  };
  differentiable_gradients(formula, inputs, grads, results);
  return {results[0], results[1], results[2], results[3], results[4], results[5], results[6]};
}

std::tuple<Tensor, Tensor, Tensor> lstm_on_cpu(const Tensor& input, const Tensor& hx,
                                               const Tensor& cx, at::TensorList weights,
                                               bool has_biases, int64_t layers, bool bidirectional,
                                               bool batch_first) {
  return at::native::lstm(input, {hx, cx}, weights, has_biases, layers, 0.0, false, bidirectional,
                          batch_first);
}

// --- the operators -------------------------------------------------------------------------

const OwnOperator lstm_inference(
    "lstm(Tensor input, Tensor hx, Tensor cx, Tensor[] weights, bool has_biases, int layers, "
    "bool bidirectional, bool batch_first) -> (Tensor, Tensor, Tensor)",
    lstm_meta, ops::rules::lstm, ops::rules::lstm_on_host, lstm_on_cpu);
const OwnOperator rnn_layer(
    "rnn_layer(Tensor input, Tensor hx, Tensor? cx, Tensor w_ih, Tensor w_hh, Tensor? b_ih, "
    "Tensor? b_hh, str mode, bool reverse, bool train) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    rnn_layer_meta, ops::rules::rnn_layer, nullptr, rnn_layer_on_cpu);
const OwnOperator rnn_layer_backward(
    "rnn_layer_backward(Tensor grad_output, Tensor grad_hy, Tensor? grad_cy, Tensor input, "
    "Tensor hx, Tensor? cx, Tensor w_ih, Tensor w_hh, Tensor output, Tensor gates, Tensor extra, "
    "Tensor? b_ih, Tensor? b_hh, str mode, bool reverse, bool input_grad) -> (Tensor, Tensor, "
    "Tensor, Tensor, Tensor, Tensor, Tensor)",
    rnn_layer_backward_meta, ops::rules::rnn_layer_backward, nullptr, rnn_layer_backward_on_cpu);

// --- autograd ------------------------------------------------------------------------------

class RnnLayer : public torch::autograd::Function<RnnLayer> {
 public:
  // Biases are missing in a layer without them, cx in all but an LSTM.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const Tensor& input, const Tensor& hx,
                                                const OptionalTensor& cx, const Tensor& w_ih,
                                                const Tensor& w_hh, const OptionalTensor& b_ih,
                                                const OptionalTensor& b_hh, const std::string& mode,
                                                bool reverse, bool train) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [output, hy, cy, gates, extra] =
        rnn_layer(input, hx, cx, w_ih, w_hh, b_ih, b_hh, mode, reverse, train);
    ctx->save_for_backward({input, hx, cx.value_or(Tensor()), w_ih, w_hh, b_ih.value_or(Tensor()),
                            b_hh.value_or(Tensor()), output, gates, extra});
    ctx->saved_data["mode"] = mode;
    ctx->saved_data["reverse"] = reverse;
    ctx->saved_data["input_grad"] = input.requires_grad();
    if (!cx) ctx->mark_non_differentiable({cy});
    return {output, hy, cy};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const std::string mode = ctx->saved_data["mode"].toStringRef();
    const bool reverse = ctx->saved_data["reverse"].toBool();
    torch::autograd::variable_list results(10);
    const OptionalTensor cx = given(saved[2]);
    const bool has_biases = saved[5].defined();
    if (at::GradMode::is_enabled()) {
      grads.resize(cx ? 3 : 2);
      const auto formula = [&](const Tensors& x) {
        Tensors weights = {x[3], x[4]};
        if (has_biases) weights.insert(weights.end(), {x[5], x[6]});
        return unrolled_layer(x[0], x[1], given(x[2]), weights, mode, reverse);
      };
      differentiable_gradients(formula, {saved.begin(), saved.begin() + 7}, grads, results);
      return results;
    }
    auto [g_input, g_hx, g_cx, g_ih, g_hh, g_b_ih, g_b_hh] = rnn_layer_backward(
        grads[0], grads[1], cx ? OptionalTensor(grads[2]) : std::nullopt, saved[0], saved[1], cx,
        saved[3], saved[4], saved[7], saved[8], saved[9], given(saved[5]), given(saved[6]), mode,
        reverse, ctx->saved_data["input_grad"].toBool());
    if (ctx->saved_data["input_grad"].toBool()) results[0] = g_input;
    results[1] = g_hx;
    if (cx) results[2] = g_cx;
    results[3] = g_ih;
    results[4] = g_hh;
    if (has_biases) {
      results[5] = g_b_ih;
      results[6] = g_b_hh;
    }
    return results;
  }
};

// --- whole modules -------------------------------------------------------------------------

bool any_requires_grad(const Tensor& input, at::TensorList hx, at::TensorList params) {
  if (!at::GradMode::is_enabled()) return false;
  const auto requires_grad = [](const Tensor& t) { return t.requires_grad(); };
  return requires_grad(input) || std::any_of(hx.begin(), hx.end(), requires_grad) ||
         std::any_of(params.begin(), params.end(), requires_grad);
}

// Returns whether the layers above compute this call; PyTorch's unrolled form serves the rest:
// projections, functorch's transforms, and input that PyTorch's own checks will refuse.
bool has_plain_layers(const Tensor& input, at::TensorList hx, at::TensorList params,
                      bool has_biases, int64_t num_layers, bool bidirectional) {
  const size_t directions = static_cast<size_t>(num_layers) * (bidirectional ? 2 : 1);
  if (input.dim() != 3 || input.numel() == 0 || !at::isFloatingType(input.scalar_type())) {
    return false;
  }
  if (params.size() != directions * (has_biases ? 4 : 2) || functorch_is_active()) return false;
  for (const Tensor& state : hx) {
    if (state.dim() != 3 || state.size(0) != static_cast<int64_t>(directions)) return false;
    if (state.size(2) != hx[0].size(2)) return false;
  }
  for (const at::TensorList list : {hx, params}) {
    for (const Tensor& t : list) {
      if (t.scalar_type() != input.scalar_type() || !t.device().is_xla()) return false;
    }
  }
  return true;
}

// The layers one after another: (output, hy, cy); cy only with two states.
std::tuple<Tensor, Tensor, Tensor> run_layers(const Tensor& input, at::TensorList hx,
                                              at::TensorList params, const char* mode,
                                              bool has_biases, int64_t num_layers, double dropout,
                                              bool train, bool bidirectional, bool batch_first) {
  const bool keep = any_requires_grad(input, hx, params);
  const size_t per_direction = has_biases ? 4 : 2, directions = bidirectional ? 2 : 1;
  const std::vector<Tensor> h0 = hx[0].unbind(0);
  const std::vector<Tensor> c0 = hx.size() == 2 ? hx[1].unbind(0) : std::vector<Tensor>(h0.size());
  std::vector<Tensor> hy, cy;
  Tensor x = batch_first ? input.transpose(0, 1) : input;
  size_t index = 0;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    std::vector<Tensor> outputs;
    for (size_t direction = 0; direction < directions; ++direction, ++index) {
      const Tensor* w = params.data() + index * per_direction;
      const auto results = RnnLayer::apply(x, h0[index], given(c0[index]), w[0], w[1],
                                           has_biases ? OptionalTensor(w[2]) : std::nullopt,
                                           has_biases ? OptionalTensor(w[3]) : std::nullopt,
                                           std::string(mode), direction == 1, keep);
      outputs.push_back(results[0]);
      hy.push_back(results[1]);
      cy.push_back(results[2]);
    }
    x = directions == 1 ? outputs[0] : at::cat(outputs, 2);
    if (train && dropout != 0 && layer + 1 < num_layers) x = at::dropout(x, dropout, true);
  }
  return {batch_first ? x.transpose(0, 1) : x, at::stack(hy),
          hx.size() == 2 ? at::stack(cy) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, at::TensorList hx,
                                        at::TensorList params, bool has_biases, int64_t num_layers,
                                        double dropout, bool train, bool bidirectional,
                                        bool batch_first) {
  if (hx.size() != 2 ||
      !has_plain_layers(input, hx, params, has_biases, num_layers, bidirectional)) {
    return at::native::lstm(input, hx, params, has_biases, num_layers, dropout, train,
                            bidirectional, batch_first);
  }
  const bool drops = train && dropout != 0 && num_layers > 1;
  if (!drops && !any_requires_grad(input, hx, params)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return lstm_inference(input, hx[0], hx[1], params, has_biases, num_layers, bidirectional,
                          batch_first);
  }
  return run_layers(input, hx, params, "lstm", has_biases, num_layers, dropout, train,
                    bidirectional, batch_first);
}

template <OneState* Composite>
std::tuple<Tensor, Tensor> one_state(const char* mode, const Tensor& input, const Tensor& hx,
                                     at::TensorList params, bool has_biases, int64_t num_layers,
                                     double dropout, bool train, bool bidirectional,
                                     bool batch_first) {
  if (!has_plain_layers(input, hx, params, has_biases, num_layers, bidirectional)) {
    return Composite(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                     batch_first);
  }
  auto [output, hy, cy] = run_layers(input, hx, params, mode, has_biases, num_layers, dropout,
                                     train, bidirectional, batch_first);
  return {output, hy};
}

#define TXLA_ONE_STATE(name)                                                                       \
  std::tuple<Tensor, Tensor> name(const Tensor& input, const Tensor& hx, at::TensorList params,    \
                                  bool has_biases, int64_t num_layers, double dropout, bool train, \
                                  bool bidirectional, bool batch_first) {                          \
    return one_state<&at::native::name>(#name, input, hx, params, has_biases, num_layers, dropout, \
                                        train, bidirectional, batch_first);                        \
  }
TXLA_ONE_STATE(gru)
TXLA_ONE_STATE(rnn_tanh)
TXLA_ONE_STATE(rnn_relu)
#undef TXLA_ONE_STATE

void register_modules(torch::Library& m) {
  m.impl("lstm.input", TORCH_FN(lstm));
  m.impl("gru.input", TORCH_FN(gru));
  m.impl("rnn_tanh.input", TORCH_FN(rnn_tanh));
  m.impl("rnn_relu.input", TORCH_FN(rnn_relu));
}

const ops::Rules rnn_rules([](ops::Registry& r) {
  for (const char* name : {"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"}) {
    r.all(name).autocast = ops::Autocast::Narrow;
  }
});

// The second one serves inference mode, where tensors carry no autograd key.
TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) { register_modules(m); }
TORCH_LIBRARY_IMPL(aten, XLA, m) { register_modules(m); }

}  // namespace
}  // namespace torch_xla::dispatch
