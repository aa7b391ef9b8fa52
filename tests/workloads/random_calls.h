/* Random calls from several threads, and a count of what they should have left: what driver_calls.c and
 * runtime_calls.c share. Including files say what an item is (`struct item`, at least with `kind`,
 * `device`, `address` and `size`), what else a thread has (`struct state`), and define the functions
 * that are declared here.
 *
 * Prints one JSON line per quiet point, at which all threads stand still. With --wait it then waits
 * for a line on standard input, so that a tracer can be asked at the same moment. */
#ifndef RANDOM_CALLS_H
#define RANDOM_CALLS_H

#include "sim.h"

#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { MAX_LIVE = 1024 };

struct worker {
    pthread_t thread;
    uint64_t random;
    uint64_t calls, failed;
    struct item items[MAX_LIVE];
    int live;
    struct state is;
};

/* What a kind of item counts as. */
enum account { OF_DEVICE, PINNED, IMPORTED };
static enum account account_of(int kind);
/* What a thread does: before a round, in it, and before a quiet point. */
static void begin_round(struct worker *w, int round);
static void one_step(struct worker *w);
static void end_round(struct worker *w);
/* What the main thread does at a quiet point, while the others wait, and what each thread then forgets. */
static void change_at_quiet_point(struct worker *w, int round);
static int is_gone(const struct item *item);
/* Frees an item, or goes a step towards it; false while it is there. */
static int let_go(struct worker *w, struct item *item, int towards_end);

uint64_t cudasim_allocated_bytes(int);
uint64_t cudasim_pinned_bytes(void);
uint64_t cudasim_imported(void);

static uint64_t calls = 1000000, seed = 1;
static int threads = 4, devices = 2, quiet_points = 10, max_live = 200, wait_for_line;
static struct worker *workers;
static pthread_barrier_t barrier;

/* What has to be in use, and how often device memory and page-locked memory were allocated. */
static _Atomic uint64_t bytes[MAX_DEVICES], pinned, imported, device_blocks, pinned_blocks;

static void die(const char *what) {
    fprintf(stderr, "random calls: %s\n", what);
    exit(1);
}

/* --- chance --- */

static uint64_t next(struct worker *w) { /* splitmix64 */
    uint64_t z = w->random += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static int pick(struct worker *w, int choices) { return (int)(next(w) % (uint64_t)choices); }

/* From 1 B to 1 GiB, evenly over the powers of two, but only one in eight above 1 MiB. */
static uint64_t pick_size(struct worker *w) {
    int power = pick(w, 8) ? pick(w, 21) : 21 + pick(w, 10);
    return 1 + next(w) % (1ull << power);
}

/* --- counting --- */

static int counted(struct worker *w, int result) {
    w->calls++;
    w->failed += result != 0;
    return result;
}
#define CALL(call) counted(w, call)

/* Books an item: in, or out again. */
static void book(const struct item *item, int in) {
    switch (account_of(item->kind)) {
    case OF_DEVICE:
        bytes[item->device] += in ? item->size : -item->size;
        device_blocks += in != 0;
        break;
    case PINNED:
        pinned += in ? item->size : -item->size;
        pinned_blocks += in != 0;
        break;
    case IMPORTED: imported += in ? 1 : -1ull;
    }
}

static void keep(struct worker *w, struct item item) {
    book(&item, 1);
    w->items[w->live++] = item;
}

static void forget(struct worker *w, int at) {
    book(&w->items[at], 0);
    w->items[at] = w->items[--w->live];
}

static void free_one(struct worker *w) {
    int at = pick(w, w->live);
    if (let_go(w, &w->items[at], 0)) forget(w, at);
}

/* Elements of an array and the `levels` - 1 smaller ones that go with it, each of half the dimensions. */
static uint64_t elements(size_t width, size_t height, size_t depth, unsigned levels, int layered) {
    uint64_t sum = 0;
    for (unsigned level = 0; level < levels; level++) {
        size_t w = width >> level, h = height >> level, d = layered ? depth : depth >> level;
        sum += (w ? w : 1) * (h ? h : 1) * (d ? d : 1);
        if (w <= 1 && h <= 1 && (layered || d <= 1)) break;
    }
    return sum;
}

/* --- the run --- */

static void *work(void *argument) {
    struct worker *w = argument;
    uint64_t quota = calls / (uint64_t)(quiet_points * threads);
    for (int round = 1; round <= quiet_points; round++) {
        begin_round(w, round);
        while (w->calls < quota * (uint64_t)round) one_step(w);
        end_round(w);
        pthread_barrier_wait(&barrier);
        /* The main thread changes something here. */
        pthread_barrier_wait(&barrier);
        for (int i = 0; i < w->live;)
            if (is_gone(&w->items[i])) forget(w, i);
            else i++;
        pthread_barrier_wait(&barrier);
        /* The main thread reports here. */
        pthread_barrier_wait(&barrier);
    }
    while (w->live)
        if (let_go(w, &w->items[w->live - 1], 1)) forget(w, w->live - 1);
    return NULL;
}

static void wait_line(void) {
    int letter;
    while (wait_for_line && (letter = getchar()) != EOF && letter != '\n')
        ;
}

static void expect(const char *what, uint64_t found, uint64_t wanted) {
    if (found == wanted) return;
    fprintf(stderr, "random calls: %s: the driver counts %llu, the workload %llu\n", what,
            (unsigned long long)found, (unsigned long long)wanted);
    exit(1);
}

static void report(int number, const struct worker *w) {
    uint64_t made = w->calls, failed = w->failed;
    for (int i = 0; i < threads; i++) {
        made += workers[i].calls;
        failed += workers[i].failed;
    }
    printf("{\"quiet\":%d,\"devices\":[", number);
    for (int i = 0; i < devices; i++) {
        uint64_t driver = cudasim_allocated_bytes(i);
        expect("bytes of a device", driver, bytes[i]);
        printf("%s{\"driver\":%llu}", i ? "," : "", (unsigned long long)driver);
    }
    expect("pinned bytes", cudasim_pinned_bytes(), pinned);
    expect("imported memory", cudasim_imported(), imported);
    printf("],\"pinned\":%llu,\"imported\":%llu,\"calls\":%llu,\"failed\":%llu,"
           "\"device_blocks\":%llu,\"pinned_blocks\":%llu}\n",
           (unsigned long long)pinned, (unsigned long long)imported, (unsigned long long)made,
           (unsigned long long)failed, (unsigned long long)device_blocks,
           (unsigned long long)pinned_blocks);
    fflush(stdout);
    wait_line();
}

static void read_arguments(int count, char **values) {
    static const struct option options[] = {
        {"calls", required_argument, NULL, 'c'},    {"threads", required_argument, NULL, 't'},
        {"devices", required_argument, NULL, 'd'},  {"quiet-points", required_argument, NULL, 'q'},
        {"max-live", required_argument, NULL, 'l'}, {"seed", required_argument, NULL, 's'},
        {"wait", no_argument, NULL, 'w'},           {NULL, 0, NULL, 0},
    };
    for (int option; (option = getopt_long(count, values, "", options, NULL)) != -1;) {
        switch (option) {
        case 'c': calls = strtoull(optarg, NULL, 10); break;
        case 't': threads = atoi(optarg); break;
        case 'd': devices = atoi(optarg); break;
        case 'q': quiet_points = atoi(optarg); break;
        case 'l': max_live = atoi(optarg); break;
        case 's': seed = strtoull(optarg, NULL, 10); break;
        case 'w': wait_for_line = 1; break;
        default: exit(2);
        }
    }
    if (threads < 1 || devices < 1 || devices > MAX_DEVICES || quiet_points < 1 || max_live < 1 ||
        max_live > MAX_LIVE)
        die("arguments out of range");
}

/* Tells that it is there, and waits to be let go. */
static void begin(int count, char **values) {
    read_arguments(count, values);
    printf("{\"ready\":true}\n");
    fflush(stdout);
    wait_line();
}

/* Every thread's work; `w` counts the calls of the main one. */
static int run(struct worker *w) {
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    workers = calloc((size_t)threads, sizeof *workers);
    for (int i = 0; i < threads; i++) {
        workers[i].random = seed * 1000 + (uint64_t)i + 1;
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (int round = 1; round <= quiet_points; round++) {
        pthread_barrier_wait(&barrier);
        change_at_quiet_point(w, round);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        report(round, w);
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
    report(quiet_points + 1, w);
    printf("{\"done\":true}\n");
    return 0;
}

#endif
