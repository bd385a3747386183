// Operators that say something to another compiler: calls of what it has under a name, and marks
// around what it may replace.
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "dispatch/calls/own_operator.h"
#include "ops/rules.h"

namespace torch_xla::dispatch {
namespace {

at::Tensor marked(const at::Tensor& self, c10::string_view, int64_t, c10::string_view, bool,
                  c10::string_view) {
  return at::empty_like(self);
}
at::Tensor located(const at::Tensor& self, c10::string_view) { return at::empty_like(self); }

hlo::Values same(ops::Lowering& l) { return {l.in(0)}; }

const OwnOperator mark_tensor(
    "mark_tensor(Tensor self, str name, int pos, str id, bool is_input, str attributes) -> Tensor",
    marked);
const OwnOperator set_location("set_location(Tensor self, str place) -> Tensor", located);

const ops::Rules marks([](ops::Registry& r) {
  r.add("torch_xla::mark_tensor", same).mark = ops::Mark::Composite;
  r.add("torch_xla::set_location", same).mark = ops::Mark::Location;
});

// The sizes of all results follow each other in `sizes`; `dtypes` are names between spaces.
std::vector<at::Tensor> called(at::TensorList, c10::string_view, at::IntArrayRef ranks,
                               at::IntArrayRef sizes, c10::string_view dtypes, bool,
                               c10::string_view, int64_t, c10::string_view) {
  std::vector<at::Tensor> results;
  std::istringstream names{std::string(dtypes)};
  std::string name;
  for (const int64_t rank : ranks) {
    names >> name;
    results.push_back(
        at::empty(sizes.slice(0, static_cast<size_t>(rank)),
                  at::TensorOptions(c10::getStringToDtypeMap().at(name)).device(at::kMeta)));
    sizes = sizes.slice(static_cast<size_t>(rank));
  }
  return results;
}

hlo::Values custom_call(ops::Lowering& l) {
  std::vector<hlo::Type> types;
  for (size_t i = 0; i < l.num_outputs(); ++i) types.push_back(l.out(i));
  const int64_t api_version = l.integer(7);
  std::string config = l.text(6);
  if (api_version != 4) config = hlo::attr::string(config);  // that of typed handlers is MLIR
  if (config.empty()) config = "{}";
  hlo::Attributes attributes = {{"call_target_name", hlo::attr::string(l.text(1))},
                                {"has_side_effect", hlo::attr::boolean(l.flag(5))},
                                {"backend_config", std::move(config)},
                                {"api_version", hlo::attr::i32(api_version)}};
  const std::string more = l.text(8);
  if (!more.empty()) attributes.push_back({"mhlo.frontend_attributes", more});
  return l.b.op("stablehlo.custom_call", l.list(0), types, attributes);
}

const OwnOperator stablehlo_custom_call(
    "stablehlo_custom_call(Tensor[] args, str target, int[] ranks, int[] sizes, str dtypes, bool "
    "has_side_effect, str backend_config, int api_version, str frontend_attributes) -> Tensor[]",
    called, custom_call);

}  // namespace
}  // namespace torch_xla::dispatch
