/* Preloaded before libc: lets the n-th write, sync or truncation of a file below a folder fail.

   A write that fails leaves its first half in the file, as a full disk may. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long failing, calls, lasting, code;

/* From now on call number `nth` (from 1) below `where` fails with `error`; all after it too where
   `forever` is not 0. */
void disk_arm(const char *where, long nth, long error, long forever)
{
    snprintf(folder, sizeof folder, "%s", where);
    failing = nth;
    code = error;
    lasting = forever;
    calls = 0;
}

/* Nothing fails any more. Returns how many calls there were. */
long disk_disarm(void)
{
    failing = 0;
    folder[0] = 0;
    return calls;
}

static int fails(int file)
{
    char link[64], path[PATH_MAX];
    ssize_t length;
    if (!folder[0])
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0 || strncmp(path, folder, strlen(folder)) != 0)
        return 0;
    calls++;
    if (!failing || calls < failing || (calls > failing && !lasting))
        return 0;
    errno = (int)code;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define HALF(real)                                                                                 \
    do {                                                                                           \
        ssize_t written = real;                                                                    \
        (void)written;                                                                             \
        errno = (int)code;                                                                         \
        return -1;                                                                                 \
    } while (0)

ssize_t write(int file, const void *data, size_t size)
{
    if (fails(file))
        HALF(REAL(write)(file, data, size / 2));
    return REAL(write)(file, data, size);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t place)
{
    if (fails(file))
        HALF(REAL(pwrite)(file, data, size / 2, place));
    return REAL(pwrite)(file, data, size, place);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t place)
{
    if (fails(file))
        HALF(REAL(pwrite64)(file, data, size / 2, place));
    return REAL(pwrite64)(file, data, size, place);
}

int fsync(int file) { return fails(file) ? -1 : REAL(fsync)(file); }

int fdatasync(int file) { return fails(file) ? -1 : REAL(fdatasync)(file); }

int ftruncate(int file, off_t size) { return fails(file) ? -1 : REAL(ftruncate)(file, size); }

int ftruncate64(int file, off64_t size) { return fails(file) ? -1 : REAL(ftruncate64)(file, size); }
