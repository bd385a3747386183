#include "executor/dumps.h"

#include <fstream>
#include <mutex>
#include <string_view>

#include "executor/hlo_dump.h"
#include "executor/lower.h"
#include "executor/runtime.h"
#include "hlo/pretty.h"
#include "lazy/lock.h"
#include "lazy/print.h"
#include "lazy/stack.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/fork_mutex.h"
#include "util/memo.h"

namespace torch_xla::executor {
namespace {

std::string stablehlo(const Graph& graph) {
  return lower(graph, graph.interface(), Runtime::get().target()).text;
}

// The compiler's text takes a compilation to get.
std::string hlo(const Graph& graph) {
  static auto& known = *new util::Memo<std::string, 64>;  // guarded by the GraphLock
  if (const std::string* text = known.find(graph.key)) return *text;
  return known.add(graph.key, hlo_of(stablehlo(graph), graph.device).text);
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

bool append(const std::string& path, const std::string& text) {
  static auto& mutex = *new util::ForkMutex;
  const std::lock_guard lock(mutex);
  std::ofstream file(path, std::ios::app);
  file << text << std::flush;
  return file.good();
}

// In the form that scripts of PyTorch/XLA's users read.
void save_graph(const Graph& graph) {
  std::string path = util::flag::XLA_SAVE_TENSORS_FILE();
  if (path.empty()) return;
  path += "." + std::to_string(graph.device);
  const lazy::GraphLock lock;
  std::string head = "[ScheduleSyncTensorsGraph]\nTensorsGraphInfo:\n";
  for (const lazy::SourceFrame& frame : lazy::stack_here()) {
    head += "  " + frame.short_str() + "\n";
  }
  head += "\nRoot Hashes: (" + graph.key.hex() + ")\n";
  const std::string forms = util::flag::XLA_SAVE_TENSORS_FMT();
  for (std::string_view left = forms;;) {
    const std::string_view form = left.substr(0, left.find('|'));
    const std::string text = "\n## BEGIN_GRAPH\n" + text_in(form, graph) +
                             "\nGraph Hash: " + graph.key.hex() + "\n\n## END_GRAPH\n\n";
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
