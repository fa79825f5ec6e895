// The driver's library, libcuda.so.1: what torch and Triton load of it.

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#define YES(name) int name() { return 0; }

extern "C" {

YES(cuInit) YES(cuCtxSetCurrent) YES(cuCtxPushCurrent_v2) YES(cuCtxPopCurrent_v2) YES(cuModuleUnload)
YES(cuFuncSetAttribute) YES(cuFuncSetCacheConfig) YES(cuTensorMapEncodeTiled) YES(cuLinkCreate_v2)
YES(cuLinkAddData_v2) YES(cuLinkComplete) YES(cuStreamGetCtx) YES(cuCtxSetLimit)
YES(cuCtxGetLimit)
int cuGetErrorString(int, const char** text) { *text = "hollow error"; return 0; }
int cuGetErrorName(int, const char** text) { *text = "hollowError"; return 0; }
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGet(int* device, int number) { *device = number; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  auto runtime = (int (*)(int*, int, int))dlsym(RTLD_DEFAULT, "cudaDeviceGetAttribute");
  return runtime(value, attribute, device);  // the numbers are the same
}
int cuCtxGetCurrent(void** context) { static int some; *context = &some; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { return cuCtxGetCurrent(context); }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return 0;
}
static int make(void** handle) { *handle = calloc(1, 64); return 0; }
int cuModuleLoad(void** module, const char*) { return make(module); }
int cuModuleLoadData(void** module, const void*) { return make(module); }
int cuModuleLoadDataEx(void** module, const void*, ...) { return make(module); }
int cuModuleGetFunction(void** function, void*, const char*) { return make(function); }
int cuFuncGetAttribute(int* value, int attribute, void*) { *value = attribute == 0 ? 1024 : 0; return 0; }  // 0: threads of a block
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, ...) { *blocks = 2; return 0; }
int cuOccupancyMaxActiveClusters(int* clusters, ...) { *clusters = 2; return 0; }
int cuPointerGetAttribute(void* value, int, unsigned long long pointer) {
  memcpy(value, &pointer, sizeof pointer);  // asked for the address on the device only
  return 0;
}
static int launch() {
  auto count = (void (*)())dlsym(RTLD_DEFAULT, "hollow_driver_launch");
  if (count) count();
  return 0;
}
int cuLaunchKernel() { return launch(); }
int cuLaunchKernelEx() { return launch(); }
int cuLaunchCooperativeKernel() { return launch(); }

}  // extern "C"
