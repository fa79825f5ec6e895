// The CUDA runtime, the part that tests need: devices, memory, streams, events, copies, launches.
//
// Memory is address space that the kernel backs when it is written to, so that "80 GB" cost nothing.
// Allocations are counted against each device's limit. Copies are made (up to HOLLOW_COPY bytes);
// kernels are counted and compute nothing, but for two: filling a tensor and adding two tensors of
// float64, with which the engine keeps its books. Every stream is always finished.

#include "hollow.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#define __CUDA_RUNTIME_API_H__  // only the types are wanted
#include "driver_types.h"
#undef cudaGetDeviceProperties

namespace {

const int CUDA = 13000;  // version
std::mutex guard;
std::map<std::string, long> counts;
std::unordered_map<const void*, long> kernels;
long launched = 0;
thread_local int current = 0;

struct Block { size_t bytes; int device; };
std::map<const char*, Block> blocks;
std::map<int, size_t> used, most_used;

long setting(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text ? atol(text) : otherwise;
}
int capability() { static int value = setting("HOLLOW_CC", 80); return value; }
size_t memory() {
  static size_t value = (size_t)(atof(getenv("HOLLOW_GB") ? getenv("HOLLOW_GB") : "80") * (1ull << 30));
  return value;
}
int processors() { return capability() >= 90 ? 132 : capability() >= 80 ? 108 : 80; }
int shared_memory() {  // bytes that one block may ask for
  return capability() >= 90 ? 232448 : capability() == 80 ? 166912 : capability() == 70 ? 98304 : 65536;
}

void copy(void* to, const void* from, size_t bytes) {
  static size_t limit = setting("HOLLOW_COPY", 4 << 20);
  if (bytes <= limit) memmove(to, from, bytes);
}
const char* direction(int kind) {
  return kind == cudaMemcpyHostToDevice ? "copy to device" : kind == cudaMemcpyDeviceToHost ? "copy to host" : "copy on device";
}

struct Dim3 { unsigned x, y, z; };
std::unordered_map<const void*, const char*> names;  // of kernels, by the host's function
std::unordered_map<const void*, int> computing;      // kernels that compute something
enum { NOTHING, FILL, ADD };

int what_computes(const void* kernel) {
  auto known = computing.find(kernel);
  if (known != computing.end()) return known->second;
  auto name = names.find(kernel);
  int kind = NOTHING;
  if (name != names.end()) {
    const char* text = name->second;
    bool dense = strstr(text, "vectorized_elementwise_kernel") ||
                 (strstr(text, "unrolled_elementwise_kernel") && strstr(text, "TrivialOffsetCalculator"));
    if (dense && strstr(text, "FillFunctorIdE") && strstr(text, "IPcLm1E")) kind = FILL;
    if (dense && strstr(text, "CUDAFunctor_addIdE") && strstr(text, "IPcLm3E")) kind = ADD;
  }
  return computing[kernel] = kind;
}

// Arguments of torch's elementwise kernels: how many elements, the functor, pointers (out first).
void compute(int kind, void** arguments) {
  int count = *(int*)arguments[0];
  double number = *(double*)arguments[1];  // what is filled in, or what the second term is multiplied by
  double** at = (double**)arguments[2];
  if (count > 1 << 16) return;
  for (int i = 0; i < count; i++) at[0][i] = kind == FILL ? number : at[1][i] + number * at[2][i];
}

cudaError_t launch(const void* kernel, void** arguments) {
  std::lock_guard<std::mutex> held(guard);
  launched++;
  kernels[kernel]++;
  if (int kind = what_computes(kernel)) compute(kind, arguments);
  return cudaSuccess;
}

}  // namespace

void hollow_note(const char* name, bool is_launch) {
  std::lock_guard<std::mutex> held(guard);
  counts[name]++;
  if (is_launch) launched++;
}

extern "C" {

// What tests ask.
void hollow_reset() {
  std::lock_guard<std::mutex> held(guard);
  counts.clear();
  kernels.clear();
  launched = 0;
}
long hollow_launches() { return launched; }
long hollow_count(const char* name) {
  std::lock_guard<std::mutex> held(guard);
  auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}
void hollow_report(const char* path) {  // a line for each kernel and each counted call
  std::lock_guard<std::mutex> held(guard);
  FILE* file = fopen(path, "w");
  for (auto& entry : kernels) {
    auto name = names.find(entry.first);
    fprintf(file, "%ld\tkernel\t%s\n", entry.second, name == names.end() ? "?" : name->second);
  }
  for (auto& entry : counts) fprintf(file, "%ld\tcall\t%s\n", entry.second, entry.first.c_str());
  fclose(file);
}
void hollow_driver_launch() { hollow_note("cuLaunchKernel", true); }

// Devices.
cudaError_t cudaGetDeviceCount(int* count) {
  static int gpus = setting("HOLLOW_GPUS", 1);
  *count = 0;
  if (setting("HOLLOW_DRIVER", CUDA) < CUDA) return cudaErrorInsufficientDriver;
  *count = gpus;
  return gpus ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int* device) { *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { current = device; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { *version = setting("HOLLOW_DRIVER", CUDA); return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { *version = CUDA; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { *can = 1; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  snprintf(text, size, "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = INT32_MAX; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrWarpSize: case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMultiProcessorCount: *value = processors(); break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = capability() % 10; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = shared_memory() + 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = shared_memory(); break;
    default: *value = 1;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "Hollow GPU %d.%d", capability() / 10, capability() % 10);
  p->uuid.bytes[0] = (char)device;
  p->pciBusID = device;
  p->major = capability() / 10;
  p->minor = capability() % 10;
  p->totalGlobalMem = memory();
  p->multiProcessorCount = processors();
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = INT32_MAX;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = shared_memory();
  p->sharedMemPerMultiprocessor = shared_memory() + 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->totalConstMem = 65536;
  p->l2CacheSize = 40 << 20;
  p->memoryBusWidth = 5120;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->memPitch = INT32_MAX;
  p->unifiedAddressing = p->managedMemory = p->concurrentKernels = 1;
  p->asyncEngineCount = 3;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* p, int device) { return cudaGetDeviceProperties(p, device); }

// Errors.
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "out of memory" : "hollow error"; }
const char* cudaGetErrorName(cudaError_t) { return "hollowError"; }

// Memory.
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  std::lock_guard<std::mutex> held(guard);
  counts["cudaMalloc"]++;
  *pointer = nullptr;
  if (used[current] + bytes > memory()) return cudaErrorMemoryAllocation;
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return cudaErrorMemoryAllocation;
  blocks[(const char*)made] = {bytes, current};
  used[current] += bytes;
  *pointer = made;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  std::lock_guard<std::mutex> held(guard);
  auto found = blocks.find((const char*)pointer);
  if (found != blocks.end()) {
    munmap(pointer, found->second.bytes);
    used[found->second.device] -= found->second.bytes;
    blocks.erase(found);
  }
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard<std::mutex> held(guard);
  *total = memory();
  *free = memory() - used[current];
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  hollow_note("cudaHostAlloc");
  *pointer = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) { free(pointer); return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* pointer) {
  std::lock_guard<std::mutex> held(guard);
  memset(a, 0, sizeof *a);
  a->type = cudaMemoryTypeHost;
  auto after = blocks.upper_bound((const char*)pointer);
  if (after == blocks.begin()) return cudaSuccess;
  auto block = std::prev(after);
  if ((const char*)pointer < block->first + block->second.bytes) {
    a->type = cudaMemoryTypeDevice;
    a->device = block->second.device;
    a->devicePointer = (void*)pointer;
  }
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** pointer, const void*) { *pointer = calloc(1, 1 << 16); return cudaSuccess; }

// Copies.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  copy(to, from, bytes);
  hollow_note(direction(kind));
  hollow_note("cudaMemcpy");  // waits for the device
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void*) {
  copy(to, from, bytes);
  hollow_note(direction(kind));
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (bytes <= 1 << 20) memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, void*) {
  hollow_note("cudaMemsetAsync");
  return cudaMemset(to, value, bytes);
}

// Streams and events.
cudaError_t cudaStreamCreate(void** stream) { *stream = malloc(8); return cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(void** stream, unsigned, int) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamGetPriority(void*, int* priority) { *priority = 0; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(void*, int* status) { *status = 0; return cudaSuccess; }
cudaError_t cudaStreamGetCaptureInfo(void*, int* status, unsigned long long* id, void*, void*, void*, void*) {
  *status = 0;
  if (id) *id = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(void*) { hollow_note("cudaStreamSynchronize"); return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { hollow_note("cudaDeviceSynchronize"); return cudaSuccess; }
cudaError_t cudaEventCreate(void** event) { *event = malloc(8); return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(void** event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventSynchronize(void*) { hollow_note("cudaEventSynchronize"); return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, void*, void*) { *milliseconds = 1.0f; return cudaSuccess; }

// Kernels.
void __cudaRegisterFunction(void**, const void* function, char*, const char* name, ...) { names[function] = name; }
cudaError_t cudaLaunchKernel(const void* kernel, Dim3, Dim3, void** arguments, size_t, void*) { return launch(kernel, arguments); }
cudaError_t __cudaLaunchKernel(const void* kernel, Dim3, Dim3, void** arguments, size_t, void*) { return launch(kernel, arguments); }
cudaError_t cudaLaunchKernelExC(const void*, const void* kernel, void** arguments) { return launch(kernel, arguments); }
cudaError_t __cudaGetKernel(const void** kernel, const void* function) { *kernel = function; return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->ptxVersion = a->binaryVersion = capability();
  a->maxDynamicSharedSizeBytes = shared_memory();
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
static int succeed() { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long, int* status) {
  void* own = dlsym(RTLD_DEFAULT, name);
  *function = own ? own : (void*)succeed;
  if (status) *status = 0;
  return cudaSuccess;
}

}  // extern "C"
