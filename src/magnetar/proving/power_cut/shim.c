/* Writes down what a process does to the files below POWER_ROOT, as a power cut would see it, into
 * the file POWER_TRACE; kills the process before its POWER_CUT_AFTER-th change. Preloaded
 * (LD_PRELOAD). What the trace means, and what a power cut leaves of it: trace.py, cut.py.
 *
 * Rules:
 * - A change is written down behind the call that made it, by the same thread, before that returns:
 *   nobody has been told of a change that is not in the trace. A sync is written down when it begins
 *   and when it has worked: it covers what was written down before it began.
 * - One writev to a file opened with O_APPEND per record: records of threads do not mix.
 * - What cannot be written down (a copy within the kernel) is said, and whoever reads the trace
 *   refuses it. Of a shared writable mapping is said which file it is of, and not what comes of it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPENED = 1, CREATED, WRITTEN, SYNC_BEGUN, SYNCED, TRUNCATED, RENAMED, REMOVED, MADE, PUNCHED,
       ALLOCATED, UNKNOWN, LINKED, MAPPED };

#define FDS 65536
#define DURABLE 1

struct record {
    uint32_t magic;
    uint32_t kind;
    uint64_t inode;
    int64_t first, second;
    uint32_t flags, path_bytes, other_bytes, data_bytes;
};

static const char *root;
static size_t root_bytes;
static int trace = -1;
static long cut_after;
static atomic_long changes;
static atomic_long syncs;
static _Atomic uint64_t inodes[FDS]; /* by descriptor; 0: not below the root */

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("POWER_TRACE"), *after = getenv("POWER_CUT_AFTER");
    root = getenv("POWER_ROOT");
    if (!root || !path) return;
    root_bytes = strlen(root);
    cut_after = after ? atol(after) : 0;
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    trace = fd < 0 ? -1 : (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 900);
    if (trace < 0) { trace = fd; }
    if (trace < 0) { perror("POWER_TRACE"); _exit(97); }
    unsetenv("LD_PRELOAD"); /* children are not ours */
}

static int below(const char *path)
{
    return trace >= 0 && path && !strncmp(path, root, root_bytes) &&
           (path[root_bytes] == '/' || !path[root_bytes]);
}

static uint64_t inode_of(int fd) { return fd >= 0 && fd < FDS ? inodes[fd] : 0; }

static void note(uint32_t kind, uint64_t inode, int64_t first, int64_t second, uint32_t flags,
                 const char *path, const char *other, const struct iovec *data, int count,
                 size_t data_bytes)
{
    struct record head = {0x504f5752, kind, inode, first, second, flags,
                          path ? strlen(path) : 0, other ? strlen(other) : 0, data_bytes};
    struct iovec parts[1024];
    int used = 0, kept = errno;
    size_t left = data_bytes;
    char *joined = NULL;
    struct iovec whole;
    if (count > 1000) { /* no call takes more than 1024 parts */
        joined = malloc(data_bytes);
        size_t at = 0;
        for (int i = 0; i < count && at < data_bytes; i++) {
            size_t size = data[i].iov_len < data_bytes - at ? data[i].iov_len : data_bytes - at;
            memcpy(joined + at, data[i].iov_base, size);
            at += size;
        }
        whole = (struct iovec){joined, at};
        data = &whole;
        count = 1;
    }
    parts[used++] = (struct iovec){&head, sizeof head};
    if (path) parts[used++] = (struct iovec){(void *)path, head.path_bytes};
    if (other) parts[used++] = (struct iovec){(void *)other, head.other_bytes};
    for (int i = 0; i < count && left && used < 1024; i++) {
        size_t size = data[i].iov_len < left ? data[i].iov_len : left;
        if (size) parts[used++] = (struct iovec){data[i].iov_base, size};
        left -= size;
    }
    size_t all = sizeof head + head.path_bytes + head.other_bytes + data_bytes;
    long done = syscall(SYS_writev, trace, parts, used);
    if (done != (long)all || left) { /* half a record: nothing behind it could be read */
        static const char text[] = "power shim: the trace cannot be written\n";
        syscall(SYS_write, 2, text, sizeof text - 1);
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    }
    free(joined);
    errno = kept;
}

static int exists(const char *path)
{
    struct stat found;
    int kept = errno;
    int there = !syscall(SYS_newfstatat, AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW);
    errno = kept;
    return there;
}

/* Before each change: whether the power goes now, with the change on its way. */
static int goes(void) { return cut_after && atomic_fetch_add(&changes, 1) + 1 == cut_after; }
static void cut(void)
{
    for (;;) syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
}

static void unknown(const char *what) { note(UNKNOWN, 0, 0, 0, 0, what, 0, 0, 0, 0); }

/* -- names ---------------------------------------------------------------------------------- */

static void bind_fd(int fd, const char *path, int created, int flags)
{
    struct stat found;
    if (fd < 0 || fd >= FDS || fstat(fd, &found)) return;
    inodes[fd] = found.st_ino;
    note(created ? CREATED : OPENED, found.st_ino, 0, 0, 0, path, 0, 0, 0, 0);
    if (!created && (flags & O_TRUNC)) note(TRUNCATED, found.st_ino, 0, 0, 0, 0, 0, 0, 0, 0);
}

static int opened(int at, const char *path, int flags, mode_t mode)
{
    if (!below(path)) return syscall(SYS_openat, at, path, flags, mode);
    struct stat found;
    int created = (flags & O_CREAT) && syscall(SYS_newfstatat, AT_FDCWD, path, &found, 0);
    if (created && goes()) {
        note(CREATED, 0, 0, 0, 0, path, 0, 0, 0, 0);
        cut();
    }
    int fd = syscall(SYS_openat, at, path, flags, mode);
    bind_fd(fd, path, created, flags);
    return fd;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return opened(AT_FDCWD, path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) \
    { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return opened(at, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
int creat(const char *path, mode_t mode)
{
    return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* A stream writes within the C library, unseen: what goes through one is lost with the power. */
static FILE *streamed(FILE *(*real)(const char *, const char *), const char *path, const char *how)
{
    struct stat found;
    int made = below(path) && strpbrk(how, "wa+") &&
               syscall(SYS_newfstatat, AT_FDCWD, path, &found, 0);
    FILE *file = real(path, how);
    if (made && file && !fstat(fileno(file), &found))
        note(CREATED, found.st_ino, 0, 0, 0, path, 0, 0, 0, 0);
    return file;
}
FILE *fopen(const char *path, const char *how) { REAL(fopen); return streamed(real, path, how); }
FILE *fopen64(const char *path, const char *how) { REAL(fopen64); return streamed(real, path, how); }

static void forgotten(int fd)
{
    if (fd >= 0 && fd < FDS && fd != trace) inodes[fd] = 0;
}
int close(int fd)
{
    forgotten(fd);
    return syscall(SYS_close, fd);
}
/* These close within the C library; the descriptor may be another's a moment later. */
int closedir(DIR *folder)
{
    REAL(closedir);
    forgotten(dirfd(folder));
    return real(folder);
}
int fclose(FILE *file)
{
    REAL(fclose);
    forgotten(fileno(file));
    return real(file);
}

static int copied(int old, int fd)
{
    if (fd >= 0 && fd < FDS) inodes[fd] = inode_of(old);
    return fd;
}
int dup(int old) { return copied(old, syscall(SYS_dup, old)); }
int dup2(int old, int fd) { REAL(dup2); return copied(old, real(old, fd)); }
int dup3(int old, int fd, int flags) { return copied(old, syscall(SYS_dup3, old, fd, flags)); }
static int controlled(int fd, int what, void *value)
{
    int found = syscall(SYS_fcntl, fd, what, value);
    return what == F_DUPFD || what == F_DUPFD_CLOEXEC ? copied(fd, found) : found;
}
#define FCNTL(name) \
    int name(int fd, int what, ...) \
    { \
        va_list more; \
        va_start(more, what); \
        void *value = va_arg(more, void *); \
        va_end(more); \
        return controlled(fd, what, value); \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

static int renamed(int from, const char *old, int to, const char *new, unsigned flags)
{
    int ours = below(old) || below(new);
    if (ours && flags) unknown("renameat2 with flags");
    if (ours && goes()) {
        if (exists(old)) note(RENAMED, 0, 0, 0, 0, old, new, 0, 0, 0);
        cut();
    }
    int failed = syscall(SYS_renameat2, from, old, to, new, flags);
    if (ours && !failed) note(RENAMED, 0, 0, 0, 0, old, new, 0, 0, 0);
    return failed;
}
int rename(const char *old, const char *new) { return renamed(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new)
{
    return renamed(from, old, to, new, 0);
}
int renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
    return renamed(from, old, to, new, flags);
}

static int linked(int from, const char *old, int to, const char *new, int flags)
{
    if (below(new) && goes()) {
        if (!exists(new)) note(LINKED, 0, 0, 0, 0, old, new, 0, 0, 0);
        cut();
    }
    int failed = syscall(SYS_linkat, from, old, to, new, flags);
    if (below(new) && !failed) note(LINKED, 0, 0, 0, 0, old, new, 0, 0, 0);
    return failed;
}
int link(const char *old, const char *new) { return linked(AT_FDCWD, old, AT_FDCWD, new, 0); }
int linkat(int from, const char *old, int to, const char *new, int flags)
{
    return linked(from, old, to, new, flags);
}

static int removed(int at, const char *path, int flags)
{
    int ours = below(path);
    if (ours && goes()) {
        if (exists(path)) note(REMOVED, 0, 0, 0, 0, path, 0, 0, 0, 0);
        cut();
    }
    int failed = syscall(SYS_unlinkat, at, path, flags);
    if (ours && !failed) note(REMOVED, 0, 0, 0, 0, path, 0, 0, 0, 0);
    return failed;
}
int unlink(const char *path) { return removed(AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { return removed(at, path, flags); }
int rmdir(const char *path) { return removed(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path)
{
    struct stat found;
    int failed = syscall(SYS_newfstatat, AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW);
    return failed ? failed : removed(AT_FDCWD, path, S_ISDIR(found.st_mode) ? AT_REMOVEDIR : 0);
}

static int made(int at, const char *path, mode_t mode)
{
    int ours = below(path);
    if (ours && goes()) {
        if (!exists(path)) note(MADE, 0, 0, 0, 0, path, 0, 0, 0, 0);
        cut();
    }
    int failed = syscall(SYS_mkdirat, at, path, mode);
    struct stat found;
    if (ours && !failed && !syscall(SYS_newfstatat, AT_FDCWD, path, &found, 0))
        note(MADE, found.st_ino, 0, 0, 0, path, 0, 0, 0, 0);
    return failed;
}
int mkdir(const char *path, mode_t mode) { return made(AT_FDCWD, path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { return made(at, path, mode); }

/* -- bytes ---------------------------------------------------------------------------------- */

static size_t total(const struct iovec *parts, int count)
{
    size_t sum = 0;
    for (int i = 0; i < count; i++) sum += parts[i].iov_len;
    return sum;
}

/* How a descriptor was opened may make each write durable. */
static uint32_t through(int fd)
{
    int flags = syscall(SYS_fcntl, fd, F_GETFL);
    return flags >= 0 && (flags & O_DSYNC) ? DURABLE : 0;
}

static void wrote(int fd, const struct iovec *parts, int count, int64_t offset, ssize_t done,
                  uint32_t flags)
{
    if (done > 0) note(WRITTEN, inode_of(fd), offset, 0, flags, 0, 0, parts, count, done);
}

static ssize_t written(int fd, const struct iovec *parts, int count)
{
    int64_t start = -1;
    if (inode_of(fd) && goes()) {
        start = syscall(SYS_lseek, fd, 0, SEEK_CUR);
        wrote(fd, parts, count, start, total(parts, count), 0);
        cut();
    }
    ssize_t done = syscall(SYS_writev, fd, parts, count);
    if (inode_of(fd) && done > 0) {
        start = syscall(SYS_lseek, fd, 0, SEEK_CUR) - done;
        wrote(fd, parts, count, start, done, through(fd));
    }
    return done;
}
ssize_t write(int fd, const void *data, size_t size)
{
    if (!inode_of(fd)) return syscall(SYS_write, fd, data, size);
    struct iovec part = {(void *)data, size};
    return written(fd, &part, 1);
}
ssize_t writev(int fd, const struct iovec *parts, int count)
{
    if (!inode_of(fd)) return syscall(SYS_writev, fd, parts, count);
    return written(fd, parts, count);
}

static ssize_t placed(int fd, const struct iovec *parts, int count, int64_t offset, int flags)
{
    if (inode_of(fd) && goes()) {
        wrote(fd, parts, count, offset, total(parts, count), 0);
        cut();
    }
    ssize_t done = syscall(SYS_pwritev2, fd, parts, count, offset, 0, flags);
    if (inode_of(fd) && done > 0)
        wrote(fd, parts, count, offset, done,
              flags & (RWF_DSYNC | RWF_SYNC) ? DURABLE : through(fd));
    return done;
}
#define PWRITE(name, type) \
    ssize_t name(int fd, const void *data, size_t size, type offset) \
    { \
        struct iovec part = {(void *)data, size}; \
        return placed(fd, &part, 1, offset, 0); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    return placed(fd, parts, count, offset, 0);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset)
{
    return placed(fd, parts, count, offset, 0);
}
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    return placed(fd, parts, count, offset, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags)
{
    return placed(fd, parts, count, offset, flags);
}

static int truncated(int fd, int64_t size)
{
    if (inode_of(fd) && goes()) {
        note(TRUNCATED, inode_of(fd), size, 0, 0, 0, 0, 0, 0, 0);
        cut();
    }
    int failed = syscall(SYS_ftruncate, fd, size);
    if (inode_of(fd) && !failed) note(TRUNCATED, inode_of(fd), size, 0, 0, 0, 0, 0, 0, 0);
    return failed;
}
int ftruncate(int fd, off_t size) { return truncated(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncated(fd, size); }
int truncate(const char *path, off_t size)
{
    if (below(path)) unknown("truncate by path");
    return syscall(SYS_truncate, path, size);
}
int truncate64(const char *path, off64_t size) { return truncate(path, size); }

static int allocated(int fd, int mode, int64_t offset, int64_t size)
{
    int punch = mode & FALLOC_FL_PUNCH_HOLE;
    if (inode_of(fd) && (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE)))
        unknown("fallocate with a mode");
    if (inode_of(fd) && goes()) {
        note(punch ? PUNCHED : ALLOCATED, inode_of(fd), offset, size, mode, 0, 0, 0, 0, 0);
        cut();
    }
    int failed = syscall(SYS_fallocate, fd, mode, offset, size);
    if (inode_of(fd) && !failed)
        note(punch ? PUNCHED : ALLOCATED, inode_of(fd), offset, size, mode, 0, 0, 0, 0, 0);
    return failed;
}
int fallocate(int fd, int mode, off_t offset, off_t size) { return allocated(fd, mode, offset, size); }
int fallocate64(int fd, int mode, off64_t offset, off64_t size)
{
    return allocated(fd, mode, offset, size);
}
int posix_fallocate(int fd, off_t offset, off_t size)
{
    return allocated(fd, 0, offset, size) ? errno : 0;
}
int posix_fallocate64(int fd, off64_t offset, off64_t size)
{
    return allocated(fd, 0, offset, size) ? errno : 0;
}

static int synced(int fd, long call)
{
    uint64_t inode = inode_of(fd);
    if (!inode) return syscall(call, fd);
    long token = atomic_fetch_add(&syncs, 1);
    int now = goes();
    note(SYNC_BEGUN, inode, token, 0, 0, 0, 0, 0, 0, 0);
    if (now) cut();
    int failed = syscall(call, fd);
    if (!failed) note(SYNCED, inode, token, 0, 0, 0, 0, 0, 0, 0);
    return failed;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }
/* sync_file_range makes nothing durable: neither the device's cache nor what finds the bytes. */

static void *mapped(void *at, size_t size, int access, int flags, int fd, int64_t offset)
{
    if (inode_of(fd) && (access & PROT_WRITE) && (flags & MAP_SHARED))
        note(MAPPED, inode_of(fd), 0, 0, 0, 0, 0, 0, 0, 0);
    return (void *)syscall(SYS_mmap, at, size, access, flags, fd, offset);
}
void *mmap(void *at, size_t size, int access, int flags, int fd, off_t offset)
{
    return mapped(at, size, access, flags, fd, offset);
}
void *mmap64(void *at, size_t size, int access, int flags, int fd, off64_t offset)
{
    return mapped(at, size, access, flags, fd, offset);
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags)
{
    if (inode_of(out)) unknown("copy_file_range");
    return syscall(SYS_copy_file_range, in, from, out, to, size, flags);
}
ssize_t sendfile(int out, int in, off_t *from, size_t size)
{
    if (inode_of(out)) unknown("sendfile");
    return syscall(SYS_sendfile, out, in, from, size);
}
