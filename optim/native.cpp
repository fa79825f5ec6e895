// NovoGrad on the CPU: one call steps a whole list of tensors, without temporaries.
//
// Per tensor: a norm pass over the gradient, then at once, while the gradient is still in
// cache, the update pass
//     m <- beta1 m + a g + d w,      w <- s w - lr m
// whose factors a, d, s come from Algorithm 1 (see `second_moment`). That moves 20 to 24 bytes
// per fp32 parameter, where AdamW moves 28.
//
// Plain C++ and OpenMP: neither torch's nor Python's headers, so it builds in about a second.
// Sums run in double over blocks of a fixed size that are added up in a fixed order: a result
// depends on the input alone, not on the number of threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#if defined(__FLT16_MAX__) && defined(__F16C__)
#include <immintrin.h>
#define NOVOGRAD_EIGHTS  // fp16 with x86's instructions, which compilers do not use for loops
#endif

namespace {

constexpr int64_t kBlock = 65536;     // elements of one work item of a large tensor
constexpr int64_t kSmall = 65536;     // up to here one thread does the whole tensor
constexpr int64_t kSerial = 16384;    // fewer elements in all: not worth waking threads
constexpr int64_t kUnrolled = 64;     // elements updated between two requests for those ahead
constexpr int64_t kAheadBytes = 2048; // how far ahead an update asks for its three streams

enum DType : int32_t { kFloat32 = 0, kFloat64 = 1, kBFloat16 = 2, kFloat16 = 3 };

struct bfloat16 {
  uint16_t bits;
};

template <class T>
struct Storage {  // T as stored, Compute as calculated with, Moment as v is kept
  using Compute = float;
  using Moment = float;
  static float load(T x) { return static_cast<float>(x); }
  static T store(float x) { return static_cast<T>(x); }
};

template <>
struct Storage<double> {
  using Compute = double;
  using Moment = double;
  static double load(double x) { return x; }
  static double store(double x) { return x; }
};

template <>
struct Storage<bfloat16> {
  using Compute = float;
  using Moment = float;
  static float load(bfloat16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  static bfloat16 store(float x) {  // to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return bfloat16{static_cast<uint16_t>(is_nan ? 0x7fc0u : rounded)};
  }
};

extern "C" struct NovoGradOptions {
  double lr, beta1, beta2, eps, weight_decay;
  double gradient_factor;  // multiplies every gradient: 1 / loss scale, -1 to maximize
  int32_t grad_averaging, amsgrad, decay_in_update, threads;
};

struct Factors {
  double gradient, decay, shrink;  // a, d, s of the update pass
};

template <class V>
V saturate(double x) {
  const double limit = static_cast<double>(std::numeric_limits<V>::max());
  return static_cast<V>(x > limit ? limit : x);
}

// v_t, the maximum of AMSGrad, and the factors that they give. `squared_norm` is that of the
// gradient as stored, `factor` what that is multiplied with. v < 0 marks a tensor that has had
// no non-zero gradient yet.
template <class V>
Factors second_moment(double squared_norm, double factor, V* v, V* v_max,
                      const NovoGradOptions& o) {
  const double norm2 = squared_norm * factor * factor;
  const double before = static_cast<double>(*v);
  const bool unborn = before < 0.0 && norm2 == 0.0;
  const bool first = before < 0.0 && norm2 > 0.0;
  double now = before > 0.0 ? o.beta2 * before + (1.0 - o.beta2) * norm2 : norm2;
  if (!unborn) *v = saturate<V>(now);
  if (v_max != nullptr) {
    const double highest = static_cast<double>(*v_max);
    now = highest > now ? highest : now;
    *v_max = saturate<V>(now);
  }
  const double denominator = std::sqrt(now) + o.eps;
  const double share = o.grad_averaging && !first ? 1.0 - o.beta1 : 1.0;
  // 0 / 0 := 0, the gradient is zero there; the cap keeps the factor finite in fp32.
  double inverse = denominator == 0.0 ? 1.0 : 1.0 / denominator;
  inverse = std::min(inverse, static_cast<double>(std::numeric_limits<V>::max()));
  return {share * inverse * factor, o.decay_in_update ? 0.0 : share * o.weight_decay,
          o.decay_in_update ? 1.0 - o.lr * o.weight_decay : 1.0};
}

// Sum of squares in double. Four separate streams keep the adders and the memory busy.
template <class T>
double sum_of_squares(const T* g, int64_t n) {
  const int64_t quarter = n / 4;
  const T *g0 = g, *g1 = g + quarter, *g2 = g + 2 * quarter, *g3 = g + 3 * quarter;
  double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
  for (int64_t i = 0; i < quarter; ++i) {
    const double x0 = Storage<T>::load(g0[i]), x1 = Storage<T>::load(g1[i]);
    const double x2 = Storage<T>::load(g2[i]), x3 = Storage<T>::load(g3[i]);
    s0 += x0 * x0;
    s1 += x1 * x1;
    s2 += x2 * x2;
    s3 += x3 * x3;
  }
  double rest = 0;
  for (int64_t i = 4 * quarter; i < n; ++i) {
    const double x = Storage<T>::load(g[i]);
    rest += x * x;
  }
  return ((s0 + s1) + (s2 + s3)) + rest;
}

// Asks for memory that is needed soon, past the end of a page too, where the processor's own
// prefetching stops; addresses behind the end of a tensor do no harm.
template <class T>
void fetch_ahead(const T* at, bool to_write) {
  const char* ahead = reinterpret_cast<const char*>(at) + kAheadBytes;
  for (size_t line = 0; line < kUnrolled * sizeof(T); line += 64)
    to_write ? __builtin_prefetch(ahead + line, 1) : __builtin_prefetch(ahead + line, 0);
}

template <class T>
void update(T* __restrict__ w, const T* __restrict__ g, T* __restrict__ m, int64_t n,
            const Factors& factors, const NovoGradOptions& o) {
  using C = typename Storage<T>::Compute;
  const C a = static_cast<C>(factors.gradient), d = static_cast<C>(factors.decay);
  const C beta1 = static_cast<C>(o.beta1), lr = static_cast<C>(o.lr);
  const C shrink = static_cast<C>(factors.shrink);
  const auto in_moment = [=](int64_t i) {
    const C weight = Storage<T>::load(w[i]);
    const C moment = beta1 * Storage<T>::load(m[i]) + (a * Storage<T>::load(g[i]) + d * weight);
    m[i] = Storage<T>::store(moment);
    w[i] = Storage<T>::store(weight - lr * moment);
  };
  const auto in_update = [=](int64_t i) {
    const C moment = beta1 * Storage<T>::load(m[i]) + a * Storage<T>::load(g[i]);
    m[i] = Storage<T>::store(moment);
    w[i] = Storage<T>::store(shrink * Storage<T>::load(w[i]) - lr * moment);
  };
  const auto every = [=](const auto& element) {
    int64_t i = 0;
    for (; i + kUnrolled <= n; i += kUnrolled) {
      fetch_ahead(w + i, true);
      fetch_ahead(m + i, true);
      fetch_ahead(g + i, false);
#pragma omp simd
      for (int64_t k = i; k < i + kUnrolled; ++k) element(k);
    }
#pragma omp simd
    for (int64_t k = i; k < n; ++k) element(k);
  };
  factors.shrink != 1.0 ? every(in_update) : every(in_moment);
}

#ifdef NOVOGRAD_EIGHTS
__m256 load_eight(const _Float16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

void store_eight(__m256 values, _Float16* to) {
  const __m128i eight = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), eight);
}

template <>
double sum_of_squares(const _Float16* g, int64_t n) {
  __m256d sums[4] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256 x[2] = {load_eight(g + i), load_eight(g + i + 8)};
    for (int k = 0; k < 4; ++k) {
      const __m128 four = k % 2 ? _mm256_extractf128_ps(x[k / 2], 1)
                                : _mm256_castps256_ps128(x[k / 2]);
      const __m256d wide = _mm256_cvtps_pd(four);
      sums[k] += wide * wide;
    }
  }
  double parts[4], rest = 0;
  _mm256_storeu_pd(parts, (sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; ++i) {
    const double x = static_cast<double>(g[i]);
    rest += x * x;
  }
  return ((parts[0] + parts[1]) + (parts[2] + parts[3])) + rest;
}

template <>
void update(_Float16* __restrict__ w, const _Float16* __restrict__ g, _Float16* __restrict__ m,
            int64_t n, const Factors& factors, const NovoGradOptions& o) {
  const float a = static_cast<float>(factors.gradient), d = static_cast<float>(factors.decay);
  const float beta1 = static_cast<float>(o.beta1), lr = static_cast<float>(o.lr);
  const float shrink = static_cast<float>(factors.shrink);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 weight = load_eight(w + i);
    const __m256 moment = beta1 * load_eight(m + i) + (a * load_eight(g + i) + d * weight);
    store_eight(moment, m + i);
    store_eight(shrink * weight - lr * moment, w + i);
  }
  for (; i < n; ++i) {
    const float weight = static_cast<float>(w[i]);
    const float moment =
        beta1 * static_cast<float>(m[i]) + (a * static_cast<float>(g[i]) + d * weight);
    m[i] = static_cast<_Float16>(moment);
    w[i] = static_cast<_Float16>(shrink * weight - lr * moment);
  }
}
#endif

int64_t block_count(int64_t n) { return (n + kBlock - 1) / kBlock; }
int64_t block_size(int64_t n, int64_t block) { return std::min(kBlock, n - block * kBlock); }

// The same blocks in the same order whoever sums them, so that one thread and many agree.
template <class T>
double blocked_sum_of_squares(const T* g, int64_t n) {
  double total = 0;
  for (int64_t b = 0; b < block_count(n); ++b)
    total += sum_of_squares(g + b * kBlock, block_size(n, b));
  return total;
}

int64_t longest_in_blocks(int64_t count, const int64_t* numel) {
  int64_t longest = 0;
  for (int64_t t = 0; t < count; ++t) longest = std::max(longest, numel[t]);
  return block_count(longest);
}

int64_t total_of(int64_t count, const int64_t* numel) {
  int64_t total = 0;
  for (int64_t t = 0; t < count; ++t) total += numel[t];
  return total;
}

template <class T>
void squared_norms(int64_t count, const int64_t* numel, const T* const* grads, double* out,
                   int threads) {
  std::vector<double> partial(longest_in_blocks(count, numel));
  const bool parallel = threads > 1 && total_of(count, numel) >= kSerial;
#pragma omp parallel num_threads(threads) if (parallel)
  {
#pragma omp for schedule(dynamic, 4) nowait
    for (int64_t t = 0; t < count; ++t)
      if (numel[t] <= kSmall) out[t] = blocked_sum_of_squares(grads[t], numel[t]);
    for (int64_t t = 0; t < count; ++t) {
      if (numel[t] <= kSmall) continue;
      const int64_t blocks = block_count(numel[t]);
#pragma omp for schedule(static)
      for (int64_t b = 0; b < blocks; ++b)
        partial[b] = sum_of_squares(grads[t] + b * kBlock, block_size(numel[t], b));
#pragma omp single
      {
        double total = 0;
        for (int64_t b = 0; b < blocks; ++b) total += partial[b];
        out[t] = total;
      }
    }
  }
}

template <class T>
void step(int64_t count, const int64_t* numel, T* const* params, const T* const* grads,
          T* const* moments, typename Storage<T>::Moment* const* vs,
          typename Storage<T>::Moment* const* v_maxes, const double* known,
          const double* factors, double* seen, const NovoGradOptions& o) {
  const auto moment_of = [&](int64_t t, double norm2) {
    const double factor = factors ? factors[t] * o.gradient_factor : o.gradient_factor;
    seen[t] = norm2 * factor * factor;
    return second_moment(norm2, factor, vs[t], v_maxes ? v_maxes[t] : nullptr, o);
  };
  std::vector<double> partial(longest_in_blocks(count, numel));
  const bool parallel = o.threads > 1 && total_of(count, numel) >= kSerial;
  Factors shared{};
#pragma omp parallel num_threads(o.threads) if (parallel)
  {
#pragma omp for schedule(dynamic, 4) nowait
    for (int64_t t = 0; t < count; ++t) {
      if (numel[t] > kSmall) continue;
      const double norm2 = known ? known[t] : blocked_sum_of_squares(grads[t], numel[t]);
      update(params[t], grads[t], moments[t], numel[t], moment_of(t, norm2), o);
    }
    for (int64_t t = 0; t < count; ++t) {
      if (numel[t] <= kSmall) continue;
      const int64_t blocks = block_count(numel[t]);
      if (!known) {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; ++b)
          partial[b] = sum_of_squares(grads[t] + b * kBlock, block_size(numel[t], b));
      }
#pragma omp single
      {
        double norm2 = 0;
        if (known)
          norm2 = known[t];
        else
          for (int64_t b = 0; b < blocks; ++b) norm2 += partial[b];
        shared = moment_of(t, norm2);
      }
#pragma omp for schedule(static)
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t at = b * kBlock;
        update(params[t] + at, grads[t] + at, moments[t] + at, block_size(numel[t], b), shared, o);
      }
    }
  }
}

template <class T>
int dispatch_step(int64_t count, const int64_t* numel, void* const* params,
                  const void* const* grads, void* const* moments, void* const* vs,
                  void* const* v_maxes, const double* known, const double* factors, double* seen,
                  const NovoGradOptions& o) {
  using V = typename Storage<T>::Moment;
  step<T>(count, numel, reinterpret_cast<T* const*>(params),
          reinterpret_cast<const T* const*>(grads), reinterpret_cast<T* const*>(moments),
          reinterpret_cast<V* const*>(vs), reinterpret_cast<V* const*>(v_maxes), known, factors,
          seen, o);
  return 0;
}

template <class T>
int dispatch_norms(int64_t count, const int64_t* numel, const void* const* grads, double* out,
                   int threads) {
  squared_norms<T>(count, numel, reinterpret_cast<const T* const*>(grads), out, threads);
  return 0;
}

// A tensor as DLPack describes it (dlpack.h), and torch's function that fills such a description
// for a Python object without owning it (`DLPackDLTensorFromPyObjectNoSync`, DLPack 1.2).
struct DLTensor {
  void* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
using Describe = int (*)(void* object, DLTensor* out);

constexpr int32_t kCPU = 1;
constexpr uint8_t kFloat = 2, kBfloat = 4;
constexpr int64_t kAhead = 8;   // tensors
constexpr int kPartLines = 4;   // of 64 bytes: what is read of a part

bool has_dtype(const DLTensor& tensor, int32_t dtype) {
  const int bits = dtype == kFloat64 ? 64 : dtype == kFloat32 ? 32 : 16;
  return tensor.code == (dtype == kBFloat16 ? kBfloat : kFloat) && tensor.bits == bits &&
         tensor.lanes == 1;
}

// Whether sizes, and strides where a dimension has several elements, are those of the layout;
// `layout` moves on to the next tensor's.
bool has_layout(const DLTensor& tensor, const int64_t*& layout) {
  const int64_t ndim = *layout++;
  const int64_t *sizes = layout, *strides = layout + ndim;
  layout += 2 * ndim;
  if (tensor.ndim != ndim) return false;
  for (int64_t d = 0; d < ndim; ++d)
    if (tensor.shape[d] != sizes[d] || (sizes[d] > 1 && tensor.strides[d] != strides[d]))
      return false;
  return true;
}

int64_t numel_of(const DLTensor& tensor) {
  int64_t numel = 1;
  for (int32_t d = 0; d < tensor.ndim; ++d) numel *= tensor.shape[d];
  return numel;
}

}  // namespace

// Addresses of CPU tensors, given as Python objects: 0, or 1 where one of them has another dtype
// or layout or no memory, or -1 with a Python exception. Each layout is the number of dimensions,
// their sizes and their strides; with null every tensor has one element. `parts` may name two
// places for each tensor where torch keeps what describes it: most of the time goes into waiting
// for these, so they are asked for some tensors ahead, and nothing else is done with them. Needs
// Python's lock.
extern "C" int32_t novograd_locate(Describe describe, int64_t count, void* const* objects,
                                   int32_t dtype, const int64_t* layouts,
                                   const char* const* parts, void** found) {
  for (int64_t t = 0; t < count; ++t) {
    if (parts && t + kAhead < count) {
      __builtin_prefetch(objects[t + kAhead]);
      for (int part = 0; part < 2; ++part)
        for (int line = 0; line < kPartLines; ++line)
          __builtin_prefetch(parts[2 * (t + kAhead) + part] + 64 * line);
    }
    DLTensor tensor{};
    if (describe(objects[t], &tensor) != 0) return -1;
    if (tensor.device_type != kCPU || !has_dtype(tensor, dtype)) return 1;
    const int64_t numel = numel_of(tensor);
    if (layouts ? !has_layout(tensor, layouts) : numel != 1) return 1;
    if (tensor.data == nullptr && numel > 0) return 1;
    found[t] = static_cast<char*>(tensor.data) + tensor.byte_offset;
  }
  return 0;
}

// Both return 0, or 1 for a dtype that this build does not know.
extern "C" int novograd_squared_norms(int32_t dtype, int64_t count, const int64_t* numel,
                                      const void* const* grads, double* out, int32_t threads) {
  switch (dtype) {
    case kFloat32: return dispatch_norms<float>(count, numel, grads, out, threads);
    case kFloat64: return dispatch_norms<double>(count, numel, grads, out, threads);
    case kBFloat16: return dispatch_norms<bfloat16>(count, numel, grads, out, threads);
#ifdef __FLT16_MAX__
    case kFloat16: return dispatch_norms<_Float16>(count, numel, grads, out, threads);
#endif
    default: return 1;
  }
}

// `known`: squared norms of the gradients where the caller has them already, else null.
// `factors`: a factor for each tensor's gradient (clipping, LARC), else null.
// `v_maxes`: null without AMSGrad.
// `seen`: receives the squared norms of the gradients, times their factors squared.
extern "C" int novograd_step(int32_t dtype, int64_t count, const int64_t* numel,
                             void* const* params, const void* const* grads, void* const* moments,
                             void* const* vs, void* const* v_maxes, const double* known,
                             const double* factors, double* seen,
                             const NovoGradOptions* options) {
  const auto run = [&](auto element) {
    return dispatch_step<decltype(element)>(count, numel, params, grads, moments, vs, v_maxes,
                                            known, factors, seen, *options);
  };
  switch (dtype) {
    case kFloat32: return run(float{});
    case kFloat64: return run(double{});
    case kBFloat16: return run(bfloat16{});
#ifdef __FLT16_MAX__
    case kFloat16: return run(_Float16{});
#endif
    default: return 1;
  }
}
