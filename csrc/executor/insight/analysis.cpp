#include "executor/insight/analysis.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "debug/metrics.h"
#include "executor/insight/dumps.h"
#include "lazy/source.h"
#include "util/flags.h"

namespace torch_xla::executor {
namespace {

// 1: what is compiled, and metrics. 2: runs too.
int64_t level() {
  const int64_t set = util::flag::PT_XLA_DEBUG_LEVEL();
  if (set >= 0) return set;
  return util::flag::PT_XLA_DEBUG() ? 2 : 0;
}

void write(const std::string& text) {
  const std::string path = util::flag::PT_XLA_DEBUG_FILE();
  if (!path.empty() && append(path, text)) return;
  static std::atomic<bool> warned = false;
  if (!path.empty() && !warned.exchange(true)) {
    std::fprintf(stderr, "PT_XLA_DEBUG_FILE: expected a file that can be written, got %s\n",
                 path.c_str());
  }
  std::fwrite(text.data(), 1, text.size(), stderr);
}

// A framed text, each line of which begins with its title.
class Block {
 public:
  explicit Block(std::string_view title) : prefix_(std::string(title) + ": ") {
    text_ = "\n";
    line(std::string(80, '='));
  }
  void line(std::string_view text) { text_.append(prefix_).append(text).append("\n"); }
  void finish() {
    line(std::string(80, '-'));
    line(std::string(80, '='));
    write(text_);
  }

 private:
  const std::string prefix_;
  std::string text_;
};

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), seconds < 0.01 ? "%.1f ms" : "%.0f ms", seconds * 1e3);
  return text;
}

// The lines of the calling thread's stack, innermost first.
void add_frames(Block& block) {
  const auto most = static_cast<size_t>(std::max<int64_t>(util::flag::PT_XLA_DEBUG_MAX_FRAME(), 0));
  const lazy::SourceFrames frames = lazy::stack_here();
  for (size_t i = 0; i < std::min(frames.size(), most); ++i) {
    block.line("  " + frames[i].short_str());
  }
  if (frames.size() > most) block.line("  ..........");
}

// The facts of a graph that reports name.
struct GraphInfo {
  std::string_view name;
  const util::Hash128& key;
  size_t inputs, outputs;
};

GraphInfo info_of(const Program& program, const Cause& cause) {
  return {graph_name(cause), program.key, program.num_inputs, program.results.size()};
}

GraphInfo info_of(const Graph& graph, const Cause& cause) {
  return {graph_name(cause), graph.key, count_inputs(graph), graph.results.size()};
}

std::string text_of(const Origin& origin) {
  const std::string time = " in " + milliseconds(origin.seconds);
  if (!origin.rank) return "taken from the disk cache" + time;
  return "taken from rank " + std::to_string(*origin.rank) + time + ", after " +
         milliseconds(origin.waited) + " of waiting for its compiler";
}

// Headings that a list follows end in a blank: that is how others read them.
void tell(const std::string& title, const std::string& what, std::string_view cause,
          const GraphInfo& graph, const Origin* origin = nullptr) {
  Block block(title + " Analysis");
  block.line(what + " Cause");
  block.line("  " + std::string(cause));
  if (origin != nullptr) block.line("  " + text_of(*origin));
  block.line("Graph Info: ");
  if (!graph.name.empty()) block.line("  Graph Name: " + std::string(graph.name));
  block.line("  Graph Hash: " + graph.key.hex());
  block.line("  Number of Graph Inputs: " + std::to_string(graph.inputs));
  block.line("  Number of Graph Outputs: " + std::to_string(graph.outputs));
  block.line("Python Frame Triggered Execution: ");
  add_frames(block);
  block.finish();
}

std::string gigabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6f GB", static_cast<double>(bytes) / 1e9);
  return text;
}

std::optional<std::string> too_frequent(const char* metric, int64_t steps) {
  const std::optional<debug::MetricData> data = debug::metric_data(metric);
  if (!data || 2 * data->total_samples <= steps) return std::nullopt;
  return std::string(metric) + " too frequent: " + std::to_string(data->total_samples) +
         " counts during " + std::to_string(steps) + " steps";
}

std::optional<std::string> not_lowered() {
  std::string names;
  for (const std::string& name : debug::counter_names()) {
    // Counters of the device's own calls are not among them, nor a value that is read.
    const bool is_operator = name.find("::") != name.npos && !name.starts_with("xla::");
    if (is_operator && !name.starts_with("aten::_local_scalar_dense")) names += name + ", ";
  }
  if (names.empty()) return std::nullopt;
  return "Op(s) not lowered: " + names +
         " Please open a GitHub issue with the above op lowering requests.";
}

}  // namespace

bool tells_compilations() { return level() >= 1; }

bool tells_runs() { return level() >= 2; }

void tell_compilation(const Program& program, const Cause& cause) {
  if (!tells_compilations() || is_eager(cause)) return;
  tell("Compilation", "Compilation", cause.of_compilation, info_of(program, cause));
}

void tell_loaded(const Program& program, const std::vector<Lowered>& texts, const Cause& cause,
                 const Origin& origin) {
  if (!tells_compilations() || is_eager(cause)) return;
  tell("Compilation", "Compilation", cause.of_compilation, info_of(program, cause), &origin);
  tell_compiled(program, texts);
}

void tell_compiled(const Program& program, const std::vector<Lowered>& texts) {
  if (!tells_compilations()) return;
  util::Hasher hasher;
  for (const Lowered& lowered : texts) hasher.add_bytes(lowered.text);
  write("\nComputation hash: " + hasher.finish().hex() + "\n");
  for (const auto& executable : program.executables) {
    const std::optional<pjrt::CompiledMemoryStats> stats = executable->memory_stats();
    if (!stats) continue;  // this plugin does not tell
    Block block("Post Compilation Analysis");
    block.line("Graph input size: " + gigabytes(stats->argument_bytes));
    block.line("Graph output size: " + gigabytes(stats->output_bytes));
    block.line("Aliased Input size: " + gigabytes(stats->alias_bytes));
    block.line("Intermediate tensor size: " + gigabytes(stats->temp_bytes));
    block.line("Compiled program size: " + gigabytes(stats->generated_code_bytes));
    block.finish();
  }
}

void tell_run(const Graph& graph, const Cause& cause) {
  if (!tells_runs() || is_eager(cause)) return;
  tell("Execution", "Execution", cause.of_run, info_of(graph, cause));
}

void tell_unexpected(const Graph& graph, const Cause& cause) {
  tell("Unexpected Execution", "Execution", cause.of_run, info_of(graph, cause));
}

void tell_metrics() {
  constexpr int64_t kWarmUp = 10;  // the first steps compile and look at things
  if (level() < 1) return;
  const int64_t steps = debug::counter_value("MarkStep").value_or(0);
  if (steps <= kWarmUp) return;
  std::string text;
  for (const auto& line : {too_frequent("CompileTime", steps),
                           too_frequent("TransferFromDeviceTime", steps), not_lowered()}) {
    if (line) text += "pt-xla-profiler: " + *line + "\n";
  }
  if (!text.empty()) write(text);
}

}  // namespace torch_xla::executor
