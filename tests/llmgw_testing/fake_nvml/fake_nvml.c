/* A stand-in for libnvidia-ml.so.1. Its answers come from the profile named by FAKE_NVML, lines of "key = value":
 *
 *   no such key        the call answers 3 (not supported)
 *   value "!CODE"      the call answers CODE
 *   the last line wins, and the file is read again when it changes, so a test breaks hardware by appending lines
 *
 * Keys: sys.{init,driver,nvml,cuda,count,hang}; gpuN.{error,lost,hang,hang.links,...}; gpuN.linkL.*; gpuN.migM.*;
 * gpuN.fi.ID[.SCOPE]; gpuN.procP = pid,bytes; gpuN.xid = SERIAL:XID; pair.A.B.{topo,p2pI}, pair.default.*
 * "hang" makes calls on that GPU block for ever, "hang.links" its NVLink calls. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GPUS 32
#define PARTS 8
#define SLOTS 16384 /* a power of two */
#define OK 0
#define INVALID 2
#define UNSUPPORTED 3
#define NOT_FOUND 6
#define TOO_SMALL 7
#define TIMEOUT 10
#define LOST 15
#define BAD_VERSION 25

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { char *key, *value; } Entry;
typedef struct { int gpu, part; } Device; /* part is -1 for a whole GPU */
typedef struct { int used; u64 mask[GPUS]; long seen[GPUS]; } EventSet;

static Entry table[SLOTS];
static Device devices[GPUS][PARTS + 1];
static u32 power_set[GPUS];
static struct stat read_state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static u32 hash(const char *key) {
    u32 h = 2166136261u;
    for (; *key; key++) h = (h ^ (unsigned char)*key) * 16777619u;
    return h;
}

static Entry *slot(const char *key) {
    u32 at = hash(key) & (SLOTS - 1);
    while (table[at].key && strcmp(table[at].key, key)) at = (at + 1) & (SLOTS - 1);
    return &table[at];
}

static char *trim(char *text) {
    while (*text == ' ' || *text == '\t') text++;
    char *end = text + strlen(text);
    while (end > text && strchr(" \t\r\n", end[-1])) *--end = 0;
    return text;
}

static void reread(void) {
    const char *path = getenv("FAKE_NVML");
    struct stat now;
    if (!path || stat(path, &now)) return;
    if (now.st_size == read_state.st_size && now.st_ino == read_state.st_ino &&
        now.st_mtim.tv_sec == read_state.st_mtim.tv_sec && now.st_mtim.tv_nsec == read_state.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    read_state = now;
    for (int at = 0; at < SLOTS; at++) {
        free(table[at].key);
        free(table[at].value);
        table[at].key = table[at].value = NULL;
    }
    char line[1024];
    while (fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '=');
        if (line[0] == '#' || !equals) continue;
        *equals = 0;
        Entry *entry = slot(trim(line));
        if (!entry->key) entry->key = strdup(trim(line));
        free(entry->value);
        entry->value = strdup(trim(equals + 1));
    }
    fclose(file);
}

/* Copies the value into out; answers OK, 3 for none, or the code of "!CODE". */
static int find(char out[256], const char *format, ...) {
    char key[128];
    va_list args;
    va_start(args, format);
    vsnprintf(key, sizeof key, format, args);
    va_end(args);
    pthread_mutex_lock(&lock);
    reread();
    Entry *entry = slot(key);
    int code = UNSUPPORTED;
    if (entry->key) {
        code = entry->value[0] == '!' ? atoi(entry->value + 1) : OK;
        snprintf(out, 256, "%s", entry->value);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int flag(const char *key, int gpu) {
    char out[256];
    return gpu < 0 ? !find(out, "%s", key) && atoi(out) : !find(out, "gpu%d.%s", gpu, key) && atoi(out);
}

static void hang(void) {
    for (;;) pause();
}

static Device *device(void *handle) {
    Device *it = handle;
    return (char *)it >= (char *)devices && (char *)it < (char *)devices + sizeof devices ? it : NULL;
}

/* What each call on a GPU does first. */
static int enter(void *handle, Device **it) {
    *it = device(handle);
    if (!*it) return INVALID;
    if (flag("hang", (*it)->gpu)) hang();
    return flag("lost", (*it)->gpu) ? LOST : OK;
}

static int lookup(void *handle, char out[256], const char *name) {
    Device *it;
    int code = enter(handle, &it);
    if (code) return code;
    return it->part < 0 ? find(out, "gpu%d.%s", it->gpu, name) : find(out, "gpu%d.mig%d.%s", it->gpu, it->part, name);
}

static int number(void *handle, const char *name, u64 *value) {
    char out[256];
    int code = lookup(handle, out, name);
    if (!code) *value = strtoull(out, NULL, 0);
    return code;
}

static int small(void *handle, const char *name, u32 *value) {
    u64 wide;
    int code = number(handle, name, &wide);
    if (!code) *value = (u32)wide;
    return code;
}

static int two(void *handle, const char *name, u32 *one, u32 *other) {
    char out[256];
    int code = lookup(handle, out, name);
    if (!code && sscanf(out, "%u,%u", one, other) != 2) code = 999;
    return code;
}

static int copy(int code, const char *value, char *out, u32 length) {
    if (code) return code;
    if (strlen(value) + 1 > length) return TOO_SMALL;
    strcpy(out, value);
    return OK;
}

static int name_of(void *handle, const char *name, char *out, u32 length) {
    char value[256];
    return copy(lookup(handle, value, name), value, out, length);
}

/* --- the library and the system --- */

int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    char out[256];
    if (flag("sys.hang", -1)) hang();
    int code = find(out, "sys.init");
    if (code != UNSUPPORTED && code != OK) return code;
    for (int gpu = 0; gpu < GPUS; gpu++)
        for (int part = 0; part <= PARTS; part++) devices[gpu][part] = (Device){gpu, part - 1};
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "code %d", code);
    return text;
}
int nvmlSystemGetDriverVersion(char *out, u32 length) {
    char value[256];
    return copy(find(value, "sys.driver"), value, out, length);
}
int nvmlSystemGetNVMLVersion(char *out, u32 length) {
    char value[256];
    return copy(find(value, "sys.nvml"), value, out, length);
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    char value[256];
    int code = find(value, "sys.cuda");
    if (!code) *version = atoi(value);
    return code;
}
int nvmlDeviceGetCount_v2(u32 *count) {
    char value[256];
    int code = find(value, "sys.count");
    *count = code ? 0 : (u32)atoi(value);
    return OK;
}

/* --- handles --- */

int nvmlDeviceGetHandleByIndex_v2(u32 index, void **handle) {
    char value[256];
    u32 count;
    nvmlDeviceGetCount_v2(&count);
    if (index >= count) return INVALID;
    if (flag("hang", (int)index)) hang();
    if (flag("lost", (int)index)) return LOST;
    int code = find(value, "gpu%u.error", index);
    if (code != UNSUPPORTED && code != OK) return code;
    *handle = &devices[index][0];
    return OK;
}
static int search(const char *name, const char *wanted, void **handle) {
    u32 count;
    nvmlDeviceGetCount_v2(&count);
    for (u32 index = 0; index < count; index++) {
        char value[256];
        if (!find(value, "gpu%u.%s", index, name) && !strcasecmp(value, wanted)) return nvmlDeviceGetHandleByIndex_v2(index, handle);
    }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) { return search("uuid", uuid, handle); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) { return search("pci", bus, handle); }
int nvmlDeviceGetIndex(void *handle, u32 *index) {
    Device *it;
    int code = enter(handle, &it);
    if (!code) *index = (u32)it->gpu;
    return code;
}

/* --- identity --- */

int nvmlDeviceGetName(void *handle, char *out, u32 length) { return name_of(handle, "name", out, length); }
int nvmlDeviceGetUUID(void *handle, char *out, u32 length) { return name_of(handle, "uuid", out, length); }
int nvmlDeviceGetSerial(void *handle, char *out, u32 length) { return name_of(handle, "serial", out, length); }
int nvmlDeviceGetVbiosVersion(void *handle, char *out, u32 length) { return name_of(handle, "vbios", out, length); }
int nvmlDeviceGetMinorNumber(void *handle, u32 *value) { return small(handle, "minor", value); }
int nvmlDeviceGetArchitecture(void *handle, u32 *value) { return small(handle, "arch", value); }
int nvmlDeviceGetModuleId(void *handle, u32 *value) { return small(handle, "module", value); }
int nvmlDeviceGetVirtualizationMode(void *handle, u32 *value) { return small(handle, "virt", value); }
int nvmlDeviceGetNumaNodeId(void *handle, u32 *value) { return small(handle, "numa", value); }
int nvmlDeviceGetPersistenceMode(void *handle, u32 *value) { return small(handle, "persistence", value); }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    char value[256];
    int code = lookup(handle, value, "cc");
    return code ? code : sscanf(value, "%d.%d", major, minor) == 2 ? OK : 999;
}

typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } Pci;

static void fill_pci(const char *value, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    sscanf(value, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%.31s", value);
    pci->id = 0x233010de;
}
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) {
    char value[256];
    int code = lookup(handle, value, "pci");
    if (!code) fill_pci(value, pci);
    return code;
}

/* A list such as "0-3,8" as bits. */
static int mask(void *handle, const char *name, u32 words, uint64_t *out) {
    char value[256];
    int code = lookup(handle, value, name);
    if (code) return code;
    memset(out, 0, words * sizeof *out);
    for (char *part = strtok(value, ","); part; part = strtok(NULL, ",")) {
        u32 first, last;
        int got = sscanf(part, "%u-%u", &first, &last);
        if (got == 1) last = first;
        for (u32 bit = first; got >= 1 && bit <= last && bit < 64 * words; bit++) out[bit / 64] |= 1ull << bit % 64;
    }
    return OK;
}
int nvmlDeviceGetMemoryAffinity(void *handle, u32 words, uint64_t *out, u32 scope) {
    (void)scope;
    return mask(handle, "memaffinity", words, out);
}
int nvmlDeviceGetCpuAffinityWithinScope(void *handle, u32 words, uint64_t *out, u32 scope) {
    (void)scope;
    return mask(handle, "cpuaffinity", words, out);
}

/* --- memory, power, clocks, health --- */

typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } Memory2;

static int memory(void *handle, u64 *total, u64 *used) {
    char value[256];
    int code = lookup(handle, value, "mem");
    *used = 0;
    return code ? code : sscanf(value, "%llu,%llu", total, used) >= 1 ? OK : 999;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *out) {
    int code = memory(handle, &out->total, &out->used);
    if (!code) out->free = out->total - out->used;
    return code;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *out) {
    if (out->version != 0x02000028) return BAD_VERSION;
    int code = memory(handle, &out->total, &out->used);
    if (!code) out->free = out->total - out->used, out->reserved = 0;
    return code;
}
int nvmlDeviceGetPowerUsage(void *handle, u32 *value) { return small(handle, "power", value); }
int nvmlDeviceGetPowerManagementDefaultLimit(void *handle, u32 *value) { return small(handle, "plimit.default", value); }
int nvmlDeviceGetEnforcedPowerLimit(void *handle, u32 *value) { return small(handle, "plimit.enforced", value); }
int nvmlDeviceGetPowerManagementLimitConstraints(void *handle, u32 *least, u32 *most) { return two(handle, "plimit.range", least, most); }
int nvmlDeviceGetPowerManagementLimit(void *handle, u32 *value) {
    int code = small(handle, "plimit", value);
    if (!code && power_set[device(handle)->gpu]) *value = power_set[device(handle)->gpu];
    return code;
}
int nvmlDeviceSetPowerManagementLimit(void *handle, u32 value) {
    u32 least, most;
    int code = nvmlDeviceGetPowerManagementLimitConstraints(handle, &least, &most);
    char out[256];
    if (code) return code;
    code = find(out, "sys.setpower");
    if (code != UNSUPPORTED && code != OK) return code;
    if (value < least || value > most) return INVALID;
    power_set[device(handle)->gpu] = value;
    return OK;
}
int nvmlDeviceGetTemperature(void *handle, u32 sensor, u32 *value) { return sensor ? INVALID : small(handle, "temp", value); }
typedef struct { u32 version, sensor; int temperature; } Temperature;
int nvmlDeviceGetTemperatureV(void *handle, Temperature *out) {
    if (out->version != 0x100000C) return BAD_VERSION;
    return small(handle, "temp", (u32 *)&out->temperature);
}
int nvmlDeviceGetTemperatureThreshold(void *handle, u32 which, u32 *value) {
    char key[32];
    snprintf(key, sizeof key, "threshold%u", which);
    return small(handle, key, value);
}
int nvmlDeviceGetUtilizationRates(void *handle, u32 out[2]) { return two(handle, "util", &out[0], &out[1]); }
static int clock_of(void *handle, const char *prefix, u32 which, u32 *value) {
    char key[32];
    snprintf(key, sizeof key, "%s%u", prefix, which);
    return small(handle, key, value);
}
int nvmlDeviceGetClockInfo(void *handle, u32 which, u32 *value) { return clock_of(handle, "clock", which, value); }
int nvmlDeviceGetMaxClockInfo(void *handle, u32 which, u32 *value) { return clock_of(handle, "maxclock", which, value); }
int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, u32 *value) { return small(handle, "pcie.gen", value); }
int nvmlDeviceGetCurrPcieLinkWidth(void *handle, u32 *value) { return small(handle, "pcie.width", value); }
int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, u32 *value) { return small(handle, "pcie.maxgen", value); }
int nvmlDeviceGetMaxPcieLinkWidth(void *handle, u32 *value) { return small(handle, "pcie.maxwidth", value); }
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, u64 *value) { return number(handle, "reasons", value); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, u64 *value) { return number(handle, "reasons", value); }
int nvmlDeviceGetEccMode(void *handle, u32 *now, u32 *pending) { return two(handle, "ecc", now, pending); }
int nvmlDeviceGetTotalEccErrors(void *handle, u32 type, u32 counter, u64 *value) {
    char key[32];
    snprintf(key, sizeof key, "eccerr.%u.%u", type, counter);
    return number(handle, key, value);
}
int nvmlDeviceGetRemappedRows(void *handle, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failure) {
    char value[256];
    int code = lookup(handle, value, "remapped");
    return code ? code : sscanf(value, "%u,%u,%u,%u", corrected, uncorrected, pending, failure) == 4 ? OK : 999;
}
int nvmlDeviceGetRetiredPages(void *handle, u32 cause, u32 *count, u64 *pages) {
    char key[32];
    u32 have;
    snprintf(key, sizeof key, "retired%u", cause);
    int code = small(handle, key, &have);
    if (code) return code;
    if (*count < have || (!pages && have)) return *count = have, TOO_SMALL;
    for (u32 at = 0; at < have; at++) pages[at] = at;
    *count = have;
    return OK;
}
typedef struct { u32 pid; u64 memory; u32 gpu_instance, compute_instance; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, u32 *count, Process *out) {
    Device *it;
    int code = enter(handle, &it);
    if (code) return code;
    char value[256];
    u32 have = 0;
    while (!find(value, "gpu%d.proc%u", it->gpu, have)) {
        if (out && have < *count) {
            out[have] = (Process){0, ~0ull, ~0u, ~0u};
            sscanf(value, "%u,%llu", &out[have].pid, &out[have].memory);
        }
        have++;
    }
    code = have > *count ? TOO_SMALL : OK;
    *count = have;
    return code;
}

/* --- field values, NVLink --- */

typedef struct { u32 field, scope; long long timestamp, latency; u32 type; int code; u64 value; } Field;

int nvmlDeviceGetFieldValues(void *handle, int count, Field *fields) {
    Device *it;
    int code = enter(handle, &it);
    if (code) return code;
    for (int at = 0; at < count; at++) {
        Field *field = &fields[at];
        char value[256];
        field->type = 3;
        field->code = field->field == 91 ? find(value, "gpu%d.nlinks", it->gpu)
                      : field->scope     ? find(value, "gpu%d.fi.%u.%u", it->gpu, field->field, field->scope)
                                         : UNSUPPORTED;
        if (field->code == UNSUPPORTED) field->code = find(value, "gpu%d.fi.%u", it->gpu, field->field);
        if (!field->code) field->value = strtoull(value, NULL, 0);
    }
    return OK;
}

static int link_value(void *handle, u32 link, const char *name, char out[256]) {
    Device *it;
    int code = enter(handle, &it);
    if (code) return code;
    if (flag("hang.links", it->gpu)) hang();
    code = find(out, "gpu%d.nlinks", it->gpu);
    if (code) return code;
    if (link >= (u32)atoi(out)) return INVALID;
    return find(out, "gpu%d.link%u.%s", it->gpu, link, name);
}
static int link_number(void *handle, u32 link, const char *name, u32 *value) {
    char out[256];
    int code = link_value(handle, link, name, out);
    if (!code) *value = (u32)strtoul(out, NULL, 0);
    return code;
}
int nvmlDeviceGetNvLinkState(void *handle, u32 link, u32 *value) { return link_number(handle, link, "state", value); }
int nvmlDeviceGetNvLinkVersion(void *handle, u32 link, u32 *value) { return link_number(handle, link, "version", value); }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, u32 link, u32 *value) { return link_number(handle, link, "rtype", value); }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, u32 link, Pci *pci) {
    char value[256];
    int code = link_value(handle, link, "rpci", value);
    if (!code) fill_pci(value, pci);
    return code;
}
int nvmlDeviceGetNvLinkCapability(void *handle, u32 link, u32 which, u32 *value) {
    char out[256], key[16];
    snprintf(key, sizeof key, "cap%u", which);
    int code = link_value(handle, link, "state", out);
    if (code) return code;
    *value = link_value(handle, link, key, out) ? 1 : (u32)atoi(out);
    return OK;
}
int nvmlDeviceGetNvLinkErrorCounter(void *handle, u32 link, u32 which, u64 *value) {
    char out[256], key[16];
    snprintf(key, sizeof key, "err%u", which);
    int code = link_value(handle, link, "state", out);
    if (code) return code;
    *value = link_value(handle, link, key, out) ? 0 : strtoull(out, NULL, 0);
    return OK;
}

static int between(void *one, void *other, const char *name, int *value) {
    Device *a, *b;
    char out[256];
    int code = enter(one, &a);
    if (!code) code = enter(other, &b);
    if (code) return code;
    int low = a->gpu < b->gpu ? a->gpu : b->gpu, high = a->gpu < b->gpu ? b->gpu : a->gpu;
    code = find(out, "pair.%d.%d.%s", low, high, name);
    if (code == UNSUPPORTED) code = find(out, "pair.default.%s", name);
    if (!code) *value = atoi(out);
    return code;
}
int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, int *value) { return between(one, other, "topo", value); }
int nvmlDeviceGetP2PStatus(void *one, void *other, u32 which, int *value) {
    char key[16];
    snprintf(key, sizeof key, "p2p%u", which);
    return between(one, other, key, value);
}

/* --- the NVLink fabric, the rack --- */

typedef struct { u32 version; unsigned char cluster[16]; int status; u32 clique; u32 state; u32 mask; unsigned char summary; } FabricInfo;

int nvmlDeviceGetGpuFabricInfoV(void *handle, FabricInfo *out) {
    if (out->version != 0x03000028 && out->version != 0x02000024) return BAD_VERSION;
    char value[256];
    u32 word;
    int code = small(handle, "fabric.state", &out->state);
    if (code) return code;
    if (out->version == 0x03000028 && flag("fabric.old", device(handle)->gpu)) return BAD_VERSION;
    out->status = small(handle, "fabric.status", &word) ? 0 : (int)word;
    out->clique = small(handle, "fabric.clique", &word) ? 0 : word;
    out->mask = small(handle, "fabric.mask", &word) ? 0 : word;
    if (out->version == 0x03000028) out->summary = small(handle, "fabric.summary", &word) ? 0 : (unsigned char)word;
    memset(out->cluster, 0, 16);
    if (!lookup(handle, value, "fabric.uuid")) {
        int at = 0;
        for (char *from = value; *from && at < 16; from++) {
            u32 byte;
            if (*from == '-') continue;
            if (sscanf(from, "%2x", &byte) != 1) break;
            out->cluster[at++] = (unsigned char)byte;
            if (!*++from) break;
        }
    }
    return OK;
}
typedef struct { u32 version; unsigned char guid[16]; char chassis[16]; unsigned char slot, tray, host, peer, module; } Platform;
int nvmlDeviceGetPlatformInfo(void *handle, Platform *out) {
    char value[256];
    u32 word;
    if (out->version != 0x0200002c) return BAD_VERSION;
    int code = lookup(handle, value, "platform.serial");
    if (code) return code;
    strncpy(out->chassis, value, sizeof out->chassis);
    memset(out->guid, 0xff, sizeof out->guid); /* not text, as on the real thing */
    out->slot = small(handle, "platform.slot", &word) ? 0 : (unsigned char)word;
    out->tray = small(handle, "platform.tray", &word) ? 0 : (unsigned char)word;
    out->host = small(handle, "platform.host", &word) ? 0 : (unsigned char)word;
    out->module = small(handle, "platform.module", &word) ? 0 : (unsigned char)word;
    out->peer = 0;
    return OK;
}

/* --- MIG --- */

int nvmlDeviceGetMigMode(void *handle, u32 *now, u32 *pending) { return two(handle, "migmode", now, pending); }
int nvmlDeviceGetMaxMigDeviceCount(void *handle, u32 *value) { return small(handle, "maxmig", value); }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, u32 part, void **out) {
    Device *it;
    char value[256];
    int code = enter(handle, &it);
    if (code) return code;
    if (part >= PARTS) return INVALID;
    if (find(value, "gpu%d.mig%u.uuid", it->gpu, part)) return NOT_FOUND;
    *out = &devices[it->gpu][part + 1];
    return OK;
}
int nvmlDeviceGetGpuInstanceId(void *handle, u32 *value) { return small(handle, "gi", value); }
int nvmlDeviceGetComputeInstanceId(void *handle, u32 *value) { return small(handle, "ci", value); }

/* --- events --- */

static EventSet sets[4];
static const u64 all_events = 0x1f | 0x8;

int nvmlEventSetCreate(void **set) {
    for (int at = 0; at < 4; at++)
        if (!sets[at].used) {
            sets[at] = (EventSet){.used = 1};
            *set = &sets[at];
            return OK;
        }
    return 999;
}
int nvmlEventSetFree(void *set) { return ((EventSet *)set)->used = 0, OK; }
int nvmlDeviceGetSupportedEventTypes(void *handle, u64 *types) {
    Device *it;
    int code = enter(handle, &it);
    if (code) return code;
    return number(handle, "events", types) ? (*types = all_events, OK) : OK;
}
static long serial(int gpu, u64 *xid) {
    char value[256];
    long at = 0;
    *xid = 0;
    if (!find(value, "gpu%d.xid", gpu)) sscanf(value, "%ld:%llu", &at, xid);
    return at;
}
int nvmlDeviceRegisterEvents(void *handle, u64 types, void *set) {
    Device *it;
    u64 supported, xid;
    int code = enter(handle, &it);
    if (!code) code = nvmlDeviceGetSupportedEventTypes(handle, &supported);
    if (code) return code;
    if (types & ~supported) return UNSUPPORTED;
    EventSet *events = set;
    events->mask[it->gpu] |= types;
    events->seen[it->gpu] = serial(it->gpu, &xid); /* what happened before is not delivered */
    return OK;
}
typedef struct { void *device; u64 type, data; u32 gpu_instance, compute_instance; } Event;
int nvmlEventSetWait_v2(void *set, Event *event, u32 timeout) {
    EventSet *events = set;
    for (u32 waited = 0;; waited += 100) {
        for (int gpu = 0; gpu < GPUS; gpu++) {
            u64 xid;
            if (!(events->mask[gpu] & 8)) continue;
            long at = serial(gpu, &xid);
            if (at <= events->seen[gpu]) continue;
            events->seen[gpu] = at;
            *event = (Event){&devices[gpu][0], 8, xid, ~0u, ~0u};
            return OK;
        }
        if (waited >= timeout) return TIMEOUT;
        usleep(100000);
    }
}
