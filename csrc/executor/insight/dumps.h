// Files that users ask for: graphs that run (XLA_SAVE_TENSORS_FILE), and programs that cannot
// be compiled or fail (XLA_SAVE_HLO_FILE, XLA_DUMP_HLO_GRAPH).
#pragma once

#include <string>
#include <string_view>

#include "executor/compile/cause.h"
#include "executor/compile/graph.h"
#include "executor/program/program.h"

namespace torch_xla::executor {

// Adds a text to a file, whole: other threads write too. Returns whether that succeeded.
bool append(const std::string& path, const std::string& text);

// The graph's name in reports; empty where it has none.
std::string_view graph_name(const Cause& cause);

// Tells whether graphs that run are saved.
bool saves_graphs();
// Adds a graph that is about to run to the file, in the forms that XLA_SAVE_TENSORS_FMT names.
// `program` is null where it is still to be made.
void save_graph(const Graph& graph, const Program* program, const Cause& cause);

// Tells whether the user wants to see programs that fail; their runs are waited for.
bool shows_failed();
// If so, adds the text of one to the file. Returns what its error is to end with.
std::string show_failed(const std::string& text);
std::string show_failed(const Graph& graph);

}  // namespace torch_xla::executor
