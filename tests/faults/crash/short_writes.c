/* Loaded before the C library: every SHORT_WRITES-th write to a file writes only the first half of what it was given,
 * and says so. That is what a kernel may do, unlike a call that claims to have written what it did not. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static size_t some_of(int file, size_t length) {
    static atomic_ulong calls;
    struct stat about;
    unsigned long every = strtoul(getenv("SHORT_WRITES"), NULL, 10);
    int shorten = length > 1 && fstat(file, &about) == 0 && S_ISREG(about.st_mode)
        && atomic_fetch_add(&calls, 1) % every == every - 1;
    return shorten ? length / 2 : length;
}

ssize_t write(int file, const void *bytes, size_t length) {
    return syscall(SYS_write, file, bytes, some_of(file, length));
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t offset) {
    return syscall(SYS_pwrite64, file, bytes, some_of(file, length), offset);
}

ssize_t pwrite(int file, const void *bytes, size_t length, off_t offset) {
    return pwrite64(file, bytes, length, offset);
}
