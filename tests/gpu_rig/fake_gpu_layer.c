/* An OpenCL ICD layer that makes Intel's CPU runtime answer like an Intel GPU without matrix
 * units, so that OpenVINO's own GPU plugin accepts it. It replaces three functions:
 *   clGetDeviceIDs            lists the device twice if FAKE_GPU_TWICE is set: GPU.0 and GPU.1
 *   clGetDeviceInfo           what the device says about itself; FAKE_GPU_BYTES is its memory
 *   clCreateKernelsInProgram  takes one more reference to the program (clRetainProgram), because
 *                             the CPU runtime drops the program while its kernels are in use
 * The OpenCL loader reads the path of the built file from the environment, OPENCL_LAYERS. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef void *handle; /* any OpenCL object */

typedef cl_int (*get_device_ids_fn)(handle, uint64_t, cl_uint, handle *, cl_uint *);
typedef cl_int (*get_device_info_fn)(handle, cl_uint, size_t, void *, size_t *);
typedef cl_int (*retain_program_fn)(handle);
typedef cl_int (*create_kernels_fn)(handle, cl_uint, handle *, cl_uint *);

enum { GET_DEVICE_IDS = 2, GET_DEVICE_INFO = 3, RETAIN_PROGRAM = 28, CREATE_KERNELS = 35 }; /* slots */
enum { MAX_SLOTS = 512, MAX_EXTENSIONS = 16384 };
enum { CL_SUCCESS = 0, CL_INVALID_VALUE = -30 };

static void *const *below;      /* the runtime's own table of functions */
static void *table[MAX_SLOTS];  /* ours: a copy with three slots replaced */

static cl_int answer(const void *value, size_t n, size_t room, void *out, size_t *n_out) {
    if (n_out) *n_out = n;
    if (!out) return CL_SUCCESS;
    if (room < n) return CL_INVALID_VALUE;
    memcpy(out, value, n);
    return CL_SUCCESS;
}

static cl_int get_device_ids(handle platform, uint64_t type, cl_uint room, handle *out, cl_uint *n) {
    cl_uint found = 0;
    cl_int status = ((get_device_ids_fn)below[GET_DEVICE_IDS])(platform, type, room, out, &found);
    if (status == CL_SUCCESS && found == 1 && getenv("FAKE_GPU_TWICE")) {
        if (out && room > 1) out[1] = out[0];
        found = 2;
    }
    if (n) *n = found;
    return status;
}

/* Sub-groups are formed along one dimension only in the CPU runtime, so kernels that use them
 * would be silently wrong: no extension with "subgroup" in its name is passed on. */
static cl_int extensions(handle device, size_t room, void *out, size_t *n_out) {
    char all[MAX_EXTENSIONS], kept[MAX_EXTENSIONS] = "";
    get_device_info_fn next = (get_device_info_fn)below[GET_DEVICE_INFO];
    cl_int status = next(device, 0x1030, sizeof all, all, NULL);
    if (status != CL_SUCCESS) return status;
    for (char *rest, *name = strtok_r(all, " ", &rest); name; name = strtok_r(NULL, " ", &rest))
        if (!strstr(name, "subgroup")) strcat(strcat(kept, name), " ");
    return answer(kept, strlen(kept) + 1, room, out, n_out);
}

static cl_int get_device_info(handle device, cl_uint what, size_t room, void *out, size_t *n_out) {
    uint64_t type = 4; /* CL_DEVICE_TYPE_GPU */
    const char *faked = getenv("FAKE_GPU_BYTES");
    uint64_t n_bytes = faked ? strtoull(faked, NULL, 10) : 0;
    cl_uint number;
    if (what == 0x101F && n_bytes) return answer(&n_bytes, sizeof n_bytes, room, out, n_out);
    switch (what) {
    case 0x1000: return answer(&type, sizeof type, room, out, n_out);
    case 0x1030: return extensions(device, room, out, n_out);
    case 0x4250: number = 9u << 22; break; /* IP version: Gen9, no oneDNN, no matrix units */
    case 0x4251: number = 0x1912; break;   /* device id */
    case 0x4252: number = 1; break;        /* slices */
    case 0x4253: number = 3; break;        /* sub-slices a slice */
    case 0x4254: number = 8; break;        /* execution units a sub-slice */
    case 0x4255: number = 7; break;        /* threads an execution unit */
    case 0x4256: number = 0; break;        /* feature bits */
    default: return ((get_device_info_fn)below[GET_DEVICE_INFO])(device, what, room, out, n_out);
    }
    return answer(&number, sizeof number, room, out, n_out);
}

static cl_int create_kernels(handle program, cl_uint n, handle *kernels, cl_uint *n_kernels) {
    if (kernels) ((retain_program_fn)below[RETAIN_PROGRAM])(program);
    return ((create_kernels_fn)below[CREATE_KERNELS])(program, n, kernels, n_kernels);
}

cl_int clGetLayerInfo(cl_uint what, size_t room, void *out, size_t *n_out) {
    static const char name[] = "hetero_lab CPU runtime as GPU";
    cl_uint api_version = 100;
    if (what == 0x4240) return answer(&api_version, sizeof api_version, room, out, n_out);
    if (what == 0x4241) return answer(name, sizeof name, room, out, n_out);
    return CL_INVALID_VALUE;
}

/* Loaders older than 2025 ask for clInitLayer, newer ones for the other two. */
cl_int clInitLayer(cl_uint n, void *const *target, cl_uint *n_ours, void *const **ours) {
    if (!target || !n_ours || !ours || n <= CREATE_KERNELS || n > MAX_SLOTS)
        return CL_INVALID_VALUE;
    below = target;
    memcpy(table, target, n * sizeof *target);
    table[GET_DEVICE_IDS] = (void *)get_device_ids;
    table[GET_DEVICE_INFO] = (void *)get_device_info;
    table[CREATE_KERNELS] = (void *)create_kernels;
    *ours = table;
    *n_ours = n;
    return CL_SUCCESS;
}

cl_int clInitLayerWithProperties(cl_uint n, void *const *target, cl_uint *n_ours,
                                 void *const **ours, const void *properties) {
    (void)properties;
    return clInitLayer(n, target, n_ours, ours);
}

cl_int clDeinitLayer(void) { return CL_SUCCESS; }
