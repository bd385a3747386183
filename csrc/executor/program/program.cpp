#include "executor/program/program.h"

#include <algorithm>

namespace torch_xla::executor {

const std::vector<at::Tensor>* Remembered::find(const PackedNumbers& numbers) const {
  const auto run =
      std::ranges::find_if(runs_, [&](const Run& r) { return r.numbers.is_same(numbers); });
  return run == runs_.end() || run->results.empty() ? nullptr : &run->results;
}

bool Remembered::comes_again(const PackedNumbers& numbers) {
  constexpr size_t kMost = 8;
  const auto is_it = [&](const Run& run) { return run.numbers.is_same(numbers); };
  if (std::ranges::any_of(runs_, is_it)) return true;
  if (runs_.size() == kMost) runs_.pop_front();
  runs_.push_back({numbers, {}});
  return false;
}

void Remembered::add(const PackedNumbers& numbers, std::vector<at::Tensor> results) {
  for (Run& run : runs_) {
    if (run.numbers.is_same(numbers)) run.results = std::move(results);
  }
}

std::optional<MemoryNeeds> needs_of(const Program& program) {
  MemoryNeeds needs;
  for (const auto& executable : program.executables) {
    const auto stats = executable->memory_stats();
    if (!stats) return std::nullopt;
    needs.arguments = std::max(needs.arguments, stats->argument_bytes);
    needs.results = std::max(needs.results, stats->output_bytes - stats->alias_bytes);
    needs.temporaries = std::max(needs.temporaries, stats->temp_bytes);
    needs.reused = std::max(needs.reused, stats->alias_bytes);
  }
  return needs;
}

void add_details(const Program& program, debug::Span& span) {
  span.detail("program", [&] { return program.name; });
  span.detail("graph", [&] { return program.key.hex(); });
  span.detail("line", [&] { return program.place; });
  span.detail("calls", [&] { return std::to_string(program.function.calls.size()); });
}

}  // namespace torch_xla::executor
