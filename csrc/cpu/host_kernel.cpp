#include "cpu/host_kernel.h"

#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <sstream>
#include <unordered_map>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>
#include <xla/ffi/api/c_api.h>

#include "cpu/call_text.h"
#include "cpu/ffi_frame.h"
#include "cpu/host_failure.h"
#include "cpu/host_parts.h"
#include "debug/trace.h"
#include "lazy/operator.h"
#include "util/error.h"

namespace torch_xla::cpu {
namespace {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;

at::ScalarType scalar_type(XLA_FFI_DataType dtype) {
  switch (dtype) {
    case XLA_FFI_DataType_PRED:
      return at::kBool;
    case XLA_FFI_DataType_S8:
      return at::kChar;
    case XLA_FFI_DataType_S16:
      return at::kShort;
    case XLA_FFI_DataType_S32:
      return at::kInt;
    case XLA_FFI_DataType_S64:
      return at::kLong;
    case XLA_FFI_DataType_U8:
      return at::kByte;
    case XLA_FFI_DataType_U16:
      return at::kUInt16;
    case XLA_FFI_DataType_U32:
      return at::kUInt32;
    case XLA_FFI_DataType_U64:
      return at::kUInt64;
    case XLA_FFI_DataType_F16:
      return at::kHalf;
    case XLA_FFI_DataType_BF16:
      return at::kBFloat16;
    case XLA_FFI_DataType_F32:
      return at::kFloat;
    case XLA_FFI_DataType_F64:
      return at::kDouble;
    case XLA_FFI_DataType_C64:
      return at::kComplexFloat;
    case XLA_FFI_DataType_C128:
      return at::kComplexDouble;
    case XLA_FFI_DataType_F8E4M3FN:
      return at::kFloat8_e4m3fn;
    case XLA_FFI_DataType_F8E4M3FNUZ:
      return at::kFloat8_e4m3fnuz;
    case XLA_FFI_DataType_F8E5M2:
      return at::kFloat8_e5m2;
    case XLA_FFI_DataType_F8E5M2FNUZ:
      return at::kFloat8_e5m2fnuz;
    default:
      util::fail(util::ErrorKind::Type,
                 "host kernel: expected a dtype that PyTorch has, got XLA's ",
                 static_cast<int>(dtype), ".");
  }
}

at::Tensor as_tensor(const XLA_FFI_Buffer& buffer) {
  return at::for_blob(buffer.data, c10::IntArrayRef(buffer.dims, static_cast<size_t>(buffer.rank)))
      .options(at::TensorOptions().dtype(scalar_type(buffer.dtype)))
      .make_tensor();
}

const XLA_FFI_Buffer& operand(const XLA_FFI_CallFrame& frame, size_t index) {
  TXLA_CHECK(static_cast<int64_t>(index) < frame.args.size, "host kernel: expected operand ", index,
             ", got ", frame.args.size, " operands.");
  return *static_cast<const XLA_FFI_Buffer*>(frame.args.args[index]);
}

at::Tensor result_tensor(const XLA_FFI_CallFrame& frame, size_t index) {
  TXLA_CHECK(static_cast<int64_t>(index) < frame.rets.size, "host kernel: expected result ", index,
             ", got ", frame.rets.size, " results.");
  return as_tensor(*static_cast<const XLA_FFI_Buffer*>(frame.rets.rets[index]));
}

// "Float[64, 10], Long[64]"
std::string types_of(const XLA_FFI_CallFrame& frame) {
  std::ostringstream text;
  for (int64_t i = 0; i < frame.args.size; ++i) {
    const at::Tensor t = as_tensor(operand(frame, static_cast<size_t>(i)));
    text << (i == 0 ? "" : ", ") << c10::toString(t.scalar_type()) << t.sizes();
  }
  return text.str();
}

c10::Scalar read_scalar(const XLA_FFI_Buffer& buffer) {
  switch (buffer.dtype) {
    case XLA_FFI_DataType_PRED:
      return *static_cast<const bool*>(buffer.data);
    case XLA_FFI_DataType_S64:
      return *static_cast<const int64_t*>(buffer.data);
    case XLA_FFI_DataType_F32:
      return *static_cast<const float*>(buffer.data);
    case XLA_FFI_DataType_F64:
      return *static_cast<const double*>(buffer.data);
    case XLA_FFI_DataType_C128:
      return *static_cast<const c10::complex<double>*>(buffer.data);
    default:
      return as_tensor(buffer).item();
  }
}

// One of the parts of a call.
struct CallPart {
  int64_t index = 0, count = 1;

  // This part of a tensor along a dimension.
  at::Tensor of(const at::Tensor& whole, int64_t dim) const {
    if (count == 1 || dim < 0) return whole;
    const int64_t size = whole.size(dim), begin = size * index / count;
    return whole.narrow(dim, begin, size * (index + 1) / count - begin);
  }
};

// The middle two dimensions swapped.
at::Tensor transposed(const at::Tensor& x) { return x.transpose(x.dim() / 2 - 1, x.dim() / 2); }

// Fewer elements than these are not worth another thread.
constexpr int64_t kGrain = 32768;
// Results larger than these bytes are computed in parts small enough to be still in the cache when
// they are copied: the C library would map their memory anew each time.
constexpr int64_t kLarge = 1 << 24, kCached = 1 << 20;
// Shared lists: tensors with fewer elements go to one part as they are.
constexpr int64_t kSmall = 4096;

// --- constants of the text as PyTorch's values ---------------------------------------------

IValue value_of(const CallText::Constant& constant, const TypePtr& declared);

template <class T>
IValue list_of(const std::vector<CallText::Constant>& constants, const TypePtr& element,
               T (*read)(const IValue&)) {
  c10::List<T> values;
  for (const CallText::Constant& c : constants) values.push_back(read(value_of(c, element)));
  return values;
}

IValue list_of(const std::vector<CallText::Constant>& constants, const TypePtr& element) {
  switch (element->kind()) {
    case TypeKind::FloatType:
      return list_of<double>(constants, element, [](const IValue& v) { return v.toDouble(); });
    case TypeKind::BoolType:
      return list_of<bool>(constants, element, [](const IValue& v) { return v.toBool(); });
    case TypeKind::NumberType:
      return list_of<at::Scalar>(constants, element, [](const IValue& v) { return v.toScalar(); });
    case TypeKind::OptionalType:
      return list_of<std::optional<at::Scalar>>(
          constants, element, [](const IValue& v) { return v.toOptional<at::Scalar>(); });
    default:
      return list_of<int64_t>(constants, element, [](const IValue& v) { return v.toInt(); });
  }
}

IValue value_of(const CallText::Constant& constant, const TypePtr& declared) {
  const TypePtr type = declared->kind() == TypeKind::OptionalType
                           ? declared->castRaw<c10::OptionalType>()->getElementType()
                           : declared;
  return std::visit(
      [&]<class T>(const T& v) -> IValue {
        if constexpr (std::is_same_v<T, std::monostate>) {
          return {};
        } else if constexpr (std::is_same_v<T, std::complex<double>>) {
          return c10::complex<double>(v);
        } else if constexpr (std::is_same_v<T, std::vector<CallText::Constant>>) {
          return list_of(v, type->castRaw<c10::ListType>()->getElementType());
        } else if constexpr (std::is_same_v<T, std::string>) {
          return type->kind() == TypeKind::DeviceObjType ? IValue(c10::Device(v)) : IValue(v);
        } else {
          return v;
        }
      },
      constant.value);
}

// --- one call site's operator and arguments ------------------------------------------------

// Filled while the library is loaded.
std::set<std::string>& waiting_operators() {
  static auto& names = *new std::set<std::string>;
  return names;
}

class HostKernel {
 public:
  explicit HostKernel(std::string_view key);
  void run(const XLA_FFI_CallFrame& frame) const;
  bool waits() const { return waits_; }

 private:
  using Kind = CallText::Kind;
  using Result = CallText::Result;
  using Element = CallText::ArgumentText::Element;
  using Tensors = std::vector<at::Tensor>;

  struct KernelArgument : CallText::ArgumentText {
    IValue value;  // of a constant
    bool optional_list = false;
  };

  int64_t count_parts(const XLA_FFI_CallFrame& frame) const;
  // So many that each leaves its results in the cache, where they are large and must be copied.
  int64_t parts_in_cache(const XLA_FFI_CallFrame& frame) const;
  // Runs one part; its share of the results that are sums goes to `sums`.
  void run_part(const XLA_FFI_CallFrame& frame, const CallPart& part, Tensors& sums) const;
  void add_up(const XLA_FFI_CallFrame& frame, const std::vector<Tensors>& sums) const;
  IValue value_of(const KernelArgument& a, const XLA_FFI_CallFrame& frame,
                  const CallPart& part) const;
  // A part's share of lists whose elements are shared out: of element i, nothing, a slice, or all.
  at::Tensor share_of(const Element& element, size_t i, const XLA_FFI_CallFrame& frame,
                      const CallPart& part) const;
  // Result `index` of the program, or the part of it that the call writes.
  at::Tensor target(const XLA_FFI_CallFrame& frame, size_t index, const Result& result,
                    const CallPart& part) const;
  void store(const at::Tensor& value, const at::Tensor& target, size_t index) const;

  std::string name_;
  bool waits_;
  std::optional<c10::OperatorHandle> op_;
  std::optional<c10::OperatorHandle> out_;  // writes into given tensors, where there is a kernel
  std::vector<KernelArgument> arguments_;
  const KernelArgument* shared_out_ = nullptr;  // the first list whose elements are shared out
  size_t updates_ = 0;                          // results that are operands the operator updates
  std::vector<Result> results_;
};

bool gives_list(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return returns.size() == 1 && returns[0].type()->kind() == TypeKind::ListType;
}

// The overload that takes the same arguments and writes its results into given tensors, or a list
// of such. Only one with a CPU kernel of its own saves anything: the generated ones compute and
// copy.
std::optional<c10::OperatorHandle> find_out_overload(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  for (const c10::Argument& r : schema.returns()) {
    if (r.type()->kind() != TypeKind::TensorType && !gives_list(op)) return std::nullopt;
  }
  const size_t inputs = schema.arguments().size(), outputs = schema.returns().size();
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const std::string& overload = schema.overload_name();
  for (const std::string& suffix :
       {std::string("out"), overload + "_out", std::string("output"), std::string("grad_input")}) {
    const auto found = dispatcher.findSchema({schema.name(), suffix});
    if (!found || !found->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    const auto& arguments = found->schema().arguments();
    if (arguments.size() != inputs + outputs) continue;
    bool same = true;
    for (size_t i = 0; i < inputs; ++i) {
      same = same && arguments[i].name() == schema.arguments()[i].name() &&
             *arguments[i].type() == *schema.arguments()[i].type();
    }
    for (size_t i = inputs; i < arguments.size(); ++i) same = same && arguments[i].is_out();
    if (same) return found;
  }
  return std::nullopt;
}

HostKernel::HostKernel(std::string_view key) {
  const CallText text = CallText::parse(key);
  name_ = text.op;
  waits_ = waiting_operators().contains(name_);
  results_ = text.results;
  op_ = c10::Dispatcher::singleton().findSchema(lazy::operator_name(name_));
  TXLA_CHECK(op_.has_value(), name_,
             ": expected an operator of this process, found none. Import the library that defines "
             "it before running the program.");
  const std::vector<c10::Argument>& formals = op_->schema().arguments();
  TXLA_CHECK(text.arguments.size() == formals.size(), name_, ": expected ", formals.size(),
             " arguments of a host kernel, got ", text.arguments.size(), " in '", key, "'.");
  for (size_t i = 0; i < formals.size(); ++i) {
    KernelArgument& a = arguments_.emplace_back(text.arguments[i]);
    const TypePtr type = formals[i].type();
    if (a.kind == Kind::Constant) {
      a.value = cpu::value_of(a.constant, type);
    } else if (a.kind == Kind::List) {
      const TypePtr element = type->castRaw<c10::ListType>()->getElementType();
      a.optional_list = element->kind() == TypeKind::OptionalType;
    }
    for (const Element& e : a.list) updates_ += e.result >= 0;
  }
  for (const KernelArgument& a : arguments_) {
    if (a.kind == Kind::SharedOut && shared_out_ == nullptr) shared_out_ = &a;
  }
  const bool into_given = std::ranges::all_of(
      results_, [](const Result& r) { return r.wanted && r.cut != Partition::kSum; });
  if (into_given) out_ = find_out_overload(*op_);
}

int64_t HostKernel::parts_in_cache(const XLA_FFI_CallFrame& frame) const {
  const auto whole = [](const Result& r) { return r.wanted && r.cut < 0; };
  const bool copies = !out_ && updates_ == 0 && std::ranges::none_of(results_, whole);
  if (!copies) return 1;
  int64_t bytes = 0;
  for (int64_t i = 0; i < frame.rets.size; ++i) {
    bytes += static_cast<int64_t>(result_tensor(frame, static_cast<size_t>(i)).nbytes());
  }
  return bytes > kLarge ? bytes / kCached : 1;
}

int64_t HostKernel::count_parts(const XLA_FFI_CallFrame& frame) const {
  bool divisible = shared_out_ != nullptr;
  int64_t most = std::numeric_limits<int64_t>::max();
  const auto divide = [&](size_t index, int64_t dim) {
    if (dim < 0) return;
    divisible = true;
    most = std::min(most, operand(frame, index).dims[dim]);
  };
  for (const KernelArgument& a : arguments_) {
    if (a.is_part()) divide(a.operand, a.dim);
    for (const Element& e : a.list) divide(static_cast<size_t>(e.operand), e.dim);
  }
  if (!divisible) return 1;
  int64_t elements = 0;
  for (int64_t i = 0; i < frame.args.size; ++i) {
    const XLA_FFI_Buffer& buffer = operand(frame, static_cast<size_t>(i));
    elements += c10::multiply_integers(buffer.dims, buffer.dims + buffer.rank);
  }
  if (elements < kGrain) return 1;
  return std::max<int64_t>(1, std::min(most, std::max(thread_count(frame), parts_in_cache(frame))));
}

at::Tensor HostKernel::share_of(const Element& element, size_t i, const XLA_FFI_CallFrame& frame,
                                const CallPart& part) const {
  const auto tensor_of = [&](const Element& e) {
    const at::Tensor whole = as_tensor(operand(frame, static_cast<size_t>(e.operand)));
    return e.row < 0 ? whole : whole.select(0, e.row);
  };
  const at::Tensor given = tensor_of(element);
  const int64_t size = tensor_of(shared_out_->list.at(i)).numel();
  const bool whole = size < kSmall || part.count == 1;
  if (whole && static_cast<int64_t>(i) % part.count != part.index) return {};
  const auto share = [&](const at::Tensor& t) {
    return whole || t.numel() != size ? t : part.of(t.view(-1), 0);
  };
  if (element.result < 0) return share(given);
  // An operand that is updated shares the result's memory, unless someone needs its old value.
  const at::Tensor updated = share(result_tensor(frame, static_cast<size_t>(element.result)));
  if (updated.data_ptr() != share(given).data_ptr()) updated.copy_(share(given));
  return updated;
}

IValue HostKernel::value_of(const KernelArgument& a, const XLA_FFI_CallFrame& frame,
                            const CallPart& part) const {
  switch (a.kind) {
    case Kind::Tensor:
      return as_tensor(operand(frame, a.operand));
    case Kind::Columns:
      return as_tensor(operand(frame, a.operand)).mT().contiguous().mT();
    case Kind::Part:
      return part.of(as_tensor(operand(frame, a.operand)), a.dim);
    case Kind::TransposedPart:
      return transposed(part.of(as_tensor(operand(frame, a.operand)), a.dim));
    case Kind::WrappedNumber: {
      at::Tensor t = as_tensor(operand(frame, a.operand));
      t.unsafeGetTensorImpl()->set_wrapped_number(true);
      return t;
    }
    case Kind::Scalar:
      return read_scalar(operand(frame, a.operand));
    case Kind::Float:
      return read_scalar(operand(frame, a.operand)).toDouble();
    case Kind::Seed: {
      const auto seed = *static_cast<const uint64_t*>(operand(frame, a.operand).data);
      return at::detail::createCPUGenerator(seed);
    }
    case Kind::SharedOut: {
      c10::List<at::Tensor> list;
      for (size_t i = 0; i < a.list.size(); ++i) {
        const at::Tensor share = share_of(a.list[i], i, frame, part);
        if (share.defined()) list.push_back(share);
      }
      return list;
    }
    case Kind::List: {
      const auto element = [&](const Element& e) {
        return part.of(as_tensor(operand(frame, static_cast<size_t>(e.operand))), e.dim);
      };
      if (a.optional_list) {
        c10::List<std::optional<at::Tensor>> list;
        for (const Element& e : a.list) {
          list.push_back(e.operand < 0 ? std::nullopt : std::optional(element(e)));
        }
        return list;
      }
      c10::List<at::Tensor> list;
      for (const Element& e : a.list) list.push_back(element(e));
      return list;
    }
    case Kind::Constant:
      break;
  }
  return a.value;
}

at::Tensor HostKernel::target(const XLA_FFI_CallFrame& frame, size_t index, const Result& result,
                              const CallPart& part) const {
  const at::Tensor own = part.of(result_tensor(frame, index), result.cut);
  return result.transposed ? transposed(own) : own;
}

void HostKernel::store(const at::Tensor& value, const at::Tensor& target, size_t index) const {
  TXLA_CHECK(value.defined() && value.sizes() == target.sizes(), name_, ": expected result ", index,
             " of sizes ", target.sizes(), ", got ",
             value.defined() ? value.sizes() : c10::IntArrayRef(),
             value.defined() ? "" : " (undefined)", " from the CPU kernel.");
  if (value.data_ptr() == target.data_ptr()) {
    if (value.is_conj()) target.conj_physical_();  // as its memory is read without that bit
    return;
  }
  if (value.is_contiguous() && target.is_contiguous() && !value.is_conj() && !value.is_neg() &&
      value.scalar_type() == target.scalar_type()) {
    std::memcpy(target.data_ptr(), value.data_ptr(), value.nbytes());
  } else {
    target.copy_(value);
  }
}

void HostKernel::run_part(const XLA_FFI_CallFrame& frame, const CallPart& part,
                          Tensors& sums) const {
  torch::jit::Stack stack;
  stack.reserve(arguments_.size() + results_.size());
  for (const KernelArgument& a : arguments_) stack.push_back(value_of(a, frame, part));
  if (out_) {
    c10::List<at::Tensor> targets;
    for (size_t i = 0; i < results_.size(); ++i) {
      targets.push_back(target(frame, i, results_[i], part));
    }
    if (gives_list(*op_)) {
      stack.emplace_back(std::move(targets));
      return out_->callBoxed(stack);
    }
    for (const at::Tensor& t : targets) stack.emplace_back(t);
    out_->callBoxed(stack);
  } else {
    op_->callBoxed(stack);
  }
  size_t position = 0, index = updates_;
  const auto take = [&](const at::Tensor& value) {
    const Result result = position < results_.size() ? results_[position] : Result{false};
    ++position;
    if (!result.wanted) return;
    if (result.cut == Partition::kSum && part.count > 1) {
      sums.push_back(value);
    } else {
      store(value, target(frame, index, result, part), index);
    }
    ++index;
  };
  for (const IValue& v : stack) {
    if (v.isTensor()) {
      take(v.toTensor());
    } else if (v.isTensorList()) {
      for (const at::Tensor& t : v.toTensorVector()) take(t);
    }
  }
  TXLA_CHECK(static_cast<int64_t>(index) == frame.rets.size, name_, ": expected ", frame.rets.size,
             " results of the CPU kernel, got ", index, ".");
}

void HostKernel::run(const XLA_FFI_CallFrame& frame) const {
  const int64_t begin = debug::is_tracing_kernels() ? debug::now_ns() : 0;
  const int64_t count = count_parts(frame);
  std::vector<Tensors> sums(static_cast<size_t>(count));
  run_parts(frame, count, [&](int64_t index) {
    run_part(frame, {index, count}, sums[static_cast<size_t>(index)]);
  });
  if (!sums[0].empty()) run_parts(frame, 1, [&](int64_t) { add_up(frame, sums); });
  if (begin != 0) [[unlikely]] {
    debug::add_event({name_,
                      begin,
                      debug::now_ns(),
                      {{"operands", types_of(frame)}, {"parts", std::to_string(count)}}});
  }
}

void HostKernel::add_up(const XLA_FFI_CallFrame& frame, const std::vector<Tensors>& sums) const {
  size_t next = 0, index = updates_;
  for (const Result& result : results_) {
    if (result.cut == Partition::kSum && result.wanted) {
      const at::Tensor total = result_tensor(frame, index);
      store(sums[0][next], total, index);
      for (size_t part = 1; part < sums.size(); ++part) total.add_(sums[part][next]);
      ++next;
    }
    index += result.wanted;
  }
}

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

// Parsed once per text. Texts hold numbers, so that new ones may come for ever.
std::shared_ptr<const HostKernel> kernel_for(std::string_view key) {
  constexpr size_t kMost = 16384;
  static std::shared_mutex mutex;
  static auto& table = *new std::unordered_map<std::string, std::shared_ptr<const HostKernel>,
                                               TextHash, std::equal_to<>>;
  {
    const std::shared_lock lock(mutex);
    if (const auto it = table.find(key); it != table.end()) return it->second;
  }
  auto kernel = std::make_shared<const HostKernel>(key);
  const std::unique_lock lock(mutex);
  if (table.size() >= kMost) table.clear();
  return table.try_emplace(std::string(key), std::move(kernel)).first->second;
}

// --- the handler ---------------------------------------------------------------------------

// The attribute's value, or null.
const void* attribute(const XLA_FFI_CallFrame& frame, std::string_view wanted,
                      XLA_FFI_AttrType type) {
  for (int64_t i = 0; i < frame.attrs.size; ++i) {
    const XLA_FFI_ByteSpan& name = *frame.attrs.names[i];
    if (std::string_view(name.ptr, name.len) == wanted && frame.attrs.types[i] == type) {
      return frame.attrs.attrs[i];
    }
  }
  return nullptr;
}

std::string_view config_key(const XLA_FFI_CallFrame& frame) {
  const auto* text = static_cast<const XLA_FFI_ByteSpan*>(
      attribute(frame, kCallTextAttribute, XLA_FFI_AttrType_STRING));
  TXLA_CHECK(text != nullptr, "host kernel: expected the attribute 'key', got none.");
  return {text->ptr, text->len};
}

int64_t failing_call_of(const XLA_FFI_CallFrame& frame) {
  const void* scalar = attribute(frame, kFailingCallAttribute, XLA_FFI_AttrType_SCALAR);
  if (scalar == nullptr) return -1;
  return *static_cast<const int64_t*>(static_cast<const XLA_FFI_Scalar*>(scalar)->value);
}

XLA_FFI_Error* error_of(const XLA_FFI_CallFrame& frame, const std::exception& failure) {
  const std::string text = failure_text(failure, failing_call_of(frame));
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, text.c_str(),
                                    XLA_FFI_Error_Code_INTERNAL};
  return frame.api->XLA_FFI_Error_Create(&args);
}

// Returns null, or what XLA is told of a failure.
XLA_FFI_Error* run_or_fail(const HostKernel& kernel, const XLA_FFI_CallFrame& frame) {
  try {
    kernel.run(frame);
    return nullptr;
  } catch (const std::exception& e) {
    return error_of(frame, e);
  }
}

// Returns null where the runtime cannot be told later.
XLA_FFI_Future* future_of(const XLA_FFI_Api& api) {
  XLA_FFI_Future_Create_Args args = {XLA_FFI_Future_Create_Args_STRUCT_SIZE, nullptr, nullptr};
  return succeeded(&api, api.XLA_FFI_Future_Create(&args)) ? args.future : nullptr;
}

void complete(const XLA_FFI_Api& api, XLA_FFI_Future* future, XLA_FFI_Error* error) {
  if (error == nullptr) {
    XLA_FFI_Future_SetAvailable_Args args = {XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, nullptr,
                                             future};
    succeeded(&api, api.XLA_FFI_Future_SetAvailable(&args));
  } else {
    XLA_FFI_Future_SetError_Args args = {XLA_FFI_Future_SetError_Args_STRUCT_SIZE, nullptr, future,
                                         error};
    succeeded(&api, api.XLA_FFI_Future_SetError(&args));
  }
}

XLA_FFI_Error* run_kernel(XLA_FFI_CallFrame* frame) {
  if (!ffi_executes(*frame)) return nullptr;
  try {
    auto kernel = kernel_for(config_key(*frame));
    frame->future = kernel->waits() ? future_of(*frame->api) : nullptr;
    if (frame->future == nullptr) return run_or_fail(*kernel, *frame);
    // XLA keeps all that the frame points to until the future is complete.
    run_waiting([kernel = std::move(kernel), frame = *frame] {
      complete(*frame.api, frame.future, run_or_fail(*kernel, frame));
    });
    return nullptr;
  } catch (const std::exception& e) {
    return error_of(*frame, e);
  }
}

}  // namespace

WaitingOperator::WaitingOperator(const char* name) { waiting_operators().insert(name); }

void* host_kernel_handler() { return reinterpret_cast<void*>(&run_kernel); }

}  // namespace torch_xla::cpu
