#include "dispatch/record/step_replay.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "debug/metrics.h"
#include "dispatch/judge/known_values.h"
#include "executor/in_flight.h"
#include "lazy/function.h"
#include "lazy/operator.h"
#include "lazy/signature.h"
#include "util/error.h"

namespace torch_xla::dispatch {

using lazy::Node;
using lazy::Storage;
using lazy::Value;

StepReplay::Watch::Watch(int device, Tensors reachable)
    : device_(device),
      reachable_(std::move(reachable)),
      before_(reachable_),
      versions_(versions_of(reachable_)),
      random_(lazy::Device::of(device).random.position()),
      runs_(executor::runs_and_reads()),
      offers_(executor::num_offers()) {
  const lazy::GraphLock lock;
  std::unordered_set<uint64_t> distinct;
  for (Storage* storage : before_.storages) {
    TXLA_CHECK(storage->device_index() == device,
               "reaches a tensor on xla:", storage->device_index(), ", which is another device");
    const Value& value = storage->value();
    TXLA_CHECK(value.node->is_data(), "reaches a tensor whose value is not there");
    TXLA_CHECK(distinct.insert(value.node->id()).second, "reaches two tensors with one value");
    leaves_.push_back(value.node->id());
  }
}

std::unique_ptr<StepReplay> StepReplay::Watch::finish(const Tensors& results) const {
  TXLA_CHECK(executor::runs_and_reads() == runs_, "reads a value, or has a barrier");
  TXLA_CHECK(executor::num_offers() == offers_, "gives the memory of a tensor away");
  const lazy::GraphLock lock;
  TXLA_CHECK(Layout(reachable_).storages == before_.storages, "gives a tensor other memory");
  auto step = std::make_unique<StepReplay>();
  step->arguments_ = Taken(before_, reachable_, device_);
  step->writes_ = step->arguments_.writes_since(versions_, reachable_);
  Tensors all_tensors = reachable_;
  std::ranges::copy_if(results, std::back_inserter(all_tensors), &at::Tensor::defined);
  const Layout all(all_tensors);
  step->results_ = Given::of(results, reachable_, all);

  const size_t num_arguments = before_.storages.size();
  std::unordered_map<const Storage*, size_t> known;
  for (size_t i = 0; i < all.storages.size(); ++i) {
    Storage& storage = *all.storages[i];
    TXLA_CHECK(storage.device_index() == device_, "makes a tensor on another device");
    TXLA_CHECK(i >= num_arguments || &storage.geometry() == step->arguments_.storages[i],
               "gives a tensor another shape");
    known.emplace(&storage, i);
    if (i >= num_arguments) step->made_.push_back(&storage.geometry());
  }

  lazy::KeptFunction function;
  std::vector<size_t> written;
  std::vector<bool> waits(all.storages.size());
  Storage::for_each_pending(device_, [&](Storage& storage) {
    const auto it = known.find(&storage);
    const Node& node = *storage.value().node;
    if (node.is_data()) return;
    TXLA_CHECK(it != known.end(), "keeps a tensor where it cannot be found, the result of ",
               node.signature().op->name, " at ", node.source().str());
    waits[it->second] = true;
    written.push_back(it->second);
  });
  for (size_t i = 0; i < all.storages.size(); ++i) {
    if (waits[i] || !all.storages[i]->has_value()) continue;
    const bool is_unchanged = i < num_arguments && all.storages[i]->value().node->is_data() &&
                              all.storages[i]->value().node->id() == leaves_[i];
    if (!is_unchanged) written.push_back(i);  // uploaded, or an upload's copy
  }
  for (const size_t i : written) function.results.push_back(all.storages[i]->value());

  const std::vector<Value> captured =
      function.collect([this](const Node& node) { return !node.is_data() && node.id() > start_; });
  std::unordered_map<uint64_t, size_t> storage_of;
  for (size_t i = 0; i < leaves_.size(); ++i) storage_of.emplace(leaves_[i], i);
  for (const Value& value : captured) {
    TXLA_CHECK(value.node->is_data() && value.node->data().array != nullptr,
               "reads a value that waits");
    const auto it = storage_of.find(value.node->id());
    if (it != storage_of.end()) {
      step->inputs_.push_back(it->second);
    } else {
      TXLA_CHECK(value.node->id() > start_, "reads a tensor that it does not reach");
      step->inputs_.push_back(num_arguments + step->constants_.size());
      step->constants_.push_back(
          c10::make_intrusive<Storage>(&value.geometry(), value.node->device(), value));
    }
  }

  step->recipe_ = executor::Recipe(function);
  std::unordered_map<const Node*, uint32_t> index;
  for (const Node* parameter : function.parameters) index.emplace(parameter, index.size());
  for (const Node* call : function.calls) {
    TXLA_CHECK(call->device() == device_, "computes on another device");
    step->numbers_.push_back(call->numbers());
    index.emplace(call, index.size());
  }
  for (size_t i = 0; i < written.size(); ++i) {
    const Value& value = function.results[i];
    step->written_.push_back({written[i], {index.at(value.node.get()), value.index}});
  }
  step->checks_ = {checks_.stand_ins, log_.checks()};
  step->draws_ = Draws(function, random_, lazy::Device::of(device_).random.position());
  return step;
}

at::Tensor StepReplay::Checks::stand_in(const at::Tensor& tensor, const Layout& arguments) {
  const lazy::TensorImpl* impl = tensor.defined() ? lazy::as_lazy(tensor) : nullptr;
  if (impl == nullptr) return tensor;
  const Storage* storage = &impl->lazy_storage();
  const size_t i = static_cast<size_t>(std::ranges::find(arguments.storages, storage) -
                                       arguments.storages.begin());
  c10::intrusive_ptr<Storage> other;
  auto& known = i < arguments.storages.size() ? stand_ins[i] : other;
  if (!known.defined()) {
    known = c10::make_intrusive<Storage>(
        &storage->geometry(), storage->device_index(),
        lazy::placeholder(storage->geometry(), storage->device_index()));
  }
  return Place{0, impl->geometry(), impl->storage_offset(), impl->view()}.tensor({known});
}

bool StepReplay::Checks::pass(const Storages& storages) const {
  if (checks.empty()) return true;
  const lazy::GraphLock lock;
  std::vector<Value> placeholders;
  for (const auto& [i, stand_in] : stand_ins) {
    placeholders.push_back(stand_in->value());
    stand_in->set_value(static_cast<Storage&>(*storages[i]).value());
  }
  const bool suspected = std::ranges::any_of(checks, [](const ValueCheck& check) {
    return check.suspects({check.arguments, 0, known_values});
  });
  size_t next = 0;  // what refers to the values would keep them from being taken over
  for (const auto& [i, stand_in] : stand_ins) stand_in->set_value(placeholders[next++]);
  return !suspected;
}

bool StepReplay::fits(const Tensors& arguments) const {
  return arguments_.fits(arguments) && checks_.pass(arguments_.storages_of(arguments));
}

Tensors StepReplay::record(const Tensors& arguments) const {
  static const debug::Counter counter("ReplayedCalls");
  counter.add();
  Storages storages = arguments_.storages_of(arguments);
  const int device = arguments_.device;
  {
    const lazy::GraphLock lock;
    std::vector<c10::intrusive_ptr<Node>> nodes;
    nodes.reserve(inputs_.size() + recipe_.calls.size());
    std::vector<uint32_t> results_of_inputs;
    for (const size_t input : inputs_) {
      const size_t num_storages = storages.size();
      const Value& value = input < num_storages ? static_cast<Storage&>(*storages[input]).value()
                                                : constants_[input - num_storages]->value();
      nodes.push_back(value.node);
      results_of_inputs.push_back(value.index);
    }
    const auto value_of = [&](const executor::Recipe::Operand& o) {
      const bool is_input = o.index < results_of_inputs.size();
      return Value{nodes[o.index], is_input ? results_of_inputs[o.index] : o.result};
    };
    const lazy::Numbers seeds = draws_.draw(device);
    size_t next_seed = 0;
    for (size_t c = 0; c < recipe_.calls.size(); ++c) {
      const executor::Recipe::Call& call = recipe_.calls[c];
      lazy::Operands operands;
      for (uint32_t i = 0; i < call.num_operands; ++i) {
        operands.push_back(value_of(recipe_.operands[call.first_operand + i]));
      }
      lazy::Numbers numbers = numbers_[c];
      for (size_t i = numbers.size() - call.signature->num_seeds; i < numbers.size(); ++i) {
        numbers[i] = seeds[next_seed++];
      }
      auto node = c10::make_intrusive<Node>(call.signature, std::move(operands), std::move(numbers),
                                            device);
      node->source() = call.source;
      nodes.push_back(std::move(node));
    }
    for (const lazy::Geometry* geometry : made_) {
      storages.push_back(c10::make_intrusive<Storage>(geometry, device, Value{}));
    }
    for (const Written& write : written_) {
      static_cast<Storage&>(*storages[write.storage]).set_value(value_of(write.value));
    }
  }
  bump_versions(arguments, writes_);
  return Given::tensors(results_, arguments, storages);
}

}  // namespace torch_xla::dispatch
