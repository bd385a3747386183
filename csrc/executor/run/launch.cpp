#include "executor/run/launch.h"

#include <algorithm>
#include <exception>
#include <map>
#include <optional>

#include "cpu/host_kernel.h"
#include "debug/metrics.h"
#include "executor/run/run_time.h"
#include "executor/run/runtime.h"
#include "pjrt/gate.h"
#include "util/error.h"
#include "util/hooks.h"

namespace torch_xla::executor {

namespace {

template <class T>
pjrt::Array send_numbers(const std::vector<T>& numbers, pjrt::DType dtype,
                         std::span<const pjrt::Device> devices) {
  const auto n = static_cast<int64_t>(numbers.size());
  return pjrt::Array::from_host(Runtime::get().client(), numbers.data(), dtype, std::span(&n, 1),
                                devices);
}

const pjrt::Executable& gate_program(const pjrt::Device& device) {
  static auto& known = *new std::map<int, std::unique_ptr<pjrt::Executable>>;  // by device
  std::unique_ptr<pjrt::Executable>& program = known[device.id()];
  if (program == nullptr) program = pjrt::Gate::make_program(Runtime::get().client(), device);
  return *program;
}

pjrt::Executable::ArrayResult run(const pjrt::Executable& executable,
                                  std::vector<const pjrt::Array*> arrays,
                                  const PackedNumbers& numbers,
                                  std::span<const pjrt::Device> devices, bool has_gate,
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
  std::optional<pjrt::Gate> gate;
  if (has_gate) gate.emplace(Runtime::get().client(), gate_program(devices[0]));
  return executable.execute(arrays, kept);
}

// Lets the results of a piece go as soon as no other piece needs them.
pjrt::Executable::ArrayResult run_pieces(const Program& program,
                                         std::vector<const pjrt::Array*> slots,
                                         PackedNumbers numbers,
                                         std::span<const pjrt::Device> devices, bool has_gates,
                                         std::span<const int64_t> kept) {
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
    std::vector<int64_t> kept_here;
    for (size_t k = 0; k < piece.arguments.size() && !kept.empty(); ++k) {
      if (std::ranges::count(kept, int64_t{piece.arguments[k]}) > 0) kept_here.push_back(k);
    }
    auto result = run(*program.executables[piece.executable], std::move(arguments), own, devices,
                      has_gates && program.need_gates[piece.executable], kept_here);
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

bool needs_gate(const pjrt::Executable& executable, std::string_view stablehlo) {
  constexpr int64_t kMuch = 1 << 18;  // bytes that take longer than another thread to begin
  Runtime& runtime = Runtime::get();
  if (!runtime.target().host_kernels || !pjrt::Gate::can_be_made(runtime.client().plugin())) {
    return false;
  }
  const auto stats = executable.memory_stats();
  const bool is_large =
      !stats || stats->argument_bytes + stats->output_bytes + stats->temp_bytes >= kMuch;
  const bool calls_host = stablehlo.find(cpu::kHostKernelTarget) != stablehlo.npos;
  return (is_large || calls_host) && pjrt::is_cheap(executable);
}

pjrt::Executable::ArrayResult start(const Program& program, std::vector<const pjrt::Array*> arrays,
                                    const PackedNumbers& numbers, int device, bool is_awaited,
                                    std::span<const int64_t> kept, bool is_eager) {
  const pjrt::Devices& devices = Runtime::get().devices(device);
  debug::Span span("launch");
  add_details(program, span);
  const Interface& takes = program.interface;
  TXLA_CHECK(arrays.size() == takes.parameters.size() &&
                 numbers.floats.size() == takes.num_floats && numbers.ints.size() == takes.num_ints,
             program.name, ": expected ", takes.parameters.size(), " arrays, ", takes.num_floats,
             " floats and ", takes.num_ints, " integers, got ", arrays.size(), ", ",
             numbers.floats.size(), " and ", numbers.ints.size(), ". Please report this.");
  if (program.exchanges != nullptr && util::hooks.exchanging != nullptr) [[unlikely]] {
    const bool begin_together = !Runtime::get().target().exchanges_on_host;
    util::hooks.exchanging(program.exchanges, begin_together, !program.is_agreed);
    program.is_agreed = true;
  }
  const auto time = std::make_shared<RunTime>(device, is_eager);
  pjrt::Executable::ArrayResult result;
  try {
    if (program.plan) {
      result = run_pieces(program, std::move(arrays), numbers, devices.mine, !is_awaited, kept);
    } else {
      const bool has_gate = !is_awaited && !program.need_gates.empty() && program.need_gates[0];
      result =
          run(*program.executables[0], std::move(arrays), numbers, devices.mine, has_gate, kept);
    }
  } catch (...) {
    time->end();
    throw;
  }
  result.done.back().on_ready([time](std::exception_ptr) { time->end(); });
  static const debug::Counter runs("ExecuteComputation");
  if (devices.all.size() == 1) runs.add();
  if (devices.all.size() > 1) {
    static const debug::Counter of_several("ExecuteReplicated"), shardings("SetShardingSpec");
    of_several.add();
    shardings.add(static_cast<int64_t>(result.outputs.size()));
  }
  for (size_t i = 0; i < program.shardings.size(); ++i) {
    if (program.shardings[i] == nullptr) continue;
    result.outputs[i]->set_sharding(program.shardings[i], program.results[i]->sizes);
  }
  return result;
}

}  // namespace torch_xla::executor
