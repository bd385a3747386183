// True where this build notes what explains a run: the line of each call, waits, recompiles, data
// by line. A build without is for measuring what that costs (benchmarks/diagnostics.py).
#pragma once

namespace torch_xla::util {

#ifdef TORCH_XLA_NO_DIAGNOSTICS
inline constexpr bool kDiagnostics = false;
#else
inline constexpr bool kDiagnostics = true;
#endif

}  // namespace torch_xla::util
