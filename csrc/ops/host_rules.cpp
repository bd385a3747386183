#include "ops/host_rules.h"

#include <string>

#include <ATen/core/dispatch/Dispatcher.h>

#include "lazy/operator.h"
#include "util/error.h"
#include "util/flags.h"

namespace torch_xla::ops {
namespace {

bool ask_pytorch(const char* op) {
  const auto handle = c10::Dispatcher::singleton().findSchema({op, ""});
  return handle && handle->typed<bool()>().call();
}

}  // namespace

bool choose_host(bool faster) {
  const std::string way = util::flag::XLA_HOST_KERNELS();
  TXLA_CHECK_KIND(util::ErrorKind::Value, way == "auto" || way == "all" || way == "none",
                  "XLA_HOST_KERNELS: expected auto, all or none, got '", way, "'.");
  return way == "all" || (way == "auto" && faster);
}

hlo::Values xla_code(Lowering& l) { return l.signature().op->rule->lower(l); }

bool is_empty(Lowering& l, std::initializer_list<size_t> args) {
  for (const size_t arg : args) {
    if (l.in(arg).type().elements() == 0) return true;
  }
  return false;
}

bool multiplies(hlo::DType dtype) {
  static const bool bf16 = ask_pytorch("mkldnn::_is_mkldnn_bf16_supported");
  static const bool f16 = ask_pytorch("mkldnn::_is_mkldnn_fp16_supported");
  if (dtype == hlo::DType::BF16) return bf16;
  return dtype == hlo::DType::F16 ? f16 : true;
}

}  // namespace torch_xla::ops
