/* Loaded before the C library: the page at UNREADABLE_OFFSET of the file with the inode UNREADABLE_INODE cannot be read.
 * As from a real disk, a read returns the bytes before the page, and a read that begins in it fails. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int has_page(int file) {
    struct stat about;
    return fstat(file, &about) == 0 && about.st_ino == strtoull(getenv("UNREADABLE_INODE"), NULL, 10);
}

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t length, unsigned flags) {
    if (has_page(from)) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_copy_file_range, from, from_offset, to, to_offset, length, flags);
}

ssize_t pread64(int file, void *bytes, size_t length, off64_t offset) {
    off64_t page = strtoll(getenv("UNREADABLE_OFFSET"), NULL, 10);
    if (has_page(file) && offset < page + 4096 && page < offset + (off64_t)length) {
        if (offset >= page) {
            errno = EIO;
            return -1;
        }
        length = page - offset;
    }
    return syscall(SYS_pread64, file, bytes, length, offset);
}
