/* Preloaded into a command, disturbs its system calls as these variables say:
 *   FAULT_FSYNC_MS=300      fsync takes so long (a slow disk; a save has a middle to be hit in)
 *   FAULT_RENAME=gap        rename first removes its target, and gives the name FAULT_RENAME_MS later
 *   FAULT_RENAME=repeated   rename succeeds and then reports ENOENT, as NFS does when the answer to a
 *                           request was lost and the client has sent it again; every third time
 *   FAULT_CLOCK_S=-86400    the clock is so much off, FAULT_CLOCK_AFTER_S seconds after the start */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*real_clock)(clockid_t, struct timespec *);
static struct timespec began;

static long number(const char *name) {
    const char *given = getenv(name);
    return given ? atol(given) : 0;
}

static void find_clock(void) {
    if (real_clock) return;
    real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    real_clock(CLOCK_MONOTONIC, &began);
}

static void pause_ms(long ms) {
    struct timespec time = {ms / 1000, (ms % 1000) * 1000000};
    if (ms > 0) nanosleep(&time, NULL);
}

int fsync(int descriptor) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    pause_ms(number("FAULT_FSYNC_MS"));
    return real(descriptor);
}

int rename(const char *source, const char *target) {
    static int (*real)(const char *, const char *);
    static int calls;
    const char *mode = getenv("FAULT_RENAME");
    if (!real) real = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    if (mode && !strcmp(mode, "gap") && !access(target, F_OK) && !access(source, F_OK)) {
        unlink(target);
        pause_ms(number("FAULT_RENAME_MS"));
    }
    int result = real(source, target);
    if (mode && !strcmp(mode, "repeated") && result == 0 && ++calls % 3 == 0) {
        errno = ENOENT;
        return -1;
    }
    return result;
}

static long offset(void) {
    long seconds = number("FAULT_CLOCK_S");
    if (!seconds) return 0;
    struct timespec now;
    find_clock();
    real_clock(CLOCK_MONOTONIC, &now);
    return now.tv_sec - began.tv_sec >= number("FAULT_CLOCK_AFTER_S") ? seconds : 0;
}

int clock_gettime(clockid_t id, struct timespec *found) {
    find_clock();
    int result = real_clock(id, found);
    if (result == 0 && id == CLOCK_REALTIME) found->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *found, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
