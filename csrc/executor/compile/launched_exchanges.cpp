#include "executor/compile/launched_exchanges.h"

#include <algorithm>
#include <utility>

#include "ops/exchange.h"
#include "util/error.h"

namespace torch_xla::executor {
namespace {

using Weak = c10::weak_intrusive_ptr<lazy::Node>;

struct Known {
  Weak call;  // others keep it
  std::vector<std::pair<uint32_t, Weak>> leaves;
};

uint64_t times = 0;

std::vector<Known>& known() {
  static auto& all = *new std::vector<Known>;
  std::erase_if(all, [](const Known& k) { return k.call.expired(); });
  return all;
}

const Known* find(const lazy::Node* call) {
  for (const Known& k : known()) {
    if (k.call.lock().get() == call) return &k;
  }
  return nullptr;
}

}  // namespace

Calls exchanges_in(const Graph& graph, const Program* program) {
  Calls calls;
  if (program != nullptr && program->exchanges == nullptr) return calls;
  for (const lazy::Node* call : graph.calls) {
    if (!ops::exchanges(call->signature())) continue;
    auto* const owned = const_cast<lazy::Node*>(call);  // NOLINT(*-const-cast): to keep it
    calls.push_back(c10::intrusive_ptr<lazy::Node>::reclaim_copy(owned));
  }
  return calls;
}

void note_exchanged(const Calls& calls, const Graph& graph,
                    const std::vector<lazy::Value>& leaves) {
  if (calls.empty()) return;
  ++times;
  std::vector<Known>& all = known();
  for (const auto& call : calls) {
    Known& k = all.emplace_back(Weak(call));
    for (size_t i = 0; i < leaves.size(); ++i) {
      const lazy::Value& result = graph.results[i];
      if (result.node == call) k.leaves.emplace_back(result.index, Weak(leaves[i].node));
    }
  }
}

uint64_t times_exchanged() { return times; }

lazy::Value if_exchanged(const lazy::Value& value) {
  if (value.node->num_outputs() == 1) return value;
  const Known* call = find(value.node.get());
  if (call == nullptr) return value;
  for (const auto& [index, leaf] : call->leaves) {
    if (index != value.index) continue;
    if (auto node = leaf.lock()) return {std::move(node), 0};
  }
  return value;
}

void expect_new_exchanges(const Graph& graph) {
  if (known().empty()) return;
  for (const lazy::Node* call : graph.calls) {
    TXLA_CHECK(!ops::exchanges(call->signature()) || find(call) == nullptr,
               "collectives: expected a value that is to be exchanged, or its data, got one that "
               "another thread has exchanged and overwritten meanwhile. Its call was recorded at ",
               call->source().str(), ". Read a copy of it.");
  }
}

}  // namespace torch_xla::executor
