// cuBLAS, cuDNN, cuFFT and NCCL as far as values that they return are looked at.
//
// Handles and descriptors are some memory; what would launch a kernel is counted. A collective
// behaves as if every process had sent what this one sends, and a sum as if the others had zeros.

#include "hollow.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {
int make(void** handle) { *handle = calloc(1, 256); return 0; }
size_t element(int type) {  // bytes of ncclDataType_t
  static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return bytes[type];
}
int processes = 1;
}  // namespace

#define LAUNCH(name) int name() { hollow_note(#name, true); return 0; }
#define HANDLE(name) int name(void** handle) { return make(handle); }
#define NO_SPACE(name, ...) int name(__VA_ARGS__, size_t* bytes) { *bytes = 0; return 0; }

extern "C" {

// cuBLAS
HANDLE(cublasCreate_v2) HANDLE(cublasLtMatmulDescCreate) HANDLE(cublasLtMatrixLayoutCreate)
HANDLE(cublasLtMatmulPreferenceCreate) HANDLE(cusparseCreate)
LAUNCH(cublasLtMatmul) LAUNCH(cublasGemmEx) LAUNCH(cublasGemmStridedBatchedEx) LAUNCH(cublasSgemmEx)
LAUNCH(cublasSgemm_v2) LAUNCH(cublasDgemm_v2) LAUNCH(cublasSgemmStridedBatched)
LAUNCH(cublasDgemmStridedBatched) LAUNCH(cublasSdot_v2) LAUNCH(cublasDdot_v2) LAUNCH(cublasDotEx)
LAUNCH(cublasSgemv_v2)
int cublasGetMathMode(void*, int* mode) { *mode = 0; return 0; }
int cublasGetPointerMode_v2(void*, int* mode) { *mode = 0; return 0; }
size_t cublasLtGetVersion() { return 130100; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* result, int* count) {
  memset(result, 0, 96);
  *count = 1;
  return 0;
}

// cuDNN: one engine for every graph, without a workspace
HANDLE(cudnnCreate) HANDLE(cudnnCreateTensorDescriptor) HANDLE(cudnnCreateFilterDescriptor)
HANDLE(cudnnCreateConvolutionDescriptor) HANDLE(cudnnCreateActivationDescriptor)
HANDLE(cudnnCreatePoolingDescriptor) HANDLE(cudnnCreateDropoutDescriptor)
HANDLE(cudnnCreateCTCLossDescriptor)
LAUNCH(cudnnBackendExecute) LAUNCH(cudnnBatchNormalizationForwardTrainingEx)
LAUNCH(cudnnBatchNormalizationForwardInference) LAUNCH(cudnnBatchNormalizationBackwardEx)
LAUNCH(cudnnPoolingForward)
NO_SPACE(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, void*, int, int, void*, void*, void*, void*, void*)
NO_SPACE(cudnnGetBatchNormalizationBackwardExWorkspaceSize, void*, int, int, void*, void*, void*, void*, void*, void*, void*)
NO_SPACE(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, void*, int, int, void*, void*)
size_t cudnnGetVersion() { return 91900; }
size_t cudnnGetCudartVersion() { return 13000; }
int cudnnGetProperty(int type, int* value) { *value = type == 0 ? 9 : type == 1 ? 19 : 0; return 0; }
int cudnnGetStream(void*, void** stream) { *stream = nullptr; return 0; }
const char* cudnnGetErrorString(int) { return "hollow cuDNN"; }
void cudnnGetLastErrorString(char* text, size_t size) { if (size) *text = 0; }
int cudnnBackendCreateDescriptor(int, void** descriptor) { return make(descriptor); }
int cudnnBackendGetAttribute(void*, int name, int, int64_t, int64_t* count, void* values) {
  enum { ENGINE_HEURISTIC_RESULTS = 202, ENGINE_CONFIG = 300, PLAN_WORKSPACE = 402, ENGINE_GLOBAL_INDEX = 1301 };
  bool known = name == ENGINE_HEURISTIC_RESULTS || name == ENGINE_CONFIG || name == PLAN_WORKSPACE || name == ENGINE_GLOBAL_INDEX;
  if (count) *count = known;
  if (values && (name == PLAN_WORKSPACE || name == ENGINE_GLOBAL_INDEX)) *(int64_t*)values = 0;
  return 0;
}

// cuFFT
LAUNCH(cufftXtExec)
int cufftCreate(int* plan) { *plan = 1; return 0; }
int cufftXtMakePlanMany(int, int, void*, void*, long long, long long, int, void*, long long, long long, int, long long, size_t* bytes, int) {
  hollow_note("cufftXtMakePlanMany");
  *bytes = 0;
  return 0;
}

// NCCL
int ncclGetVersion(int* version) { *version = 22809; return 0; }
int ncclGetUniqueId(void* id) { memset(id, 7, 128); return 0; }
int ncclCommInitRank(void** comm, int count, ...) { processes = count; return make(comm); }
int ncclCommInitRankConfig(void** comm, int count, ...) { processes = count; return make(comm); }
int ncclCommInitRankScalable(void** comm, int count, ...) { processes = count; return make(comm); }
int ncclCommGetAsyncError(void*, int* error) { *error = 0; return 0; }
int ncclCommCount(void*, int* count) { *count = processes; return 0; }
int ncclCommUserRank(void*, int* rank) { *rank = 0; return 0; }
const char* ncclGetErrorString(int) { return "hollow NCCL"; }
const char* ncclGetLastError(void*) { return ""; }
static int pass(const char* name, const void* from, void* to, size_t count, int type) {
  hollow_note(name, true);
  size_t bytes = count * element(type);
  if (from != to && bytes <= 1 << 20) memmove(to, from, bytes);
  return 0;
}
int ncclAllReduce(const void* from, void* to, size_t count, int type, ...) { return pass("ncclAllReduce", from, to, count, type); }
int ncclBroadcast(const void* from, void* to, size_t count, int type, ...) { return pass("ncclBroadcast", from, to, count, type); }
int ncclBcast(void*, size_t, int, ...) { hollow_note("ncclBcast", true); return 0; }
int ncclAllGather(const void* from, void* to, size_t count, int type, ...) {
  size_t bytes = count * element(type);
  for (int i = 0; i < processes; i++) pass("ncclAllGather", from, (char*)to + i * bytes, count, type);
  return 0;
}

}  // extern "C"
