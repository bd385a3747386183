#include "executor/insight/dumps.h"

#include <algorithm>
#include <fstream>
#include <mutex>
#include <string_view>

#include "executor/insight/hlo_dump.h"
#include "executor/program/lower.h"
#include "executor/run/array_types.h"
#include "executor/run/runtime.h"
#include "executor/step/compiled_region.h"
#include "hlo/pretty.h"
#include "lazy/lock.h"
#include "lazy/print.h"
#include "lazy/source.h"
#include "spmd/sharding.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/fork_mutex.h"
#include "util/memo.h"

namespace torch_xla::executor {
namespace {

std::string stablehlo(const Graph& graph) {
  return lower(graph.function(), graph.interface(), Runtime::get().target()).text;
}

// The compiler's text takes a compilation to get.
std::string hlo(const Graph& graph) {
  static auto& known = *new util::Memo<std::string, 64>;  // guarded by the GraphLock
  const util::Hash128 key =
      util::Hasher().add(graph.key).add(util::flag::XLA_DUMP_POST_OPTIMIZATIONS()).finish();
  if (const std::string* text = known.find(key)) return *text;
  return known.add(key, hlo_of(stablehlo(graph), graph.device).text);
}

std::string text_in(std::string_view form, const Graph& graph) {
  if (form == "text") return lazy::text_of(graph.results);
  if (form == "dot") return lazy::dot_of(graph.results);
  if (form == "hlo") return hlo(graph);
  TXLA_CHECK_KIND(
      util::ErrorKind::Value, form == "stablehlo",
      "XLA_SAVE_TENSORS_FMT: expected text, dot, hlo or stablehlo, or some of them as in "
      "hlo|text, got '",
      form, "'.");
  return hlo::pretty(stablehlo(graph));
}

}  // namespace

std::string_view graph_name(const Cause& cause) {
  if (!cause.graph_name.empty()) return cause.graph_name;
  const CompiledRegion* region = CompiledRegion::current();
  return region == nullptr ? std::string_view() : region->name();
}

bool append(const std::string& path, const std::string& text) {
  static auto& mutex = *new util::ForkMutex;
  const std::lock_guard lock(mutex);
  std::ofstream file(path, std::ios::app);
  file << text << std::flush;
  return file.good();
}

namespace {

// The hash of each result alone, whatever else the graph computes.
std::string root_hashes(const Graph& graph) {
  std::string hashes;
  for (const lazy::Value& root : graph.results) {
    const std::string comma = hashes.empty() ? "" : ", ";
    hashes += comma + Graph({root}, graph.device).structure.hex();
  }
  return hashes;
}

// The shardings of the results, as text.
std::string output_shardings(const Graph& graph, const Program& program) {
  std::string text = "\n#OUTPUT_SHARDING_BEGIN\n\n";
  for (size_t i = 0; i < graph.results.size(); ++i) {
    const spmd::Sharding* s = program.shardings.empty() ? nullptr : program.shardings[i];
    std::string shape = xla_shape(graph.results[i].geometry());
    shape.resize(std::min(shape.find('{'), shape.size()));  // without its layout
    text += shape + " " + (s == nullptr ? "{replicated}" : s->gspmd()) + "\n";
  }
  return text + "\n#OUTPUT_SHARDING_END\n\n";
}

}  // namespace

bool saves_graphs() { return !util::flag::XLA_SAVE_TENSORS_FILE().empty(); }

// In the form that scripts of PyTorch/XLA's users read.
void save_graph(const Graph& graph, const Program* program, const Cause& cause) {
  if (!saves_graphs()) return;
  std::string path = util::flag::XLA_SAVE_TENSORS_FILE();
  path += "." + std::to_string(graph.device);
  const lazy::GraphLock lock;
  std::string head = cause.of_run == kDynamo.of_run ? "[dynamo]\n" : "[ScheduleSyncTensorsGraph]\n";
  const std::string name(graph_name(cause));
  if (!name.empty()) head += "Graph Name: " + name + "\n";
  head += "TensorsGraphInfo:\n";
  for (const lazy::SourceFrame& frame : lazy::stack_here()) {
    head += "  " + frame.short_str() + "\n";
  }
  head += "\nRoot Hashes: (" + root_hashes(graph) + ")\n";
  const std::string forms = util::flag::XLA_SAVE_TENSORS_FMT();
  for (std::string_view left = forms;;) {
    const std::string_view form = left.substr(0, left.find('|'));
    std::string text = "\n## BEGIN_GRAPH\n" + text_in(form, graph) +
                       "\nGraph Hash: " + graph.key.hex() + "\n\n## END_GRAPH\n\n";
    if (form == "hlo" && program != nullptr && is_spmd()) text += output_shardings(graph, *program);
    TXLA_CHECK(append(path, head + text),
               "XLA_SAVE_TENSORS_FILE: expected a file that can be written, got '", path,
               "'. Name another, or unset it.");
    if (form.size() == left.size()) return;
    left.remove_prefix(form.size() + 1);
  }
}

bool shows_failed() {
  return util::flag::XLA_DUMP_HLO_GRAPH() || !util::flag::XLA_SAVE_HLO_FILE().empty();
}

std::string show_failed(const std::string& text) {
  if (!shows_failed()) return "";
  const std::string program = hlo::pretty(text);
  const std::string path = util::flag::XLA_SAVE_HLO_FILE();
  std::string shown;
  if (!path.empty() && !append(path, program + "\n")) {
    shown = "\nXLA_SAVE_HLO_FILE: '" + path + "' cannot be written.";
  }
  return util::flag::XLA_DUMP_HLO_GRAPH() ? shown + "\nThe program:\n" + program : shown;
}

std::string show_failed(const Graph& graph) {
  return shows_failed() ? show_failed(stablehlo(graph)) : "";
}

}  // namespace torch_xla::executor
