"""The files of the sample, and what xla fails in them: patterns of names, each with its reason."""

import re

QUANTIZED = "quantized dtypes: XLA has none"
HALF_COMPLEX = "complex32: XLA has none"
SPARSE = "sparse tensors: a program holds none"
IMAGINARY = "imag of a conjugated tensor is a view that is negated at once, not by its negative bit"
PENDING = "indices and masks that are still to be computed are not looked at (docs/devices.md)"

KNOWN: dict[str, dict[str, str]] = {
    "test_view_ops.py": {
        "TestOldViewOps.test_flatten": QUANTIZED,
        "TestOldViewOps.test_ravel": QUANTIZED,
        "TestViewOps.test_conj_imag_view_complex*": IMAGINARY,
        "TestViewOps.test_view_as_real_complex32": HALF_COMPLEX,
    },
    "test_indexing.py": {
        "NumpyTests.test_boolean_assignment_value_mismatch": PENDING,
        "NumpyTests.test_trivial_fancy_out_of_bounds": PENDING,
    },
    "test_shape_ops.py": {
        "TestShapeOps.test_flip_float32": QUANTIZED,
    },
    "test_type_promotion.py": {
        "TestTypePromotion.test_complex_assertraises": HALF_COMPLEX,
        "TestTypePromotion.test_complex_half": HALF_COMPLEX,
        "TestTypePromotion.test_sparse_*": SPARSE,
        "TestTypePromotion.test_complex_promotion": HALF_COMPLEX,
        "TestTypePromotion.test_result_type_complex*_float16": HALF_COMPLEX,
        "TestTypePromotion.test_result_type_float16_complex*": HALF_COMPLEX,
    },
    "test_autograd.py": {
        "TestAutogradDeviceType.test_sparse_*": SPARSE,
    },
}

# What a test's name or its failure says where it is for a thing that XLA or PyTorch's `xla` lacks,
# or where the test asks for other devices by name.
LACKING = {
    HALF_COMPLEX: r"(?i)complex32|complex_?half",
    QUANTIZED: r"(?i)quantize",
    SPARSE: r"(?i)sparse",
    IMAGINARY: r"test_conj_imag_view",
    "nested tensors: PyTorch itself refuses xla": r"(?i)nested|storage_device\.is_cpu",
    "PyTorch's Python knows other devices alone": (
        r"NYI devices other than|HigherOrderOperator \w+ at dispatch key|not compiled with CUDA"
        r"|Storage device not recognized|test_disable_fastpath|expected test to fail, but it passed"
    ),
    "an index on the CPU, by one that CUDA does not reach": r"test_stable_sort_against_numpy",
    "memory by its address": r"_from_dlpack_",
    "what the CPU or CUDA does, by name": r"_ConvBackend|test_fmod_remainder_by_zero_integral",
    "two draws, of which the CPU's and CUDA's states are held": r"_dropout_p_0_[25]",
}


def lacking(name: str, why: str) -> bool:
    """Whether the failure `why` of a test is one of a thing that is lacking."""
    return any(re.search(pattern, f"{name}\n{why}") for pattern in LACKING.values())
