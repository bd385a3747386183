// All who watch the executor, as its one observer: reports of compilations and runs, explanations
// of recompiles, dumps, kept runs, the search for NaN.
#pragma once

namespace torch_xla::executor {

// From now on they are told.
void start_watching();

}  // namespace torch_xla::executor
