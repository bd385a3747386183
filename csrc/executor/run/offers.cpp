#include "executor/run/offers.h"

#include <atomic>
#include <string>
#include <unordered_set>
#include <utility>

#include "debug/metrics.h"
#include "executor/program/program.h"
#include "lazy/source.h"
#include "pjrt/buffer.h"

namespace torch_xla::executor {
namespace {

std::atomic<bool> reads_take{false};
std::atomic<uint64_t> count{0};

// Those of functions that are being recorded, by Node::id(). Guarded by the GraphLock.
std::unordered_set<uint64_t>& placeholders() {
  static auto& offered = *new std::unordered_set<uint64_t>;
  return offered;
}

}  // namespace

bool offer(const lazy::Value& value, bool is_offered) {
  static const debug::Counter counter("XlaSetBufferDonation");
  if (!value.node->is_data()) return false;
  ++count;
  if (value.node->data().array != nullptr) {
    counter.add();
    value.node->data().array->set_offered(is_offered);
  } else if (is_offered) {
    placeholders().insert(value.node->id());
  } else {
    placeholders().erase(value.node->id());
  }
  return true;
}

bool is_offered(const lazy::Value& value) {
  if (!value.node->is_data()) return false;
  const pjrt::Array* array = value.node->data().array.get();
  return array != nullptr ? array->is_offered() : placeholders().contains(value.node->id());
}

uint64_t num_offers() { return count; }

bool reads_take_offers() { return reads_take; }
void set_reads_take_offers(bool they_do) { reads_take = they_do; }

std::vector<GivenAway> give_away(const Program& program,
                                 const std::vector<const lazy::Node*>& inputs) {
  std::vector<GivenAway> given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const lazy::Node* parameter = inputs[i];
    if (!program.reuses(i) || !parameter->data().array->is_offered()) continue;
    const auto leaf =
        c10::intrusive_ptr<lazy::Node>::reclaim_copy(const_cast<lazy::Node*>(parameter));
    lazy::DeviceData rest = leaf->data();
    const std::string line = lazy::source_line();
    rest.array = std::make_shared<pjrt::Array>(pjrt::Array::given_away(
        *rest.array, line.empty() ? "a run" : "the run that was launched at " + line));
    given.push_back({c10::weak_intrusive_ptr<lazy::Node>(leaf), leaf->data()});
    leaf->become_data(std::move(rest));
  }
  return given;
}

void give_back(const std::vector<GivenAway>& given) {
  for (const GivenAway& each : given) {
    const c10::intrusive_ptr<lazy::Node> leaf = each.leaf.lock();
    if (!leaf.defined() || !leaf->is_data() || each.data.array->is_deleted()) continue;
    if (leaf->data().array->is_given_away()) leaf->become_data(each.data);
  }
}

}  // namespace torch_xla::executor
