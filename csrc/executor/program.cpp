#include "executor/program.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "debug/metrics.h"
#include "executor/in_flight.h"
#include "executor/runtime.h"
#include "lazy/operator.h"
#include "lazy/print.h"
#include "util/error.h"

namespace torch_xla::executor {

Recipe::Recipe(const lazy::Function& function) {
  std::unordered_map<const lazy::Node*, uint32_t> index;
  for (const lazy::Node* parameter : function.parameters) index.emplace(parameter, index.size());
  num_parameters = static_cast<uint32_t>(index.size());
  calls.reserve(function.calls.size());
  for (const lazy::Node* call : function.calls) {
    calls.push_back({call->shared_signature(), call->source(),
                     static_cast<uint32_t>(operands.size()),
                     static_cast<uint32_t>(call->operands().size())});
    for (const lazy::Value& operand : call->operands()) {
      operands.push_back({index.at(operand.node.get()), operand.index});
    }
    index.emplace(call, index.size());
  }
}

std::string Recipe::text_of(const Call& call, const std::string& operands) {
  std::string text = call.signature->op->name + "(" + operands + ") : ";
  text += lazy::types_of(call.signature->outputs);
  const std::string place = call.source.str();
  return place.empty() ? text : text + "  // " + place;
}

std::vector<std::string> Recipe::lines() const {
  std::vector<std::string> lines;
  for (const Call& call : calls) {
    std::string given;
    for (uint32_t i = 0; i < call.num_operands; ++i) {
      const Operand& operand = operands[call.first_operand + i];
      given += (i == 0 ? "%" : ", %") + std::to_string(operand.index);
      if (operand.result != 0) given += "." + std::to_string(operand.result);
    }
    lines.push_back("%" + std::to_string(num_parameters + lines.size()) + " = " +
                    text_of(call, given));
  }
  return lines;
}

std::string Recipe::difference_from(const Recipe& last) const {
  const auto same = [](const Call& a, const Call& b) {
    return a.signature->key == b.signature->key;
  };
  const auto [old, call] = std::ranges::mismatch(last.calls, calls, same);
  if (old != last.calls.end() && call != calls.end()) {
    return "It first differs at " + text_of(*call) + ", where the last had " + text_of(*old);
  }
  if (calls.size() != last.calls.size()) {
    return util::concat("It has ", calls.size(), " calls, the last had ", last.calls.size());
  }
  return "Its calls are those of the last, with other operands or other memory to reuse";
}

namespace {

template <class T>
pjrt::Array send_numbers(const std::vector<T>& numbers, pjrt::DType dtype,
                         std::span<const pjrt::Device> devices) {
  const auto n = static_cast<int64_t>(numbers.size());
  return pjrt::Array::from_host(Runtime::get().client(), numbers.data(), dtype, std::span(&n, 1),
                                devices);
}

pjrt::Executable::ArrayResult run(const pjrt::Executable& executable,
                                  std::vector<const pjrt::Array*> arrays,
                                  const PackedNumbers& numbers,
                                  std::span<const pjrt::Device> devices,
                                  std::span<const int64_t> kept) {
  std::optional<pjrt::Array> floats, ints;
  if (!numbers.floats.empty()) {
    floats = send_numbers(numbers.floats, PJRT_Buffer_Type_F64, devices);
    arrays.push_back(&*floats);
  }
  if (!numbers.ints.empty()) {
    ints = send_numbers(numbers.ints, PJRT_Buffer_Type_S64, devices);
    arrays.push_back(&*ints);
  }
  return executable.execute(arrays, kept);
}

// What one piece has computed is let go as soon as no other needs it.
pjrt::Executable::ArrayResult run_pieces(const Program& program,
                                         std::vector<const pjrt::Array*> slots,
                                         PackedNumbers numbers,
                                         std::span<const pjrt::Device> devices) {
  const Plan& plan = *program.plan;
  std::ranges::copy(plan.constants.floats, std::back_inserter(numbers.floats));
  std::ranges::copy(plan.constants.ints, std::back_inserter(numbers.ints));
  slots.resize(plan.num_slots);
  std::vector<std::shared_ptr<pjrt::Array>> made(plan.num_slots);
  pjrt::Executable::ArrayResult all;
  for (const Piece& piece : plan.pieces) {
    std::vector<const pjrt::Array*> arguments;
    arguments.reserve(piece.arguments.size() + 2);
    for (const uint32_t slot : piece.arguments) arguments.push_back(slots[slot]);
    PackedNumbers own;
    for (const uint32_t i : piece.floats) own.floats.push_back(numbers.floats[i]);
    for (const uint32_t i : piece.ints) own.ints.push_back(numbers.ints[i]);
    auto result =
        run(*program.executables[piece.executable], std::move(arguments), own, devices, {});
    for (size_t i = 0; i < piece.results.size(); ++i) {
      made[piece.results[i]] = std::move(result.outputs[i]);
      slots[piece.results[i]] = made[piece.results[i]].get();
    }
    std::ranges::move(result.done, std::back_inserter(all.done));
    for (const uint32_t slot : piece.ended) made[slot].reset();
  }
  for (const uint32_t slot : plan.results) all.outputs.push_back(std::move(made[slot]));
  return all;
}

}  // namespace

pjrt::Executable::ArrayResult launch(const Program& program, std::vector<const pjrt::Array*> arrays,
                                     const PackedNumbers& numbers,
                                     std::span<const pjrt::Device> devices,
                                     std::span<const int64_t> kept) {
  static const debug::Metric time("ExecuteTime");
  const debug::TimedScope scope(time);
  count_run_or_read();
  const Interface& takes = program.interface;
  TXLA_CHECK(arrays.size() == takes.parameters.size() &&
                 numbers.floats.size() == takes.num_floats && numbers.ints.size() == takes.num_ints,
             program.name, ": expected ", takes.parameters.size(), " arrays, ", takes.num_floats,
             " floats and ", takes.num_ints, " integers, got ", arrays.size(), ", ",
             numbers.floats.size(), " and ", numbers.ints.size(), ". Please report this.");
  if (program.plan) return run_pieces(program, arrays, numbers, devices);
  pjrt::Executable::ArrayResult result =
      run(*program.executables[0], std::move(arrays), numbers, devices, kept);
  for (size_t i = 0; i < program.shardings.size(); ++i) {
    if (program.shardings[i] == nullptr) continue;
    result.outputs[i]->set_sharding(program.shardings[i], program.results[i]->sizes);
  }
  return result;
}

}  // namespace torch_xla::executor
