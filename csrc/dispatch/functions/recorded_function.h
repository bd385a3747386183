// RecordedFunction, a body that was recorded once, and calls of such functions. A call is one node,
// so that programs, donation and failures are those of any other call.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "dispatch/functions/draws.h"
#include "dispatch/record/context.h"
#include "lazy/function.h"
#include "lazy/signature.h"
#include "lazy/tensor.h"

namespace torch_xla::dispatch {

using Tensors = std::vector<at::Tensor>;
using Body = c10::function_ref<Tensors(const Tensors&)>;
using Geometries = std::vector<const lazy::Geometry*>;

// Returns the values of tensors of one device, which is `device` where that is given; `name` is the
// caller's, for errors. The caller holds the GraphLock.
std::vector<lazy::Value> values_of(const char* name, const Tensors& tensors,
                                   std::optional<int>& device);
// Returns the geometries of new tensors that take the values of these: their own, where those are
// dense.
Geometries result_geometries(const Tensors& tensors);

struct RecordedFunction {
  std::shared_ptr<const lazy::Function> function;
  // The values that it reads beside its parameters: the last parameters stand for them.
  std::vector<lazy::Value> captured = {};
  // The one of these that is the order of exchanges, of which the last result is the next;
  // undefined where there are none.
  lazy::Value order = {};
  Draws draws = {};
};

// One call of an operator that runs recorded functions, or is one. Arguments of the operator's
// schema are added in their order; the functions are the last.
class FunctionCall {
 public:
  explicit FunctionCall(const char* op);

  void operand(const lazy::Value& value);
  void list(const std::vector<lazy::Value>& values);
  void list(const Geometries& operands);  // of a signature alone
  void fixed(const c10::IValue& value) { builder_.fixed(value); }
  // The operator runs these functions as its rule says, or is the composition of this one.
  void regions(std::vector<std::shared_ptr<const lazy::Function>> functions);
  void expansion(std::shared_ptr<const lazy::Function> function);

  // These end the call. Results are row-major in a program, whatever strides their tensors have.
  c10::intrusive_ptr<lazy::Signature> signature(const Geometries& results, size_t num_seeds = 0);
  c10::intrusive_ptr<lazy::Node> record(const Geometries& results, lazy::Numbers&& seeds,
                                        int device);

 private:
  lazy::SignatureBuilder builder_;
  lazy::Operands operands_;
  std::vector<std::shared_ptr<const lazy::Function>> regions_;
  std::shared_ptr<const lazy::Function> expansion_;
};

// Records a call by `record`, which takes the GraphLock for granted and sets the device.
template <class Record>
Tensors recorded(Record record) {
  Tensors results;
  std::optional<int> device;
  {
    const lazy::GraphLock lock;
    results = record(device);
  }
  after_record(*device);
  return results;
}
// Makes a tensor of each result of a node.
Tensors result_tensors(const c10::intrusive_ptr<lazy::Node>& node, const Geometries& geometries,
                       int device);

// A recorded function that is called many times. It keeps the values that the function has captured
// as storages, so that whichever run computes what is pending gives it its data. Made after the
// recording has ended.
class Callable {
 public:
  Callable() = default;
  // Calls give the first `num_given` parameters, and then those that stand for captured values
  // among `also_given`, in their order.
  Callable(const RecordedFunction& recorded, size_t num_given,
           const std::vector<lazy::Value>& also_given = {});

  // Returns whether there is a function, which computes something.
  explicit operator bool() const { return signature_.defined(); }
  const lazy::Signature& signature() const { return *signature_; }
  size_t num_given() const { return num_given_; }
  // Records a call and returns its node. Throws where values have other dtypes or sizes than those
  // that it was recorded for. The caller holds the GraphLock.
  c10::intrusive_ptr<lazy::Node> call(const std::vector<lazy::Value>& given, int device) const;

 private:
  c10::intrusive_ptr<const lazy::Signature> signature_;
  Draws draws_;
  size_t num_given_ = 0;
  static constexpr size_t kOrder = std::numeric_limits<size_t>::max();
  // Each parameter is among the given values, or then the constants; or is the order of exchanges.
  std::vector<size_t> places_;
  bool exchanges_ = false;
  std::vector<c10::intrusive_ptr<lazy::Storage>> constants_;
};

}  // namespace torch_xla::dispatch
