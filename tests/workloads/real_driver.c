/* Calls entry points of a real driver library as it is told, and says what they answer. Without a GPU
 * they all fail, but they are called as any program calls them.
 *
 *     cc -O1 real_driver.c -ldl -o real_driver; ./real_driver LIBRARY [ANOTHER...]
 *
 * Loads the libraries, calls cuInit if the first one has it, and prints a JSON line. Then reads commands, one a line, and
 * answers each but `poke` with a JSON line. Numbers are hexadecimal.
 *
 *     poke ADDRESS VALUE            a word of the scratch memory at SCRATCH, which is zeros at first
 *     dlsym NAME A B C D E [X Y Z]  calls an export, with X Y Z in memory
 *     proc GETTER NAME BASE A B ... calls what GETTER (cuGetProcAddress or _v2) has for BASE in the first
 *                                   version of the API in which that is the export NAME
 *     resolve GETTER BASE           the exports that GETTER has for BASE in any version */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define SCRATCH 0x5a0000000000ul
#define SCRATCH_BYTES (1ul << 20)

/* Whatever the signature is: the first six arguments are in registers, and a struct that is passed by
 * value (cuIpcOpenMemHandle) is on the stack, where the rest is. */
typedef int call(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                 uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
typedef int getter(const char *, void **, int, uint64_t, int *);

static void *libraries[4];
static int library_count;

static void *find(const char *name) {
    for (int i = 0; i < library_count; i++) {
        void *found = dlsym(libraries[i], name);
        if (found) return found;
    }
    return NULL;
}

static void answer(const char *name, void *function, const uint64_t *a) {
    if (!function) {
        printf("{\"call\": \"%s\", \"result\": null}\n", name);
        return;
    }
    int result = ((call *)function)(a[0], a[1], a[2], a[3], a[4], 0, a[5], a[6], a[7], 0, 0, 0, 0, 0);
    printf("{\"call\": \"%s\", \"result\": %d}\n", name, result);
}

static const int versions[] = {
    1000, 2000, 2010, 2020, 3000, 3010, 3020, 4000, 4010, 5000, 5050, 6000, 6050, 7000, 8000, 9000,
    10000, 10020, 11000, 11010, 11020, 11030, 11040, 11060, 12000, 12010, 12020, 12030, 12040, 12050,
};
#define VERSIONS (sizeof versions / sizeof *versions)

/* What a getter has for a name; flag 2 asks for the functions with a default stream per thread. */
static void *get(const char *getter_name, const char *base, int version, int flags) {
    void *found = NULL;
    int status = 0;
    getter *function = (getter *)find(getter_name);
    if (!function || function(base, &found, version, flags, &status)) return NULL;
    return found;
}

static void *get_export(const char *getter_name, const char *name, const char *base) {
    void *wanted = find(name);
    for (size_t i = 0; wanted && i < VERSIONS; i++)
        for (int flags = 0; flags < 3; flags++)
            if (get(getter_name, base, versions[i], flags) == wanted) return wanted;
    return NULL;
}

static void resolve(const char *getter_name, const char *base) {
    const char *names[64];
    int count = 0;
    printf("{\"names\": [");
    for (size_t i = 0; i < VERSIONS; i++) {
        for (int flags = 0; flags < 3; flags++) {
            void *found = get(getter_name, base, versions[i], flags);
            if (!found) continue;
            Dl_info info;
            int exported = dladdr(found, &info) && info.dli_saddr == found;
            const char *name = exported ? info.dli_sname : "?";
            int known = 0;
            for (int k = 0; k < count; k++) known |= !strcmp(names[k], name);
            if (known || count == 64) continue;
            printf("%s\"%s\"", count ? ", " : "", name);
            names[count++] = name;
        }
    }
    printf("]}\n");
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc && i <= 4; i++) {
        libraries[library_count] = dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL);
        if (!libraries[library_count++]) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
    }
    void *scratch = mmap((void *)SCRATCH, SCRATCH_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (scratch != (void *)SCRATCH) return 1;
    int (*init)(unsigned) = (int (*)(unsigned))find("cuInit");
    printf("{\"init\": %d}\n", init ? init(0) : 0);

    char line[512], getter_name[64], name[64], base[64];
    while (fgets(line, sizeof line, stdin)) {
        uint64_t a[8] = {0};
        if (sscanf(line, "poke %lx %lx", &a[0], &a[1]) == 2) {
            *(volatile uint64_t *)a[0] = a[1];
        } else if (sscanf(line, "dlsym %63s %lx %lx %lx %lx %lx %lx %lx %lx", name, &a[0], &a[1],
                          &a[2], &a[3], &a[4], &a[5], &a[6], &a[7]) >= 6) {
            answer(name, find(name), a);
        } else if (sscanf(line, "proc %63s %63s %63s %lx %lx %lx %lx %lx", getter_name, name, base,
                          &a[0], &a[1], &a[2], &a[3], &a[4]) == 8) {
            answer(name, get_export(getter_name, name, base), a);
        } else if (sscanf(line, "resolve %63s %63s", getter_name, base) == 2) {
            resolve(getter_name, base);
        } else {
            fprintf(stderr, "what is: %s", line);
            return 1;
        }
    }
    return 0;
}
