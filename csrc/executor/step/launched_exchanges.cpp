#include "executor/step/launched_exchanges.h"

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

std::vector<Known>& known() {
  static auto& all = *new std::vector<Known>;
  return all;
}

const Known* find(const lazy::Node* call) {
  for (const Known& k : known()) {
    if (k.call.lock().get() == call) return &k;
  }
  return nullptr;
}

}  // namespace

void note_exchanges(const Graph& graph, const std::vector<lazy::Value>& leaves) {
  std::erase_if(known(), [](const Known& k) { return k.call.expired(); });
  for (const lazy::Node* call : graph.calls) {
    if (call->is_data() || !ops::exchanges(call->signature())) continue;
    Known& k =
        known().emplace_back(Weak(c10::intrusive_ptr<lazy::Node>::unsafe_reclaim_from_nonowning(
            const_cast<lazy::Node*>(call))));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    for (size_t i = 0; i < leaves.size(); ++i) {
      const lazy::Value& result = graph.results[i];
      if (result.node.get() == call) k.leaves.emplace_back(result.index, Weak(leaves[i].node));
    }
  }
}

lazy::Value if_exchanged(const lazy::Value& value) {
  if (value.node->num_outputs() == 1) return value;
  const Known* call = find(value.node.get());
  if (call == nullptr) return value;
  for (const auto& [index, leaf] : call->leaves) {
    auto node = index == value.index ? leaf.lock() : c10::intrusive_ptr<lazy::Node>();
    if (node.defined()) return {std::move(node), 0};
  }
  return value;
}

void expect_new_exchanges(const Graph& graph) {
  std::erase_if(known(), [](const Known& k) { return k.call.expired(); });
  if (known().empty()) return;
  for (const lazy::Node* call : graph.calls) {
    TXLA_CHECK(!ops::exchanges(call->signature()) || find(call) == nullptr,
               "collectives: expected a value that is to be exchanged, or its data, got one that "
               "another thread has exchanged and overwritten meanwhile. Its call was recorded at ",
               call->source().str(), ". Read a copy of it.");
  }
}

}  // namespace torch_xla::executor
