/* Loaded before the C library: the page at UNREADABLE_OFFSET of the file with the inode UNREADABLE_INODE cannot be read.
 * As from a real disk, a read returns the bytes before the page, and a read that begins in it fails. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t pread64(int file, void *bytes, size_t length, off64_t offset) {
    struct stat about;
    off64_t page = strtoll(getenv("UNREADABLE_OFFSET"), NULL, 10);
    int has_page = fstat(file, &about) == 0 && about.st_ino == strtoull(getenv("UNREADABLE_INODE"), NULL, 10);
    if (has_page && offset < page + 4096 && page < offset + (off64_t)length) {
        if (offset >= page) {
            errno = EIO;
            return -1;
        }
        length = page - offset;
    }
    return syscall(SYS_pread64, file, bytes, length, offset);
}
