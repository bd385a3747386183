#include "executor/insight/watchers.h"

#include "executor/compile/cause.h"
#include "executor/compile/observer.h"
#include "executor/insight/analysis.h"
#include "executor/insight/dumps.h"
#include "executor/insight/kept_runs.h"
#include "executor/insight/nan_watch.h"
#include "executor/insight/recompiles.h"
#include "util/flags.h"

namespace torch_xla::executor {
namespace {

class Watchers final : public Observer {
 public:
  void compiling(const Program& program, const Cause& cause) override {
    tell_compilation(program, cause);
  }
  void compiled(const Program& program, const std::vector<Lowered>& texts,
                const Cause& cause) override {
    if (!is_eager(cause)) tell_compiled(program, texts);
  }
  void loaded(const Program& program, const std::vector<Lowered>& texts, const Cause& cause,
              const Origin& origin) override {
    tell_loaded(program, texts, cause, origin);
  }
  void made(const Program& program, const Cause& cause, std::optional<double> seconds) override {
    note_program(program, cause, seconds);
  }
  void dropped() override { forget_lines(); }
  std::string failed(const std::string& text) override { return show_failed(text); }
  std::string failed(const Graph& graph) override { return show_failed(graph); }

  bool watches_runs() override {
    return keeps_runs() || has_nan_checks() || util::flag::XLA_DEBUG_NANS() || tells_runs() ||
           saves_graphs() || shows_failed();
  }
  bool may_defer() override {
    return !util::flag::XLA_DEBUG_NANS() && !shows_failed() && !tells_compilations() &&
           !keeps_runs();
  }
  bool awaits_runs() override { return shows_failed(); }
  void unexpected(const Graph& graph, const Cause& cause) override {
    tell_unexpected(graph, cause);
  }
  void deferred(const Graph& graph, const Cause& cause) override {
    save_graph(graph, nullptr, cause);
  }
  bool launching(const Graph& graph, const Program& program, const Cause& cause) override {
    tell_run(graph, cause);
    save_graph(graph, &program, cause);
    keep_for_nans();
    return cause.program != kExamined.program && keep_run(graph, program);
  }
  void launched(const std::vector<lazy::Value>& leaves, int device) override {
    watch_results(leaves, device);
  }
  void report(int device, bool wait) override { report_nans(device, wait); }
};

}  // namespace

void start_watching() {
  static auto& watchers = *new Watchers;
  set_observer(watchers);
}

}  // namespace torch_xla::executor
