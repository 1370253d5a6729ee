/* A libnvidia-ml.so.1 that answers as a text file says: the C ABI of NVML as far as the probe asks.
 *
 * FAKE_NVML_MACHINE names the file: lines "KEY VALUE". A value "!15" makes the answer fail with code 15, and so does
 * "fail.FUNCTION 15", "fail.FUNCTION.GPU 15" and "fail.FUNCTION.GPU.OTHER 15", where OTHER is a link, a peer or a field;
 * FUNCTION may be "*". What has no line is not supported, and a link without a state does not exist.
 * FAKE_NVML_CALLS, if set, names a file that gets a line "FUNCTION GPU OTHER" for every call.
 *
 *   driver, version, cuda_version, count, confidential (0)
 *   gpu.N.bus_id, .uuid, .name, .sm (70), .max_generation, .max_width, .generation, .width, .numa_id, .mig
 *   gpu.N.utilization (0)
 *   gpu.N.cpus, gpu.N.nodes (numbers between commas), gpu.N.mig_devices; its MIG device I is gpu.(64 + 8 * N + I).uuid
 *   gpu.N.link.L.state, .remote_type, .remote_bus_id, .version
 *   gpu.N.field.ID.SCOPE, gpu.N.field_type.ID (nvmlValueType_t; 1 where it has no line)
 *   gpu.N.fabric.version (the version of nvmlGpuFabricInfo_v that is understood), .state, .status, .clique, .cluster (hex), .health
 *   p2p.N.M.CAPABILITY, ancestor.N.M
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, NOT_LOADED = 9 };
enum { VERSION_MISMATCH = 25, MOST_GPUS = 64, MOST_MIG = 8, TEXT = 256, NONE = -1 };

typedef struct { char key[TEXT]; char value[TEXT]; } Line;
typedef struct { int index; } Device;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char bus_id[32];
} PciInfo;
typedef union { double d; unsigned u; unsigned long ul; unsigned long long ull; long long sll; int i; unsigned short us; } Value;
typedef struct { unsigned id, scope; long long time, latency; unsigned type, result; Value value; } Field;
typedef struct { unsigned char cluster[16]; unsigned status, clique, state; } Fabric;
typedef struct { unsigned version; Fabric info; unsigned health; } FabricV;

static Line *lines;
static size_t line_count;
static Device devices[MOST_GPUS * (1 + MOST_MIG)]; /* GPUs, then their MIG devices */
static FILE *calls;

static int by_key(const void *a, const void *b) { return strcmp(((const Line *)a)->key, ((const Line *)b)->key); }

static int load(const char *path) {
    FILE *file = path ? fopen(path, "r") : NULL;
    char text[2 * TEXT];
    if (!file) return NOT_LOADED;
    free(lines);
    lines = NULL;
    line_count = 0;
    while (fgets(text, sizeof text, file)) {
        Line line = {"", ""};
        if (sscanf(text, "%255s %255[^\n]", line.key, line.value) < 1) continue;
        lines = realloc(lines, (line_count + 1) * sizeof *lines);
        lines[line_count++] = line;
    }
    fclose(file);
    qsort(lines, line_count, sizeof *lines, by_key);
    return SUCCESS;
}

static const char *find(const char *format, ...) {
    Line wanted, *found;
    va_list rest;
    va_start(rest, format);
    vsnprintf(wanted.key, TEXT, format, rest);
    va_end(rest);
    found = lines ? bsearch(&wanted, lines, line_count, sizeof *lines, by_key) : NULL;
    return found ? found->value : NULL;
}

/* The code that a function is told to fail with, 0 where it is not. */
static int failing(const char *function, int gpu, int other) {
    const char *names[] = {function, "*"}, *code;
    if (calls) fprintf(calls, "%s %d %d\n", function, gpu, other);
    for (int i = 0; i < 2; i++) {
        if ((code = find("fail.%s", names[i]))) return atoi(code);
        if (gpu != NONE && (code = find("fail.%s.%d", names[i], gpu))) return atoi(code);
        if (other != NONE && (code = find("fail.%s.%d.%d", names[i], gpu, other))) return atoi(code);
    }
    return SUCCESS;
}

static int text_of(const char *value, char *out, unsigned size) {
    if (!value) return NOT_SUPPORTED;
    if (*value == '!') return atoi(value + 1);
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

static int number_of(const char *value, int *out) {
    if (!value) return NOT_SUPPORTED;
    if (*value == '!') return atoi(value + 1);
    *out = (int)strtoll(value, NULL, 0);
    return SUCCESS;
}

static int bits_of(const char *value, unsigned long long *out, unsigned words) {
    char *end;
    if (!value) return NOT_SUPPORTED;
    if (*value == '!') return atoi(value + 1);
    memset(out, 0, words * sizeof *out);
    for (; *value; value = *end ? end + 1 : end) {
        unsigned long bit = strtoul(value, &end, 10);
        if (end == value) break;
        if (bit >= 64ul * words) return INSUFFICIENT_SIZE;
        out[bit / 64] |= 1ull << bit % 64;
    }
    return SUCCESS;
}

static int address_of(const char *value, PciInfo *out) {
    memset(out, 0, sizeof *out);
    return text_of(value, out->bus_id, sizeof out->bus_id);
}

#define FAIL_AS_TOLD(gpu, other) \
    do { int code_ = failing(__func__, gpu, other); if (code_) return code_; } while (0)
#define GPU_TEXT(function, key) \
    int function(Device *gpu, char *out, unsigned size) { \
        FAIL_AS_TOLD(gpu->index, NONE); return text_of(find("gpu.%d." key, gpu->index), out, size); }
#define GPU_NUMBER(function, key) \
    int function(Device *gpu, int *out) { \
        FAIL_AS_TOLD(gpu->index, NONE); return number_of(find("gpu.%d." key, gpu->index), out); }
#define LINK_NUMBER(function, key) \
    int function(Device *gpu, unsigned link, int *out) { \
        FAIL_AS_TOLD(gpu->index, (int)link); \
        return number_of(find("gpu.%d.link.%u." key, gpu->index, link), out); }

int nvmlInitWithFlags(unsigned flags) {
    const char *log = getenv("FAKE_NVML_CALLS");
    int code = load(getenv("FAKE_NVML_MACHINE"));
    (void)flags;
    if (code) return code;
    if (log) calls = fopen(log, "a");
    FAIL_AS_TOLD(NONE, NONE);
    for (int i = 0; i < MOST_GPUS * (1 + MOST_MIG); i++) devices[i].index = i;
    return SUCCESS;
}

int nvmlShutdown(void) {
    int code = failing(__func__, NONE, NONE);
    if (calls) fclose(calls);
    calls = NULL;
    return code;
}

const char *nvmlErrorString(int code) {
    static const char *texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires restart", "The operating system has blocked the request.",
        "RM has detected an NVML/RM version mismatch.", "In use by another client", "Insufficient Memory", "No data",
        "vGPU ECC not supported", "Insufficient Resources", "Frequency Not Supported", "Argument version mismatch",
        "Deprecated", "System not ready", "GPU not found", "Invalid state"};
    return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    FAIL_AS_TOLD(NONE, NONE);
    return text_of(find("driver"), out, size);
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    FAIL_AS_TOLD(NONE, NONE);
    return text_of(find("version"), out, size);
}

int nvmlSystemGetCudaDriverVersion(int *out) {
    FAIL_AS_TOLD(NONE, NONE);
    return number_of(find("cuda_version"), out);
}

int nvmlSystemGetConfComputeState(unsigned *out) {
    int on = 0;
    FAIL_AS_TOLD(NONE, NONE);
    number_of(find("confidential"), &on);
    memset(out, 0, 3 * sizeof *out);
    out[1] = (unsigned)on;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(int *out) {
    FAIL_AS_TOLD(NONE, NONE);
    return number_of(find("count"), out);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    int count = 0;
    FAIL_AS_TOLD((int)index, NONE);
    if (number_of(find("count"), &count) || index >= (unsigned)count || index >= MOST_GPUS) return INVALID;
    *out = &devices[index];
    return SUCCESS;
}

GPU_TEXT(nvmlDeviceGetUUID, "uuid")
GPU_TEXT(nvmlDeviceGetName, "name")
GPU_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "max_generation")
GPU_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "max_width")
GPU_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "generation")
GPU_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "width")
GPU_NUMBER(nvmlDeviceGetNumaNodeId, "numa_id")
GPU_NUMBER(nvmlDeviceGetMaxMigDeviceCount, "mig_devices")
LINK_NUMBER(nvmlDeviceGetNvLinkRemoteDeviceType, "remote_type")
LINK_NUMBER(nvmlDeviceGetNvLinkVersion, "version")

int nvmlDeviceGetPciInfo_v3(Device *gpu, PciInfo *out) {
    FAIL_AS_TOLD(gpu->index, NONE);
    return address_of(find("gpu.%d.bus_id", gpu->index), out);
}

int nvmlDeviceGetCudaComputeCapability(Device *gpu, int *major, int *minor) {
    int sm = 0, code;
    FAIL_AS_TOLD(gpu->index, NONE);
    if ((code = number_of(find("gpu.%d.sm", gpu->index), &sm))) return code;
    *major = sm / 10;
    *minor = sm % 10;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device *gpu, int *out) {
    FAIL_AS_TOLD(gpu->index, NONE);
    out[0] = out[1] = 0; /* of its cores, of its memory */
    number_of(find("gpu.%d.utilization", gpu->index), out);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Device *gpu, int *current, int *pending) {
    FAIL_AS_TOLD(gpu->index, NONE);
    *pending = 0;
    return number_of(find("gpu.%d.mig", gpu->index), current);
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *gpu, unsigned index, Device **out) {
    int own = MOST_GPUS + MOST_MIG * gpu->index + (int)index;
    FAIL_AS_TOLD(gpu->index, (int)index);
    if (index >= MOST_MIG || !find("gpu.%d.uuid", own)) return NOT_FOUND;
    *out = &devices[own];
    return SUCCESS;
}

int nvmlDeviceGetCpuAffinity(Device *gpu, unsigned words, unsigned long long *out) {
    FAIL_AS_TOLD(gpu->index, NONE);
    return bits_of(find("gpu.%d.cpus", gpu->index), out, words);
}

int nvmlDeviceGetMemoryAffinity(Device *gpu, unsigned words, unsigned long long *out, unsigned scope) {
    (void)scope;
    FAIL_AS_TOLD(gpu->index, NONE);
    return bits_of(find("gpu.%d.nodes", gpu->index), out, words);
}

int nvmlDeviceGetNvLinkState(Device *gpu, unsigned link, int *out) {
    const char *state = find("gpu.%d.link.%u.state", gpu->index, link);
    FAIL_AS_TOLD(gpu->index, (int)link);
    return state ? number_of(state, out) : INVALID;
}

int nvmlDeviceGetNvLinkCapability(Device *gpu, unsigned link, unsigned what, int *out) {
    (void)what;
    FAIL_AS_TOLD(gpu->index, (int)link);
    *out = 1; /* for links that are not there, too */
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *gpu, unsigned link, PciInfo *out) {
    FAIL_AS_TOLD(gpu->index, (int)link);
    return address_of(find("gpu.%d.link.%u.remote_bus_id", gpu->index, link), out);
}

int nvmlDeviceGetFieldValues(Device *gpu, int count, Field *fields) {
    FAIL_AS_TOLD(gpu->index, NONE);
    for (int i = 0; i < count; i++) {
        const char *value = find("gpu.%d.field.%u.%u", gpu->index, fields[i].id, fields[i].scope);
        const char *type = find("gpu.%d.field_type.%u", gpu->index, fields[i].id);
        int code = failing(__func__, gpu->index, (int)fields[i].id);
        fields[i].result = code ? code : !value ? NOT_SUPPORTED : *value == '!' ? atoi(value + 1) : SUCCESS;
        if (fields[i].result) continue;
        fields[i].type = type ? atoi(type) : 1;
        if (fields[i].type == 0) fields[i].value.d = atof(value);
        else fields[i].value.ull = strtoull(value, NULL, 0);
    }
    return SUCCESS;
}

static int fabric_of(Device *gpu, Fabric *out) {
    const char *cluster = find("gpu.%d.fabric.cluster", gpu->index);
    int state, status = 0, clique = 0, code = number_of(find("gpu.%d.fabric.state", gpu->index), &state);
    if (code) return code;
    memset(out, 0, sizeof *out);
    number_of(find("gpu.%d.fabric.status", gpu->index), &status);
    number_of(find("gpu.%d.fabric.clique", gpu->index), &clique);
    out->state = state;
    out->status = status;
    out->clique = clique;
    for (int i = 0; cluster && i < 16; i++) sscanf(cluster + 2 * i, "%2hhx", &out->cluster[i]);
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfo(Device *gpu, Fabric *out) {
    FAIL_AS_TOLD(gpu->index, NONE);
    return fabric_of(gpu, out);
}

int nvmlDeviceGetGpuFabricInfoV(Device *gpu, FabricV *out) {
    int version = 2;
    FAIL_AS_TOLD(gpu->index, NONE);
    number_of(find("gpu.%d.fabric.version", gpu->index), &version);
    if (out->version >> 24 != (unsigned)version) return VERSION_MISMATCH;
    int health = 0;
    number_of(find("gpu.%d.fabric.health", gpu->index), &health);
    out->health = health;
    return fabric_of(gpu, &out->info);
}

int nvmlDeviceGetP2PStatus(Device *a, Device *b, unsigned capability, int *out) {
    FAIL_AS_TOLD(a->index, b->index);
    return number_of(find("p2p.%d.%d.%u", a->index, b->index, capability), out);
}

int nvmlDeviceGetTopologyCommonAncestor(Device *a, Device *b, int *out) {
    const char *level = find("ancestor.%d.%d", a->index, b->index);
    FAIL_AS_TOLD(a->index, b->index);
    return number_of(level ? level : find("ancestor.%d.%d", b->index, a->index), out);
}
