// Control flow: loops and branches of a program, whose bodies are regions of the call's signature.
#include <algorithm>

#include "lazy/function.h"
#include "ops/lowering.h"
#include "ops/notation.h"
#include "ops/registry.h"
#include "ops/split_mix.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

constexpr hlo::DType kCounter = DType::S64;

Values joined(std::initializer_list<std::span<const Value>> parts) {
  Values all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Seeds for one iteration, from the call's.
Values seeds_of_iteration(std::span<const Value> seeds, const Value& iteration) {
  const SplitMixOps ops;
  Values all;
  for (const Value& seed : seeds) {
    all.push_back(lazy::SplitMix::mixed(lazy::SplitMix::advanced(seed, iteration, ops), ops));
  }
  return all;
}

// A loop that counts its iterations. What does not change is carried too: functions of some
// compilers do not see values of others.
struct Loop {
  std::span<const Value> state;      // that the body replaces
  std::span<const Value> constants;  // that it reads
  std::span<const Value> seeds;

  struct View {
    std::span<const Value> state, constants;
    Value iteration;
    Values seeds;
  };

  Values run(hlo::Builder& b, const std::function<Value(const View&)>& condition,
             const std::function<Values(const View&)>& body) const {
    const auto view = [&](std::span<const Value> carried) {
      View v;
      v.iteration = carried[0];
      v.state = carried.subspan(1, state.size());
      v.constants = carried.subspan(1 + state.size(), constants.size());
      v.seeds = seeds_of_iteration(carried.last(seeds.size()), v.iteration);
      return v;
    };
    const Value zero = hlo::scalar_int(b, 0, kCounter);
    const Values init = joined({{&zero, 1}, state, constants, seeds});
    const Values results = hlo::while_loop(
        init, [&](std::span<const Value> carried) { return condition(view(carried)); },
        [&](std::span<const Value> carried) {
          const Values next = body(view(carried));
          const Value following = carried[0] + hlo::scalar_int(b, 1, kCounter);
          return joined({{&following, 1}, next, carried.subspan(1 + state.size())});
        });
    return {results.begin() + 1, results.begin() + 1 + static_cast<int64_t>(state.size())};
  }
};

// (Tensor[] carried, Tensor[] by_condition, Tensor[] by_body, str functions)
Values while_loop(Lowering& l) {
  const Values carried = l.list(0), by_condition = l.list(1), by_body = l.list(2);
  const Values constants = joined({by_condition, by_body});
  const size_t of_condition = l.signature().regions[0]->num_seeds();
  return Loop{carried, constants, l.seeds()}.run(
      l.b,
      [&](const Loop::View& v) {
        const Values arguments = joined({v.state, v.constants.first(by_condition.size())});
        return l.region(0, arguments, std::span(v.seeds).first(of_condition))[0];
      },
      [&](const Loop::View& v) {
        const Values arguments = joined({v.state, v.constants.last(by_body.size())});
        return l.region(1, arguments, std::span(v.seeds).subspan(of_condition));
      });
}

// (Tensor predicate, Tensor[] by_true, Tensor[] by_false, str functions)
Values cond(Lowering& l) {
  std::vector<hlo::Type> types;
  for (size_t i = 0; i < l.num_outputs(); ++i) types.push_back(l.out(i));
  const size_t of_true = l.signature().regions[0]->num_seeds();
  return hlo::conditional(
      l.in(0), types, [&] { return l.region(0, l.list(1), l.seeds().first(of_true)); },
      [&] { return l.region(1, l.list(2), l.seeds().subspan(of_true)); });
}

// (Tensor[] init, Tensor[] xs, Tensor[] captured, bool reverse, str function): the function takes
// the carried values and a row of each of `xs`, and gives the next values and a row of each further
// result.
Values scan(Lowering& l) {
  const Values init = l.list(0), xs = l.list(1);
  Values state = init;
  for (size_t i = init.size(); i < l.num_outputs(); ++i) {
    state.push_back(hlo::zero(l.b, l.out(i)));
  }
  const Values constants = joined({xs, l.list(2)});
  const int64_t length = xs.at(0).dim(0);
  if (length == 0) return state;

  const auto at = [&](const Value& all, const Value& iteration) {
    Values starts(all.rank(), hlo::scalar_int(l.b, 0, kCounter));
    starts[0] = l.flag(3) ? hlo::scalar_int(l.b, length - 1, kCounter) - iteration : iteration;
    return starts;
  };
  return Loop{state, constants, l.seeds()}.run(
      l.b,
      [&](const Loop::View& v) {
        return hlo::less(v.iteration, hlo::scalar_int(l.b, length, kCounter));
      },
      [&](const Loop::View& v) {
        Values arguments(v.state.begin(), v.state.begin() + static_cast<int64_t>(init.size()));
        for (const Value& x : v.constants.first(xs.size())) {
          hlo::Dims one = x.dims();
          one[0] = 1;
          const Value row = hlo::dynamic_slice(x, at(x, v.iteration), one);
          arguments.push_back(hlo::reshape(row, {one.begin() + 1, one.end()}));
        }
        const auto captured = v.constants.subspan(xs.size());
        arguments.insert(arguments.end(), captured.begin(), captured.end());
        Values next = l.region(0, arguments, v.seeds);
        for (size_t i = init.size(); i < next.size(); ++i) {
          hlo::Dims one = next[i].dims();
          one.insert(one.begin(), 1);
          next[i] = hlo::dynamic_update_slice(v.state[i], hlo::reshape(next[i], one),
                                              at(v.state[i], v.iteration));
        }
        return next;
      });
}

const Rules control_flow_rules([](Registry& r) {
  r.add("torch_xla::while_loop", while_loop);
  r.add("torch_xla::cond", cond);
  r.add("torch_xla::scan", scan);
});

}  // namespace
}  // namespace torch_xla::ops
