/* The inner loops over bytes, in C. Each function here has a twin of the same name in Python
 * (magnetar/speedups/), which says what it does: argument by argument, answer by answer. The two are
 * compared by tests and by a fuzzer, also under sanitizers (docs/adr/0121-a-native-module-with-twins.md).
 *
 * Rules:
 *
 * - No state, no I/O, no decision. What is not of the usual shape is left to the caller: a function
 *   stops before it, or answers None. So no error of a protocol is raised here.
 * - What comes off the wire is read inside of [start, end) only, after a look whether it is there.
 * - Payloads are copied once at most. Long loops over bytes give the interpreter's lock away, with
 *   a reference of their own to all that they read.
 * - Only the limited API of Python 3.11, so that one build serves all later versions.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef TABLE_CRC /* a build that tries the tables where there is an instruction */
#elif defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HARDWARE_CRC __attribute__((target("sse4.2")))
#define CRC_WORD(crc, word) _mm_crc32_u64(crc, word)
#define CRC_BYTE(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)
static int has_hardware_crc(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__)
#include <arm_acle.h>
#include <sys/auxv.h>
#ifdef __clang__
#define HARDWARE_CRC __attribute__((target("crc")))
#else
#define HARDWARE_CRC __attribute__((target("+crc")))
#endif
#define CRC_WORD(crc, word) __crc32cd((uint32_t)(crc), word)
#define CRC_BYTE(crc, byte) __crc32cb((uint32_t)(crc), byte)
static int has_hardware_crc(void) {
    return (getauxval(AT_HWCAP) & (1UL << 7)) != 0; /* HWCAP_CRC32 */
}
#endif

#define INTERFACE 6 /* magnetar/speedups/__init__.py has the same: what it asks for */
#define UNLOCKED_BYTES_MIN (64 << 10) /* shorter loops do not give the interpreter's lock away */
#define GROUPS_SEARCHED 64 /* of a chunk, the latest groups that a frame may join */

/* -- numbers --------------------------------------------------------------------------------- */

static inline uint32_t get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint64_t get64(const uint8_t *at) {
    return (uint64_t)get32(at) << 32 | get32(at + 4);
}

static inline uint8_t *put32(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
    return at + 4;
}

static inline uint8_t *put64(uint8_t *at, uint64_t value) {
    return put32(put32(at, (uint32_t)(value >> 32)), (uint32_t)value);
}

static inline uint8_t *put_varint(uint8_t *at, uint64_t value) {
    while (value > 127) {
        *at++ = (uint8_t)(value | 128);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

static inline Py_ssize_t varint_bytes(uint64_t value) {
    Py_ssize_t count = 1;
    for (; value > 127; value >>= 7)
        count++;
    return count;
}

/* The varint at ``at``, of at most ``bytes_max`` bytes and all before ``end``: where it ends, or
 * NULL. 63 bits at most, so ``bytes_max`` is 9 or less. */
static inline const uint8_t *get_varint(
    const uint8_t *at, const uint8_t *end, int bytes_max, uint64_t *value) {
    uint64_t found = 0;
    for (int i = 0; i < bytes_max && at < end; i++) {
        uint8_t byte = *at++;
        found |= (uint64_t)(byte & 127) << 7 * i;
        if (byte < 128) {
            *value = found;
            return at;
        }
    }
    return NULL;
}

/* -- CRC-32C --------------------------------------------------------------------------------- */

/* Tables are worked out once, when the module is loaded, and are constant from then on. */
static uint32_t crc_tables[8][256]; /* of a byte, and of one that 1 to 7 bytes follow */
static uint32_t crc_shift[4][256];  /* what LANE_BYTES zeros make of each byte of a checksum */
#define CRC_POLYNOMIAL 0x82F63B78u
#define LANE_BYTES 256

static uint32_t crc_by_table(uint32_t crc, const uint8_t *at, size_t count) {
    for (; count >= 8; at += 8, count -= 8) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = crc_tables[7][crc & 255] ^ crc_tables[6][crc >> 8 & 255] ^
              crc_tables[5][crc >> 16 & 255] ^ crc_tables[4][crc >> 24] ^ crc_tables[3][at[4]] ^
              crc_tables[2][at[5]] ^ crc_tables[1][at[6]] ^ crc_tables[0][at[7]];
    }
    for (; count; count--)
        crc = crc >> 8 ^ crc_tables[0][(crc ^ *at++) & 255];
    return crc;
}

#ifdef HARDWARE_CRC
static inline uint64_t get_word(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

static inline uint32_t shifted(uint32_t crc) {
    return crc_shift[0][crc & 255] ^ crc_shift[1][crc >> 8 & 255] ^
           crc_shift[2][crc >> 16 & 255] ^ crc_shift[3][crc >> 24];
}

/* An instruction takes three cycles and one can begin in each: so three lanes at once, whose sums
 * are put together by what the zeros of a lane would do to the one before it. */
HARDWARE_CRC static uint32_t crc_by_instruction(uint32_t crc, const uint8_t *at, size_t count) {
    while (count >= 3 * LANE_BYTES) {
        uint64_t first = crc, second = 0, third = 0;
        for (const uint8_t *end = at + LANE_BYTES; at < end; at += 8) {
            first = CRC_WORD(first, get_word(at));
            second = CRC_WORD(second, get_word(at + LANE_BYTES));
            third = CRC_WORD(third, get_word(at + 2 * LANE_BYTES));
        }
        crc = shifted(shifted((uint32_t)first) ^ (uint32_t)second) ^ (uint32_t)third;
        at += 2 * LANE_BYTES;
        count -= 3 * LANE_BYTES;
    }
    for (; count >= 8; at += 8, count -= 8)
        crc = (uint32_t)CRC_WORD(crc, get_word(at));
    for (; count; count--)
        crc = CRC_BYTE(crc, *at++);
    return crc;
}
#endif

static uint32_t (*crc_of)(uint32_t, const uint8_t *, size_t) = crc_by_table;

static inline uint32_t checksum(uint32_t before, const void *data, size_t count) {
    return ~crc_of(~before, data, count);
}

static void make_crc_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? CRC_POLYNOMIAL : 0);
        crc_tables[0][byte] = crc;
    }
    for (int after = 1; after < 8; after++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc_tables[after - 1][byte];
            crc_tables[after][byte] = crc >> 8 ^ crc_tables[0][crc & 255];
        }
    for (int bit = 0; bit < 32; bit++) { /* a checksum's bits are independent of each other */
        uint32_t crc = 1u << bit;
        for (int zero = 0; zero < LANE_BYTES; zero++)
            crc = crc >> 8 ^ crc_tables[0][crc & 255];
        for (int byte = 0; byte < 256; byte++)
            if (byte >> (bit & 7) & 1)
                crc_shift[bit >> 3][byte] ^= crc;
    }
#ifdef HARDWARE_CRC
    if (has_hardware_crc())
        crc_of = crc_by_instruction;
#endif
}

/* -- arguments and answers ------------------------------------------------------------------- */

/* A chunk: what a view shows between two places. */
typedef struct {
    Py_buffer buffer;
    const uint8_t *data; /* the view's beginning */
    Py_ssize_t start, end;
} Chunk;

static int open_chunk(Chunk *chunk, PyObject *const *args) {
    chunk->start = PyLong_AsSsize_t(args[1]);
    chunk->end = PyLong_AsSsize_t(args[2]);
    if ((chunk->start == -1 || chunk->end == -1) && PyErr_Occurred())
        return -1;
    if (PyObject_GetBuffer(args[0], &chunk->buffer, PyBUF_SIMPLE) < 0)
        return -1;
    chunk->data = chunk->buffer.buf;
    if (chunk->start < 0 || chunk->start > chunk->end || chunk->end > chunk->buffer.len) {
        PyErr_SetString(PyExc_ValueError, "start and end are not within the view");
        PyBuffer_Release(&chunk->buffer);
        return -1;
    }
    return 0;
}

static int check_count(Py_ssize_t count, Py_ssize_t expected) {
    if (count == expected)
        return 0;
    PyErr_Format(PyExc_TypeError, "%zd arguments are needed, not %zd", expected, count);
    return -1;
}

/* Take ``item``, which may be NULL, into ``list``. */
static int append(PyObject *list, PyObject *item) {
    if (item == NULL)
        return -1;
    int failed = PyList_Append(list, item);
    Py_DECREF(item);
    return failed;
}

static int append_number(PyObject *list, long long value) {
    return append(list, PyLong_FromLongLong(value));
}

/* A pair of numbers; NULL on an error. Py_BuildValue would take twice as long. */
static PyObject *pair(long long first, long long second) {
    PyObject *found = PyTuple_New(2);
    PyObject *one = PyLong_FromLongLong(first), *other = PyLong_FromLongLong(second);
    if (found == NULL || one == NULL || other == NULL) {
        Py_XDECREF(found);
        Py_XDECREF(one);
        Py_XDECREF(other);
        return NULL;
    }
    PyTuple_SetItem(found, 0, one); /* of a tuple that nobody else has: takes it, cannot fail */
    PyTuple_SetItem(found, 1, other);
    return found;
}

/* (``list``, ``stop``), taking the list; NULL if it is, or on an error that is set. */
static PyObject *with_stop(PyObject *list, Py_ssize_t stop) {
    if (list == NULL || PyErr_Occurred()) {
        Py_XDECREF(list);
        return NULL;
    }
    return Py_BuildValue("Nn", list, stop);
}

/* An array that grows. */
static void *grown(void *array, Py_ssize_t count, size_t item_bytes) {
    if (count & (count - 1)) /* full at powers of two only */
        return array;
    void *larger = PyMem_Realloc(array, (count ? 2 * (size_t)count : 1) * item_bytes);
    if (larger == NULL)
        PyErr_NoMemory();
    return larger;
}

static PyObject *crc32c(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Py_buffer data;
    unsigned long before = 0;
    if (count != 1 && check_count(count, 2) < 0)
        return NULL;
    if (count == 2) {
        before = PyLong_AsUnsignedLong(args[1]);
        if (before == (unsigned long)-1 && PyErr_Occurred())
            return NULL;
    }
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t sum;
    if (data.len < UNLOCKED_BYTES_MIN) {
        sum = checksum((uint32_t)before, data.buf, (size_t)data.len);
    } else {
        Py_BEGIN_ALLOW_THREADS
        sum = checksum((uint32_t)before, data.buf, (size_t)data.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(sum);
}

static PyObject *find_frames(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Chunk chunk;
    if (check_count(count, 4) < 0)
        return NULL;
    unsigned long long bytes_max = PyLong_AsUnsignedLongLong(args[3]);
    if ((bytes_max == (unsigned long long)-1 && PyErr_Occurred()) || open_chunk(&chunk, args) < 0)
        return NULL;
    Py_ssize_t at = chunk.start;
    PyObject *bounds = PyList_New(0);
    while (bounds != NULL && chunk.end - at >= 4) {
        uint32_t size = get32(chunk.data + at);
        if (size > bytes_max || (Py_ssize_t)size > chunk.end - at - 4)
            break;
        if (append(bounds, pair(at + 4, at + 4 + (Py_ssize_t)size)) < 0)
            break;
        at += 4 + (Py_ssize_t)size;
    }
    PyBuffer_Release(&chunk.buffer);
    return with_stop(bounds, at);
}

/* -- BookKeeper: adds ------------------------------------------------------------------------ */

#define ADD_HEADER 0x02010000u
#define ADD_NAME_BYTES 32 /* header 4, master key 20, ledger id 8: what a run has in common */
#define ADD_BYTES_MIN (4 + 20 + 32)

typedef struct {
    const uint8_t *name;
    int64_t last_id;
    long long bytes;
    PyObject *ids, *entries;
} AddRun;

typedef struct {
    AddRun *items;
    Py_ssize_t count, indexed;
    PyObject *index; /* name -> place; made when there is a second run */
} AddRuns;

static AddRun *new_add_run(AddRuns *runs, const uint8_t *name) {
    AddRun *items = grown(runs->items, runs->count, sizeof(AddRun));
    if (items == NULL)
        return NULL;
    runs->items = items;
    AddRun *run = &items[runs->count++];
    *run = (AddRun){name, -1, 0, PyList_New(0), PyList_New(0)};
    return run->ids != NULL && run->entries != NULL ? run : NULL;
}

/* The latest run of that name, if its ids are lower, else a new one; NULL on an error. A dictionary:
 * who writes to a thousand ledgers sends as many runs in a chunk. */
static AddRun *add_run_of(AddRuns *runs, const uint8_t *name, int64_t entry_id) {
    if (runs->count == 0)
        return new_add_run(runs, name);
    if (runs->index == NULL && (runs->index = PyDict_New()) == NULL)
        return NULL;
    for (; runs->indexed < runs->count; runs->indexed++) {
        const char *held = (const char *)runs->items[runs->indexed].name;
        PyObject *key = PyBytes_FromStringAndSize(held, ADD_NAME_BYTES);
        PyObject *place = PyLong_FromSsize_t(runs->indexed);
        int failed = key == NULL || place == NULL || PyDict_SetItem(runs->index, key, place) < 0;
        Py_XDECREF(key);
        Py_XDECREF(place);
        if (failed)
            return NULL;
    }
    PyObject *key = PyBytes_FromStringAndSize((const char *)name, ADD_NAME_BYTES);
    if (key == NULL)
        return NULL;
    PyObject *place = PyDict_GetItemWithError(runs->index, key);
    Py_DECREF(key);
    if (place == NULL)
        return PyErr_Occurred() ? NULL : new_add_run(runs, name);
    AddRun *run = &runs->items[PyLong_AsSsize_t(place)];
    return entry_id > run->last_id ? run : new_add_run(runs, name);
}

static PyObject *add_run_tuple(AddRun *run) {
    PyObject *ids = run->ids, *entries = run->entries;
    run->ids = run->entries = NULL; /* "N" takes them, also when it fails */
    return Py_BuildValue(
        "Iy#LNNL", (unsigned int)get32(run->name), (const char *)run->name + 4, (Py_ssize_t)20,
        (long long)get64(run->name + 24), ids, entries, run->bytes);
}

static PyObject *decode_adds(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Chunk chunk;
    if (check_count(count, 4) < 0)
        return NULL;
    unsigned long long bytes_max = PyLong_AsUnsignedLongLong(args[3]);
    if ((bytes_max == (unsigned long long)-1 && PyErr_Occurred()) || open_chunk(&chunk, args) < 0)
        return NULL;
    AddRuns runs = {NULL, 0, 0, NULL};
    AddRun *run = NULL;
    Py_ssize_t at = chunk.start;
    while (chunk.end - at >= 4 + ADD_BYTES_MIN) {
        const uint8_t *frame = chunk.data + at, *name = frame + 4;
        uint32_t size = get32(frame);
        if (size < ADD_BYTES_MIN || size > bytes_max || (Py_ssize_t)size > chunk.end - at - 4)
            break;
        int64_t ledger_id = (int64_t)get64(frame + 28), entry_id = (int64_t)get64(frame + 36);
        if ((get32(name) & 0xFFFF0000u) != ADD_HEADER || ledger_id < 0 || entry_id < 0)
            break;
        if (run == NULL || entry_id <= run->last_id || memcmp(run->name, name, ADD_NAME_BYTES)) {
            run = add_run_of(&runs, name, entry_id);
            if (run == NULL)
                break;
        }
        if (append_number(run->ids, entry_id) < 0 ||
            append(run->entries,
                   PyBytes_FromStringAndSize((const char *)frame + 28, (Py_ssize_t)size - 24)) < 0)
            break;
        run->last_id = entry_id;
        run->bytes += size;
        at += 4 + (Py_ssize_t)size;
    }
    PyObject *found = PyErr_Occurred() ? NULL : PyList_New(runs.count);
    for (Py_ssize_t i = 0; found != NULL && i < runs.count; i++) {
        PyObject *item = add_run_tuple(&runs.items[i]);
        if (item == NULL || PyList_SetItem(found, i, item) < 0)
            Py_CLEAR(found);
    }
    for (Py_ssize_t i = 0; i < runs.count; i++) {
        Py_XDECREF(runs.items[i].ids);
        Py_XDECREF(runs.items[i].entries);
    }
    Py_XDECREF(runs.index);
    PyMem_Free(runs.items);
    PyBuffer_Release(&chunk.buffer);
    return with_stop(found, at);
}

static PyObject *inspect_adds(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (check_count(count, 4) < 0)
        return NULL;
    long long ledger_id = PyLong_AsLongLong(args[0]), bytes_max = PyLong_AsLongLong(args[3]);
    if ((ledger_id == -1 || bytes_max == -1) && PyErr_Occurred())
        return NULL;
    Py_ssize_t ids = PySequence_Size(args[1]), entries = PySequence_Size(args[2]);
    if (ids < 0 || entries < 0)
        return NULL;
    if (ids != entries || entries == 0)
        Py_RETURN_NONE;
    long long bytes = 0, lac = -1, last = -1;
    for (Py_ssize_t i = 0; i < entries; i++) {
        PyObject *id = PySequence_GetItem(args[1], i), *entry = PySequence_GetItem(args[2], i);
        long long entry_id = id == NULL ? -1 : PyLong_AsLongLong(id);
        char *data = NULL;
        Py_ssize_t size = 0;
        int sound = 0;
        if (!PyErr_Occurred() && PyBytes_AsStringAndSize(entry, &data, &size) == 0 && size >= 32 &&
            size <= bytes_max && entry_id >= 0) {
            const uint8_t *head = (const uint8_t *)data;
            long long told = (long long)get64(head + 16);
            sound = (long long)get64(head) == ledger_id && (long long)get64(head + 8) == entry_id;
            bytes += size;
            lac = told > lac ? told : lac;
            last = entry_id > last ? entry_id : last;
        }
        Py_XDECREF(id);
        Py_XDECREF(entry);
        if (PyErr_Occurred())
            return NULL;
        if (!sound)
            Py_RETURN_NONE;
    }
    return Py_BuildValue("LLL", bytes, lac, last);
}

#define ADD_ANSWER_BYTES 28

static PyObject *decode_add_answers(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Chunk chunk;
    if (check_count(count, 3) < 0 || open_chunk(&chunk, args) < 0)
        return NULL;
    Py_ssize_t at = chunk.start;
    const uint8_t *run = NULL; /* the answer that began it */
    PyObject *runs = PyList_New(0), *ids = NULL; /* ids: borrowed from the last of the runs */
    while (runs != NULL && chunk.end - at >= ADD_ANSWER_BYTES) {
        const uint8_t *answer = chunk.data + at;
        if (get32(answer) != ADD_ANSWER_BYTES - 4 || get32(answer + 4) != ADD_HEADER)
            break;
        if (run == NULL || memcmp(run + 8, answer + 8, 12)) { /* status, ledger */
            run = answer;
            ids = PyList_New(0);
            if (ids == NULL ||
                append(runs, Py_BuildValue("LiN", (long long)get64(answer + 12),
                                           (int)(int32_t)get32(answer + 8), ids)) < 0)
                break;
        }
        if (append_number(ids, (long long)get64(answer + 20)) < 0)
            break;
        at += ADD_ANSWER_BYTES;
    }
    PyBuffer_Release(&chunk.buffer);
    return with_stop(runs, at);
}

/* -- entries and records --------------------------------------------------------------------- */

#define ENTRY_HEADER_BYTES 32

/* One entry: header, checksum, prefix, payload. */
static PyObject *build_entry(
    long long ledger_id, long long entry_id, long long lac, long long *length,
    PyObject *prefix, PyObject *payload) {
    char *first = NULL;
    Py_ssize_t first_bytes = 0;
    Py_buffer rest;
    if (payload == NULL || (prefix != NULL && PyBytes_AsStringAndSize(prefix, &first, &first_bytes)))
        return NULL;
    if (PyObject_GetBuffer(payload, &rest, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *entry =
        PyBytes_FromStringAndSize(NULL, ENTRY_HEADER_BYTES + 4 + first_bytes + rest.len);
    if (entry != NULL) {
        *length += first_bytes + rest.len;
        uint8_t *header = (uint8_t *)PyBytes_AsString(entry), *at = put64(header, (uint64_t)ledger_id);
        at = put64(put64(put64(at, (uint64_t)entry_id), (uint64_t)lac), (uint64_t)*length);
        uint32_t sum = checksum(0, header, ENTRY_HEADER_BYTES);
        if (first_bytes)
            memcpy(at + 4, first, (size_t)first_bytes);
        if (rest.len)
            memcpy(at + 4 + first_bytes, rest.buf, (size_t)rest.len);
        put32(at, checksum(sum, at + 4, (size_t)(first_bytes + rest.len)));
    }
    PyBuffer_Release(&rest);
    return entry;
}

static PyObject *build_entries(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (check_count(count, 6) < 0)
        return NULL;
    long long numbers[4]; /* ledger id, entry id, last add confirmed, length */
    for (int i = 0; i < 4; i++) {
        numbers[i] = PyLong_AsLongLong(args[i]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    Py_ssize_t entries = PySequence_Size(args[4]), prefixes = PySequence_Size(args[5]);
    if (entries < 0 || prefixes < 0)
        return NULL;
    if (prefixes && prefixes != entries) {
        PyErr_Format(PyExc_ValueError, "%zd prefixes for %zd payloads", prefixes, entries);
        return NULL;
    }
    PyObject *built = PyList_New(entries);
    for (Py_ssize_t i = 0; built != NULL && i < entries; i++) {
        PyObject *payload = PySequence_GetItem(args[4], i);
        PyObject *prefix = prefixes ? PySequence_GetItem(args[5], i) : NULL;
        PyObject *entry = NULL;
        if (payload != NULL && (!prefixes || prefix != NULL))
            entry = build_entry(numbers[0], numbers[1] + i, numbers[2], &numbers[3], prefix, payload);
        Py_XDECREF(payload);
        Py_XDECREF(prefix);
        if (entry == NULL || PyList_SetItem(built, i, entry) < 0)
            Py_CLEAR(built);
    }
    return built == NULL ? NULL : Py_BuildValue("NL", built, numbers[3]);
}

typedef struct {
    PyObject *payload; /* a reference of our own */
    const uint8_t *data;
    size_t bytes;
    uint32_t kind;
} Record;

typedef struct {
    Record *items;
    Py_ssize_t count;
    size_t bytes;
} Records;

static int collect_record(Records *records, PyObject *payload, uint32_t kind) {
    char *data;
    Py_ssize_t size;
    if (payload == NULL)
        return -1;
    Record *items = PyBytes_AsStringAndSize(payload, &data, &size) < 0
                        ? NULL
                        : grown(records->items, records->count, sizeof(Record));
    if (items == NULL) {
        Py_DECREF(payload);
        return -1;
    }
    records->items = items;
    items[records->count++] = (Record){payload, (const uint8_t *)data, (size_t)size, kind};
    records->bytes += 8 + (size_t)size;
    if ((uint64_t)size <= 0xFFFFFFFFu)
        return 0;
    PyErr_Format(PyExc_ValueError, "a record of %zd bytes", size);
    return -1;
}

static int collect_group(Records *records, PyObject *group) {
    PyObject *kind = group == NULL ? NULL : PySequence_GetItem(group, 0);
    PyObject *payloads = kind == NULL ? NULL : PySequence_GetItem(group, 1);
    unsigned long high = payloads == NULL ? 0 : PyLong_AsUnsignedLong(kind);
    Py_ssize_t count = payloads == NULL || PyErr_Occurred() ? -1 : PySequence_Size(payloads);
    int failed = count < 0;
    for (Py_ssize_t i = 0; !failed && i < count; i++)
        failed = collect_record(records, PySequence_GetItem(payloads, i), (uint32_t)high << 28) < 0;
    Py_XDECREF(kind);
    Py_XDECREF(payloads);
    Py_XDECREF(group);
    return failed ? -1 : 0;
}

static void write_records(const Records *records, uint32_t seed, uint8_t *at) {
    uint32_t last = 0, word_sum = 0;
    for (Py_ssize_t i = 0; i < records->count; i++) {
        const Record *record = &records->items[i];
        uint32_t word = record->kind | (uint32_t)record->bytes;
        put32(at, word);
        if (i == 0 || word != last) /* neighbours are mostly of one length */
            word_sum = checksum(seed, at, 4);
        last = word;
        memcpy(at + 8, record->data, record->bytes);
        put32(at + 4, checksum(word_sum, at + 8, record->bytes));
        at += 8 + record->bytes;
    }
}

static PyObject *join_records(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (check_count(count, 4) < 0)
        return NULL;
    unsigned long seed = PyLong_AsUnsignedLong(args[1]);
    if (seed == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    Py_ssize_t before = PyLong_AsSsize_t(args[2]), after = PyLong_AsSsize_t(args[3]);
    Py_ssize_t groups = PySequence_Size(args[0]);
    if (before < 0 || after < 0 || groups < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "before and after are not negative");
        return NULL;
    }
    Records records = {NULL, 0, 0};
    PyObject *joined = NULL;
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < groups; i++)
        failed = collect_group(&records, PySequence_GetItem(args[0], i)) < 0;
    if (!failed)
        joined = PyByteArray_FromStringAndSize(NULL, before + (Py_ssize_t)records.bytes + after);
    if (joined != NULL) {
        uint8_t *data = (uint8_t *)PyByteArray_AsString(joined);
        memset(data, 0, (size_t)before);
        memset(data + (size_t)before + records.bytes, 0, (size_t)after);
        if (records.bytes < UNLOCKED_BYTES_MIN) {
            write_records(&records, (uint32_t)seed, data + before);
        } else {
            Py_BEGIN_ALLOW_THREADS
            write_records(&records, (uint32_t)seed, data + before);
            Py_END_ALLOW_THREADS
        }
    }
    for (Py_ssize_t i = 0; i < records.count; i++)
        Py_DECREF(records.items[i].payload);
    PyMem_Free(records.items);
    return joined;
}

/* -- BookKeeper: reads ----------------------------------------------------------------------- */

#define RECORD_HEADER_BYTES 8

/* Where the sound records at the beginning of [data, end) end, that follow each other as they should;
 * how many there are; -1: no memory. Called without the interpreter's lock: ``*ends`` is of
 * malloc. */
static Py_ssize_t check_run(
    const uint8_t *data, const uint8_t *end, uint32_t seed, uint64_t ledger_id, uint64_t entry_id,
    long long entries_max, Py_ssize_t **ends) {
    const uint8_t *at = data;
    Py_ssize_t taken = 0, room = 0;
    uint32_t last_length = 0, length_sum = 0;
    while (taken < entries_max && end - at >= RECORD_HEADER_BYTES + ENTRY_HEADER_BYTES) {
        uint32_t length = get32(at);
        const uint8_t *entry = at + RECORD_HEADER_BYTES;
        if (length < ENTRY_HEADER_BYTES || (Py_ssize_t)length > end - entry ||
            get64(entry) != ledger_id || get64(entry + 8) != entry_id + (uint64_t)taken)
            break;
        if (length != last_length) { /* neighbours are mostly of one length */
            length_sum = checksum(seed, at, 4);
            last_length = length;
        }
        if (checksum(length_sum, entry, length) != get32(at + 4))
            break;
        if (taken == room) {
            room = room ? 2 * room : 64;
            Py_ssize_t *larger = realloc(*ends, (size_t)room * sizeof(Py_ssize_t));
            if (larger == NULL)
                return -1;
            *ends = larger;
        }
        at = entry + length;
        (*ends)[taken++] = at - data;
    }
    return taken;
}

static PyObject *check_records(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (check_count(count, 5) < 0)
        return NULL;
    unsigned long seed = PyLong_AsUnsignedLong(args[1]);
    long long ledger_id = PyLong_AsLongLong(args[2]), entry_id = PyLong_AsLongLong(args[3]);
    long long entries_max = PyLong_AsLongLong(args[4]);
    Py_buffer data;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint8_t *begin = data.buf, *end = begin + data.len;
    Py_ssize_t *ends = NULL, taken;
    if (data.len < UNLOCKED_BYTES_MIN) {
        taken = check_run(begin, end, (uint32_t)seed, (uint64_t)ledger_id, (uint64_t)entry_id,
                          entries_max, &ends);
    } else {
        Py_BEGIN_ALLOW_THREADS
        taken = check_run(begin, end, (uint32_t)seed, (uint64_t)ledger_id, (uint64_t)entry_id,
                          entries_max, &ends);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    PyObject *bounds = taken < 0 ? PyErr_NoMemory() : PyList_New(taken + 1);
    for (Py_ssize_t i = 0; bounds != NULL && i <= taken; i++) {
        PyObject *bound = PyLong_FromSsize_t(i ? ends[i - 1] : 0);
        if (bound == NULL || PyList_SetItem(bounds, i, bound) < 0)
            Py_CLEAR(bounds);
    }
    free(ends);
    return bounds;
}

static void put_records_framed(uint8_t *at, const uint8_t *from, const uint8_t *end) {
    while (from < end) {
        size_t bytes = get32(from);
        memcpy(at, from, 4);
        memcpy(at + 4, from + RECORD_HEADER_BYTES, bytes);
        at += 4 + bytes;
        from += RECORD_HEADER_BYTES + bytes;
    }
}

static PyObject *frame_records(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Chunk chunk;
    if (check_count(count, 4) < 0)
        return NULL;
    Py_ssize_t before = PyLong_AsSsize_t(args[3]);
    if (before < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "before is not negative");
        return NULL;
    }
    if (open_chunk(&chunk, args) < 0)
        return NULL;
    Py_ssize_t at = chunk.start, framed = before;
    while (chunk.end - at >= RECORD_HEADER_BYTES) { /* whole ones only, whoever says what */
        uint32_t bytes = get32(chunk.data + at);
        if ((Py_ssize_t)bytes > chunk.end - at - RECORD_HEADER_BYTES)
            break;
        framed += 4 + (Py_ssize_t)bytes;
        at += RECORD_HEADER_BYTES + (Py_ssize_t)bytes;
    }
    PyObject *answer = PyByteArray_FromStringAndSize(NULL, framed);
    if (answer != NULL) {
        uint8_t *to = (uint8_t *)PyByteArray_AsString(answer);
        memset(to, 0, (size_t)before);
        if (framed < UNLOCKED_BYTES_MIN) {
            put_records_framed(to + before, chunk.data + chunk.start, chunk.data + at);
        } else {
            Py_BEGIN_ALLOW_THREADS
            put_records_framed(to + before, chunk.data + chunk.start, chunk.data + at);
            Py_END_ALLOW_THREADS
        }
    }
    PyBuffer_Release(&chunk.buffer);
    return answer;
}

/* Bytes of ours that are copied somewhere, without the interpreter's lock where they are many. */
typedef struct {
    const uint8_t *from;
    uint8_t *to;
    Py_ssize_t bytes;
} Copied;

static void copy_all(const Copied *items, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++)
        memcpy(items[i].to, items[i].from, (size_t)items[i].bytes);
}

/* Room for ``bytes`` at ``from``: a new object at the end of ``list``, which is still to be filled,
 * and a place for it at the end of ``*items``. Those of ``list`` and ``*items`` are as many. */
static int add_copied(
    PyObject *list, Copied **items, Py_ssize_t count, const uint8_t *from, Py_ssize_t bytes) {
    Copied *larger = grown(*items, count, sizeof(Copied));
    if (larger == NULL)
        return -1;
    *items = larger;
    PyObject *copy = PyBytes_FromStringAndSize(NULL, bytes);
    if (copy == NULL)
        return -1;
    larger[count] = (Copied){from, (uint8_t *)PyBytes_AsString(copy), bytes};
    return append(list, copy);
}

static PyObject *split_entries(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Chunk chunk;
    if (check_count(count, 4) < 0)
        return NULL;
    Py_ssize_t gap = PyLong_AsSsize_t(args[3]);
    if (gap < 0 || gap > 1 << 10) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the gap is 0 to 1024");
        return NULL;
    }
    if (open_chunk(&chunk, args) < 0)
        return NULL;
    Py_ssize_t at = chunk.start, taken = 0;
    Copied *items = NULL;
    PyObject *found = PyList_New(0);
    while (found != NULL && chunk.end - at >= 4 + gap) {
        uint32_t size = get32(chunk.data + at);
        if ((Py_ssize_t)size > chunk.end - at - 4 - gap ||
            add_copied(found, &items, taken, chunk.data + at + 4 + gap, (Py_ssize_t)size) < 0)
            break;
        taken++;
        at += 4 + gap + (Py_ssize_t)size;
    }
    if (!PyErr_Occurred()) {
        if (at - chunk.start < UNLOCKED_BYTES_MIN) {
            copy_all(items, taken);
        } else {
            Py_BEGIN_ALLOW_THREADS
            copy_all(items, taken);
            Py_END_ALLOW_THREADS
        }
    }
    PyMem_Free(items);
    PyBuffer_Release(&chunk.buffer);
    return with_stop(found, at);
}

/* The bytes objects of a sequence, with a reference of our own to each. 0, or -1 on an error; to be let
 * go of in either case. */
static int hold_all(Records *held, PyObject *sequence) {
    Py_ssize_t count = PySequence_Size(sequence);
    int failed = count < 0;
    for (Py_ssize_t i = 0; !failed && i < count; i++)
        failed = collect_record(held, PySequence_GetItem(sequence, i), 0) < 0;
    return failed ? -1 : 0;
}

static void let_go(Records *held) {
    for (Py_ssize_t i = 0; i < held->count; i++)
        Py_DECREF(held->items[i].payload);
    PyMem_Free(held->items);
}

static void put_framed(const Records *held, uint8_t *at) {
    for (Py_ssize_t i = 0; i < held->count; i++) {
        at = put32(at, (uint32_t)held->items[i].bytes);
        memcpy(at, held->items[i].data, held->items[i].bytes);
        at += held->items[i].bytes;
    }
}

static PyObject *join_entries(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (check_count(count, 2) < 0)
        return NULL;
    Py_ssize_t before = PyLong_AsSsize_t(args[1]);
    if (before < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "before is not negative");
        return NULL;
    }
    Records held = {NULL, 0, 0};
    PyObject *joined = NULL;
    if (hold_all(&held, args[0]) == 0) /* its count of bytes is of records, 4 more each */
        joined = PyByteArray_FromStringAndSize(NULL, before + (Py_ssize_t)held.bytes - 4 * held.count);
    if (joined != NULL) {
        uint8_t *data = (uint8_t *)PyByteArray_AsString(joined);
        memset(data, 0, (size_t)before);
        if (held.bytes < UNLOCKED_BYTES_MIN) {
            put_framed(&held, data + before);
        } else {
            Py_BEGIN_ALLOW_THREADS
            put_framed(&held, data + before);
            Py_END_ALLOW_THREADS
        }
    }
    let_go(&held);
    return joined;
}

/* Of entries with CRC-32C, in the order of their ids: how many are sound before one that is not. */
static Py_ssize_t sound_before(const Records *held, uint64_t ledger_id, uint64_t first_id) {
    for (Py_ssize_t i = 0; i < held->count; i++) {
        const uint8_t *data = held->items[i].data, *payload = data + ENTRY_HEADER_BYTES + 4;
        size_t bytes = held->items[i].bytes;
        if (bytes < ENTRY_HEADER_BYTES + 4 || get64(data) != ledger_id ||
            get64(data + 8) != first_id + (uint64_t)i)
            return i;
        uint32_t sum = checksum(0, data, ENTRY_HEADER_BYTES);
        if (checksum(sum, payload, bytes - ENTRY_HEADER_BYTES - 4) != get32(payload - 4))
            return i;
    }
    return held->count;
}

static PyObject *count_sound(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (check_count(count, 3) < 0)
        return NULL;
    long long ledger_id = PyLong_AsLongLong(args[1]), first_id = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    Records held = {NULL, 0, 0};
    Py_ssize_t sound = -1;
    if (hold_all(&held, args[0]) == 0) {
        if (held.bytes < UNLOCKED_BYTES_MIN) {
            sound = sound_before(&held, (uint64_t)ledger_id, (uint64_t)first_id);
        } else {
            Py_BEGIN_ALLOW_THREADS
            sound = sound_before(&held, (uint64_t)ledger_id, (uint64_t)first_id);
            Py_END_ALLOW_THREADS
        }
    }
    let_go(&held);
    return sound < 0 ? NULL : PyLong_FromSsize_t(sound);
}

/* -- Pulsar: what producers send ------------------------------------------------------------- */

typedef struct {
    uint64_t producer_id, sequence_id, highest, published_ms, messages;
    const uint8_t *payload;
} Send;

/* One byte that says a tag, then a varint of at most ``bytes_max`` bytes: where they end, ``at`` if
 * the tag is another, NULL if the varint is not whole. */
static inline const uint8_t *tagged(
    const uint8_t *at, const uint8_t *end, uint8_t tag, int bytes_max, uint64_t *value) {
    return at < end && *at == tag ? get_varint(at + 1, end, bytes_max, value) : at;
}

/* Where the varint at ``at`` ends, whatever it says; NULL if it is not whole. */
static inline const uint8_t *skipped(const uint8_t *at, const uint8_t *end) {
    uint64_t ignored;
    return get_varint(at, end, 9, &ignored);
}

/* Whether a tag stands in [at, end), or bytes that look like one, of a field that must be looked at:
 * compression, publish_time, num_messages_in_batch, deliver_at_time, those of chunks. */
static int is_telling(const uint8_t *at, const uint8_t *end) {
    for (; at < end; at++) {
        if (*at == 0x18 || *at == 0x58)
            return 1;
        if (end - at < 2)
            return 0;
        uint8_t next = at[1];
        switch (*at) {
        case 0x40:
            if (next)
                return 1;
            break;
        case 0x98:
            if (next == 0x01 || next == 0 || next == 0x80 || next == 0x81)
                return 1;
            break;
        case 0xC0:
            if (next == 0 || next == 0x80)
                return 1;
            break;
        case 0xD8:
            if (next == 0x01 || next == 0 || next == 0x80 || next == 0x81)
                return 1;
            break;
        case 0xE0:
        case 0xE8:
            if (next == 0x01 || next == 0x81)
                return 1;
            break;
        }
    }
    return 0;
}

/* The metadata [at, end) of a message of ``data_bytes``, as far as it is of the usual shape: where
 * that ends, or NULL if its beginning is not, or the batch cannot be. */
static const uint8_t *read_usual_metadata(
    const uint8_t *at, const uint8_t *end, uint64_t data_bytes, Send *send) {
    if (end - at < 2 || at[0] != 0x0A || at[1] > 127) /* producer_name */
        return NULL;
    const uint8_t *name = at + 2, *after = name;
    while (after < end && *after >= 0x20) /* bytes that are no tag here */
        after++;
    if (after - name != at[1] || after == end || *after != 0x10)
        return NULL;
    at = skipped(after + 1, end); /* sequence_id */
    if (at == NULL || at == end || *at != 0x18) /* publish_time */
        return NULL;
    at = get_varint(at + 1, end, 9, &send->published_ms);
    if (at == NULL)
        return NULL;
    const uint8_t *next;
    if (at < end && *at == 0x48 && (next = skipped(at + 1, end)) != NULL) /* uncompressed_size */
        at = next;
    send->messages = 1;
    if (at < end && *at == 0x58) { /* num_messages_in_batch */
        next = get_varint(at + 1, end, 4, &send->messages);
        if (next == NULL)
            return NULL; /* as the twin, which finds a telling tag there */
        if (send->messages == 0 || send->messages * 6 > data_bytes)
            return NULL; /* such a batch cannot be */
        at = next;
    }
    if (end - at >= 2 && at[0] == 0xC0 && at[1] == 0x01) /* highest_sequence_id */
        if ((next = skipped(at + 2, end)) != NULL)
            at = next;
    return at;
}

/* The SEND [at, end) without its length; 0 if it is unusual, or not sound. */
static int read_usual_send(const uint8_t *at, const uint8_t *end, Send *send) {
    const uint8_t *frame = at;
    uint64_t ignored;
    if (end - at < 8 || get32(at) > 127 || memcmp(at + 4, "\x08\x06\x32", 3) || at[7] > 127)
        return 0;
    at += 8;
    send->highest = 0;
    if (at >= end || *at != 0x08 || (at = get_varint(at + 1, end, 8, &send->producer_id)) == NULL)
        return 0;
    if (at >= end || *at != 0x10 || (at = get_varint(at + 1, end, 8, &send->sequence_id)) == NULL)
        return 0;
    if ((at = tagged(at, end, 0x18, 4, &ignored)) == NULL ||      /* num_messages */
        (at = tagged(at, end, 0x30, 8, &send->highest)) == NULL)  /* highest_sequence_id */
        return 0;
    if (end - at >= 2 && at[0] == 0x38 && at[1] < 2) /* is_chunk */
        at += 2;
    if (end - at < 10 || at[0] != 0x0E || at[1] != 0x01)
        return 0;
    if (at - frame != 8 + frame[7] || frame[3] != frame[7] + 4) /* more fields than those */
        return 0;
    uint32_t size = get32(at + 6);
    if ((uint64_t)size > (uint64_t)(end - at - 10) ||
        checksum(0, at + 6, (size_t)(end - at - 6)) != get32(at + 2))
        return 0;
    const uint8_t *metadata = at + 10, *data = metadata + size;
    send->payload = at;
    at = read_usual_metadata(metadata, data, (uint64_t)(end - data), send);
    return at != NULL && !is_telling(at, data);
}

typedef struct {
    uint64_t producer_id;
    long long bytes;
    PyObject *payloads, *sequences, *messages, *times_ms;
} SendRun;

/* The run of that producer, of the latest ones, or a new one; NULL on an error. */
static SendRun *send_run_of(SendRun **runs, Py_ssize_t *count, uint64_t producer_id) {
    Py_ssize_t least = *count > GROUPS_SEARCHED ? *count - GROUPS_SEARCHED : 0;
    for (Py_ssize_t i = *count - 1; i >= least; i--)
        if ((*runs)[i].producer_id == producer_id)
            return &(*runs)[i];
    SendRun *larger = grown(*runs, *count, sizeof(SendRun));
    if (larger == NULL)
        return NULL;
    *runs = larger;
    SendRun *run = &larger[(*count)++];
    *run = (SendRun){
        producer_id, 0, PyList_New(0), PyList_New(0), PyList_New(0), PyList_New(0)};
    return run->payloads && run->sequences && run->messages && run->times_ms ? run : NULL;
}

static int add_send(SendRun *run, PyObject *view, Py_ssize_t at, Py_ssize_t end, const Send *send) {
    run->bytes += end - at;
    return append(run->payloads, PySequence_GetSlice(view, at, end)) < 0 ||
                   append(run->sequences, pair((long long)send->sequence_id, (long long)send->highest)) < 0 ||
                   append_number(run->messages, (long long)send->messages) < 0 ||
                   append_number(run->times_ms, (long long)send->published_ms) < 0
               ? -1
               : 0;
}

static PyObject *send_runs_list(SendRun *runs, Py_ssize_t count) {
    PyObject *found = PyErr_Occurred() ? NULL : PyList_New(count);
    for (Py_ssize_t i = 0; i < count; i++) {
        SendRun *run = &runs[i];
        if (found != NULL) {
            PyObject *item = Py_BuildValue(
                "LOOOOL", (long long)run->producer_id, run->payloads, run->sequences,
                run->messages, run->times_ms, run->bytes);
            if (item == NULL || PyList_SetItem(found, i, item) < 0)
                Py_CLEAR(found);
        }
        Py_XDECREF(run->payloads);
        Py_XDECREF(run->sequences);
        Py_XDECREF(run->messages);
        Py_XDECREF(run->times_ms);
    }
    PyMem_Free(runs);
    return found;
}

static PyObject *read_sends(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Chunk chunk;
    if (check_count(count, 5) < 0)
        return NULL;
    long long frame_max = PyLong_AsLongLong(args[3]), payload_max = PyLong_AsLongLong(args[4]);
    if ((frame_max == -1 || payload_max == -1) && PyErr_Occurred())
        return NULL;
    if (open_chunk(&chunk, args) < 0)
        return NULL;
    SendRun *runs = NULL;
    Py_ssize_t run_count = 0, at = chunk.start;
    while (chunk.end - at >= 4) {
        Send send;
        uint32_t size = get32(chunk.data + at);
        Py_ssize_t stop = at + 4 + (Py_ssize_t)size;
        if ((long long)size > frame_max || stop > chunk.end)
            break;
        if (!read_usual_send(chunk.data + at + 4, chunk.data + stop, &send))
            break;
        Py_ssize_t payload_at = send.payload - chunk.data;
        if (stop - payload_at > payload_max)
            break;
        SendRun *run = run_count && runs[run_count - 1].producer_id == send.producer_id
                           ? &runs[run_count - 1]
                           : send_run_of(&runs, &run_count, send.producer_id);
        if (run == NULL || add_send(run, args[0], payload_at, stop, &send) < 0)
            break;
        at = stop;
    }
    PyObject *found = send_runs_list(runs, run_count);
    PyBuffer_Release(&chunk.buffer);
    return with_stop(found, at);
}

/* Of what is stored nothing may be left unread: consumers would read it. */
static PyObject *whole_messages(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Py_buffer payload;
    if (check_count(count, 1) < 0 || PyObject_GetBuffer(args[0], &payload, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint8_t *begin = payload.buf, *end = begin + payload.len;
    Send found = {0};
    long messages = 0;
    if (payload.len >= 10 && begin[0] == 0x0E && begin[1] == 0x01) {
        const uint8_t *metadata = begin + 10;
        uint32_t size = get32(begin + 6);
        if ((uint64_t)size <= (uint64_t)(end - metadata)) {
            const uint8_t *data = metadata + size;
            int is_text = size >= 2;
            for (const uint8_t *at = metadata + 2; is_text && at < data && at < metadata + 2 + metadata[1];)
                is_text = *at++ < 128; /* the producer's name: anything else is to be decoded */
            if (is_text &&
                read_usual_metadata(metadata, data, (uint64_t)(end - data), &found) == data)
                messages = (long)found.messages;
        }
    }
    PyBuffer_Release(&payload);
    return PyLong_FromLong(messages);
}

/* -- Pulsar: what brokers write -------------------------------------------------------------- */

#define RECEIPT_BYTES_MAX 96 /* 8 of sizes, 5 heads of two bytes, 5 varints of 10 */

static uint8_t *put_receipt(
    uint8_t *at, uint64_t producer_id, uint64_t sequence_id, uint64_t highest, uint64_t ledger_id,
    uint64_t entry_id, uint64_t partition) {
    Py_ssize_t id_bytes =
        3 + varint_bytes(ledger_id) + varint_bytes(entry_id) + varint_bytes(partition);
    Py_ssize_t body = 4 + varint_bytes(producer_id) + varint_bytes(sequence_id) + id_bytes;
    if (highest)
        body += 1 + varint_bytes(highest);
    Py_ssize_t size = 3 + varint_bytes((uint64_t)body) + body;
    at = put32(put32(at, (uint32_t)size + 4), (uint32_t)size);
    memcpy(at, "\x08\x07\x3a", 3); /* type, send_receipt */
    at = put_varint(at + 3, (uint64_t)body);
    *at++ = 0x08;
    at = put_varint(at, producer_id);
    *at++ = 0x10;
    at = put_varint(at, sequence_id);
    *at++ = 0x1A;
    at = put_varint(at, (uint64_t)id_bytes);
    *at++ = 0x08;
    at = put_varint(at, ledger_id);
    *at++ = 0x10;
    at = put_varint(at, entry_id);
    *at++ = 0x18;
    at = put_varint(at, partition);
    if (highest) {
        *at++ = 0x20;
        at = put_varint(at, highest);
    }
    return at;
}

/* Two numbers of a pair; 0, or -1 on an error. */
static int get_pair(PyObject *pair, uint64_t *first, uint64_t *second) {
    PyObject *one = pair == NULL ? NULL : PySequence_GetItem(pair, 0);
    PyObject *other = one == NULL ? NULL : PySequence_GetItem(pair, 1);
    if (other != NULL) {
        *first = PyLong_AsUnsignedLongLongMask(one);
        *second = PyLong_AsUnsignedLongLongMask(other);
    }
    Py_XDECREF(one);
    Py_XDECREF(other);
    Py_XDECREF(pair);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *encode_receipts(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (check_count(count, 5) < 0)
        return NULL;
    uint64_t producer_id = PyLong_AsUnsignedLongLongMask(args[0]);
    uint64_t partition = PyLong_AsUnsignedLongLongMask(args[1]);
    uint64_t ledger_id = PyLong_AsUnsignedLongLongMask(args[3]);
    uint64_t entry_id = PyLong_AsUnsignedLongLongMask(args[4]);
    Py_ssize_t sends = PySequence_Size(args[2]);
    if (PyErr_Occurred())
        return NULL;
    uint8_t small[8 * RECEIPT_BYTES_MAX], *frames = small;
    if (sends > 8 && (frames = PyMem_Malloc((size_t)sends * RECEIPT_BYTES_MAX)) == NULL)
        return PyErr_NoMemory();
    uint8_t *at = frames;
    PyObject *joined = NULL;
    for (Py_ssize_t i = 0; i < sends; i++) {
        uint64_t sequence_id = 0, highest = 0;
        if (get_pair(PySequence_GetItem(args[2], i), &sequence_id, &highest) < 0)
            break;
        at = put_receipt(
            at, producer_id, sequence_id, highest, ledger_id, entry_id + (uint64_t)i, partition);
    }
    if (!PyErr_Occurred())
        joined = PyBytes_FromStringAndSize((const char *)frames, at - frames);
    if (frames != small)
        PyMem_Free(frames);
    return joined;
}

#define PULSAR_BEGIN 0x0E
static PyObject *name_ledger_id, *name_entry_id, *name_data, *name_payload_offset; /* constants */

typedef struct {
    PyObject *owner; /* a reference of our own */
    const uint8_t *data;
    Py_ssize_t bytes;
    uint64_t ledger_id, entry_id;
} Stored;

/* 1: taken, 0: not of the usual shape, -1: an error. */
static int open_stored(PyObject *entry, Stored *stored) {
    char *data = NULL;
    Py_ssize_t bytes = 0, offset = -1;
    PyObject *ledger_id = entry == NULL ? NULL : PyObject_GetAttr(entry, name_ledger_id);
    PyObject *entry_id = ledger_id == NULL ? NULL : PyObject_GetAttr(entry, name_entry_id);
    PyObject *place = entry_id == NULL ? NULL : PyObject_GetAttr(entry, name_payload_offset);
    PyObject *owner = place == NULL ? NULL : PyObject_GetAttr(entry, name_data);
    /* Entries of partitions are views: those go out as they are, in parts. */
    if (owner != NULL && PyBytes_Check(owner) &&
        PyBytes_AsStringAndSize(owner, &data, &bytes) == 0) {
        stored->ledger_id = PyLong_AsUnsignedLongLongMask(ledger_id);
        stored->entry_id = PyLong_AsUnsignedLongLongMask(entry_id);
        offset = PyLong_AsSsize_t(place);
    }
    Py_XDECREF(ledger_id);
    Py_XDECREF(entry_id);
    Py_XDECREF(place);
    Py_XDECREF(entry);
    int usual = !PyErr_Occurred() && offset >= 0 && offset < bytes &&
                (uint8_t)data[offset] == PULSAR_BEGIN;
    if (!usual) {
        Py_XDECREF(owner);
        return PyErr_Occurred() ? -1 : 0;
    }
    stored->owner = owner;
    stored->data = (const uint8_t *)data + offset;
    stored->bytes = bytes - offset;
    return 1;
}

/* For whom the entries of a run are. */
typedef struct {
    uint64_t consumer_id, partition;
    long long epoch; /* below 0: none is said */
} Addressee;

static Py_ssize_t message_id_bytes(const Stored *stored, uint64_t partition) {
    return 3 + varint_bytes(stored->ledger_id) + varint_bytes(stored->entry_id) +
           varint_bytes(partition);
}

static Py_ssize_t message_body_bytes(const Stored *stored, const Addressee *to) {
    Py_ssize_t id_bytes = message_id_bytes(stored, to->partition);
    Py_ssize_t epoch_bytes = to->epoch < 0 ? 0 : 1 + varint_bytes((uint64_t)to->epoch);
    return 2 + varint_bytes(to->consumer_id) + varint_bytes((uint64_t)id_bytes) + id_bytes +
           epoch_bytes;
}

static uint8_t *put_message(uint8_t *at, const Stored *stored, const Addressee *to) {
    Py_ssize_t body = message_body_bytes(stored, to);
    Py_ssize_t size = 3 + varint_bytes((uint64_t)body) + body;
    at = put32(put32(at, (uint32_t)(4 + size + stored->bytes)), (uint32_t)size);
    memcpy(at, "\x08\x09\x4a", 3); /* type, message */
    at = put_varint(at + 3, (uint64_t)body);
    *at++ = 0x08;
    at = put_varint(at, to->consumer_id);
    *at++ = 0x12;
    at = put_varint(at, (uint64_t)message_id_bytes(stored, to->partition));
    *at++ = 0x08;
    at = put_varint(at, stored->ledger_id);
    *at++ = 0x10;
    at = put_varint(at, stored->entry_id);
    *at++ = 0x18;
    at = put_varint(at, to->partition);
    if (to->epoch >= 0) {
        *at++ = 0x28;
        at = put_varint(at, (uint64_t)to->epoch);
    }
    memcpy(at, stored->data, (size_t)stored->bytes);
    return at + stored->bytes;
}

static PyObject *join_messages(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (check_count(count, 5) < 0)
        return NULL;
    Addressee to = {
        PyLong_AsUnsignedLongLongMask(args[0]),
        PyLong_AsUnsignedLongLongMask(args[1]),
        PyLong_AsLongLong(args[2]),
    };
    long long bytes_max = PyLong_AsLongLong(args[4]);
    Py_ssize_t entries = PySequence_Size(args[3]), taken = 0;
    if (PyErr_Occurred())
        return NULL;
    Stored *stored = PyMem_Malloc((size_t)(entries + 1) * sizeof(Stored));
    if (stored == NULL)
        return PyErr_NoMemory();
    long long bytes = 0;
    int usual = 1;
    while (usual == 1 && taken < entries) {
        Stored *own = &stored[taken];
        usual = open_stored(PySequence_GetItem(args[3], taken), own);
        if (usual != 1)
            break;
        taken++; /* it is to be let go of */
        Py_ssize_t body = message_body_bytes(own, &to);
        bytes += 8 + 3 + varint_bytes((uint64_t)body) + body + own->bytes;
        if (bytes > bytes_max)
            usual = 0;
    }
    PyObject *joined = usual == 1 ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes) : NULL;
    if (joined != NULL) {
        uint8_t *at = (uint8_t *)PyBytes_AsString(joined);
        for (Py_ssize_t i = 0; i < taken; i++)
            at = put_message(at, &stored[i], &to);
    }
    for (Py_ssize_t i = 0; i < taken; i++)
        Py_DECREF(stored[i].owner);
    PyMem_Free(stored);
    if (usual == 0)
        Py_RETURN_NONE;
    return joined;
}

/* -- Pulsar: what consumers acknowledge ------------------------------------------------------ */

typedef struct {
    uint64_t consumer_id, ledger_id, entry_id;
} Ack;

/* The ACK [frame, end) of one whole entry; 0 if it has another shape. */
static int read_plain_ack(const uint8_t *frame, const uint8_t *end, Ack *ack) {
    Py_ssize_t total = end - frame;
    if (total < 18 || total > 40 || get32(frame) != (uint32_t)total - 4 ||
        memcmp(frame + 4, "\x08\x0a\x52", 3) || frame[7] != total - 8 || frame[8] != 0x08)
        return 0;
    const uint8_t *at = get_varint(frame + 9, end, 9, &ack->consumer_id);
    if (at == NULL || end - at < 5 || memcmp(at, "\x10\x00\x1a", 3) || at[3] != end - at - 4 ||
        at[4] != 0x08)
        return 0;
    at = get_varint(at + 5, end, 9, &ack->ledger_id);
    if (at == NULL || at == end || *at != 0x10)
        return 0;
    return get_varint(at + 1, end, 8, &ack->entry_id) == end;
}

typedef struct {
    uint64_t consumer_id;
    PyObject *positions; /* borrowed from the list of groups */
} AckGroup;

/* A named tuple of two numbers, by ``tuple.__new__`` (``make``): memory of the type's own allocator
 * is no tuple yet. From Python 3.14 on a tuple keeps its hash, which is to begin as "not known" and
 * would be 0: equal to others, and found in no dictionary. ``arguments``: one tuple of one, used for
 * all. */
static PyObject *position_of(PyObject *type, newfunc make, PyObject *arguments, uint64_t first,
                             uint64_t second) {
    PyObject *numbers = pair((long long)first, (long long)second); /* of nine bytes: 63 bits */
    if (numbers == NULL || PyTuple_SetItem(arguments, 0, numbers) < 0)
        return NULL;
    return make((PyTypeObject *)type, arguments, NULL);
}

static PyObject *read_acks(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Chunk chunk;
    if (check_count(count, 4) < 0)
        return NULL;
    if (!PyType_Check(args[3]) || !PyType_IsSubtype((PyTypeObject *)args[3], &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "positions are of a named tuple");
        return NULL;
    }
    newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *arguments = make == NULL ? NULL : PyTuple_New(1);
    if (arguments == NULL)
        return NULL;
    if (open_chunk(&chunk, args) < 0) {
        Py_DECREF(arguments);
        return NULL;
    }
    AckGroup groups[GROUPS_SEARCHED]; /* a ring: the latest ones */
    Py_ssize_t group_count = 0, at = chunk.start;
    PyObject *found = PyList_New(0);
    while (found != NULL && chunk.end - at >= 4) {
        Ack ack;
        uint32_t size = get32(chunk.data + at);
        Py_ssize_t stop = at + 4 + (Py_ssize_t)size;
        if (size > 40 || stop > chunk.end ||
            !read_plain_ack(chunk.data + at + 4, chunk.data + stop, &ack))
            break;
        AckGroup *group = NULL;
        Py_ssize_t least = group_count > GROUPS_SEARCHED ? group_count - GROUPS_SEARCHED : 0;
        for (Py_ssize_t i = group_count - 1; group == NULL && i >= least; i--)
            if (groups[i % GROUPS_SEARCHED].consumer_id == ack.consumer_id)
                group = &groups[i % GROUPS_SEARCHED];
        if (group == NULL) {
            group = &groups[group_count++ % GROUPS_SEARCHED];
            *group = (AckGroup){ack.consumer_id, PyList_New(0)};
            if (group->positions == NULL ||
                append(found, Py_BuildValue("KN", (unsigned long long)ack.consumer_id,
                                            group->positions)) < 0)
                break;
        }
        PyObject *position = position_of(args[3], make, arguments, ack.ledger_id, ack.entry_id);
        if (append(group->positions, position) < 0)
            break;
        at = stop;
    }
    Py_DECREF(arguments);
    PyBuffer_Release(&chunk.buffer);
    return with_stop(found, at);
}

/* -- Pulsar: stored entries, as columns ------------------------------------------------------ */

#define WANT_VALUES 1
#define WANT_KEYS 2
#define WANT_EVENT_TIMES 4
#define WANT_KEYS_ENCODED 8
#define WANT_PROPERTIES 16
#define TIME_MS_MAX (INT64_MAX / 1000) /* later times are no timestamp in microseconds */
#define VERSION_BYTES 8

/* A field of a message: its tag, and its number, or where its bytes lie. */
typedef struct {
    uint32_t tag;
    uint64_t value;
    const uint8_t *bytes;
} Field;

/* The field at ``at``, all before ``end``: where the next one begins; NULL for none that is whole,
 * or for one that no client writes. */
static inline const uint8_t *read_field(const uint8_t *at, const uint8_t *end, Field *field) {
    uint64_t tag;
    at = get_varint(at, end, 5, &tag);
    if (at == NULL || tag < 8 || tag > UINT32_MAX)
        return NULL;
    *field = (Field){(uint32_t)tag, 0, at};
    switch (tag & 7) {
    case 0:
        return get_varint(at, end, 9, &field->value);
    case 1:
        return end - at >= 8 ? at + 8 : NULL;
    case 2:
        at = get_varint(at, end, 9, &field->value);
        if (at == NULL || field->value > (uint64_t)(end - at))
            return NULL;
        field->bytes = at;
        return at + field->value;
    case 5:
        return end - at >= 4 ? at + 4 : NULL;
    }
    return NULL;
}

/* Where a message's value and key lie, which are NULL for none, and what else it says. */
typedef struct {
    const uint8_t *value, *key;
    size_t value_bytes, key_bytes;
    int64_t event_time_ms;
    uint8_t key_encoded;
} Row;

/* An entry: where its data lie, and what holds for all its messages; -1 for what it does not say. */
typedef struct {
    const uint8_t *data, *end;
    int64_t messages, published_ms, last_offset, version;
} StoredHead;

/* The metadata [at, end) of an entry; 0 if it is not of the usual shape. What it says of a message
 * that is an entry of its own goes into ``row``. */
static int read_stored_metadata(
    const uint8_t *at, const uint8_t *end, long wanted, StoredHead *head, Row *row) {
    int named = 0, numbered = 0, odd = 0;
    Field field;
    while (at < end) {
        at = read_field(at, end, &field);
        if (at == NULL)
            return 0;
        switch (field.tag) {
        case 1 << 3 | 2: /* producer_name */
            named = 1;
            break;
        case 2 << 3: /* sequence_id */
            numbered = 1;
            break;
        case 3 << 3: /* publish_time */
            odd |= field.value > TIME_MS_MAX;
            head->published_ms = (int64_t)field.value;
            break;
        case 4 << 3 | 2: /* properties, which mean something only without a batch */
            odd |= (wanted & WANT_PROPERTIES) != 0;
            break;
        case 6 << 3 | 2: /* partition_key */
            row->key = field.bytes;
            row->key_bytes = (size_t)field.value;
            break;
        case 8 << 3: /* compression */
            odd |= field.value != 0;
            break;
        case 11 << 3: /* num_messages_in_batch */
            odd |= field.value == 0 || field.value > INT32_MAX;
            head->messages = (int64_t)field.value;
            break;
        case 12 << 3: /* event_time */
            odd |= field.value > TIME_MS_MAX;
            row->event_time_ms = (int64_t)field.value;
            break;
        case 13 << 3 | 2: /* encryption_keys */
        case 14 << 3 | 2: /* encryption_algo */
        case 13 << 3:
        case 14 << 3:
            return 0;
        case 16 << 3 | 2: /* schema_version */
            head->version = field.value == VERSION_BYTES ? (int64_t)get64(field.bytes) : -1;
            odd |= head->version < -1;
            break;
        case 17 << 3: /* partition_key_b64_encoded */
            row->key_encoded = field.value != 0;
            break;
        case 25 << 3: /* null_value */
            row->value = field.value ? NULL : head->data;
            break;
        case 27 << 3: /* num_chunks_from_msg */
            odd |= field.value > 1;
            break;
        case 31 << 3 | 2: /* indexes of what compaction left */
        case 31 << 3:
            return 0;
        }
    }
    return named && numbered && head->published_ms >= 0 && !odd;
}

/* The head of the entry [at, end): a broker's header and a checksum, which may be absent, and
 * metadata; 0 if it is not of the usual shape. */
static int read_stored_head(
    const uint8_t *at, const uint8_t *end, long wanted, StoredHead *head, Row *row) {
    *head = (StoredHead){NULL, end, -1, -1, -1, -1};
    *row = (Row){NULL, NULL, 0, 0, 0, 0};
    if (end - at >= 6 && at[0] == 0x0E && at[1] == 0x02) {
        uint32_t size = get32(at + 2);
        at += 6;
        if (size > (uint64_t)(end - at))
            return 0;
        Field field;
        for (const uint8_t *stop = at + size; at < stop;) {
            at = read_field(at, stop, &field);
            if (at == NULL)
                return 0;
            if (field.tag == (2 << 3)) /* the offset of its last message */
                head->last_offset = (int64_t)field.value;
        }
    }
    if (end - at >= 10 && at[0] == 0x0E && at[1] == 0x01)
        at += 6;
    if (end - at < 4 || get32(at) > (uint64_t)(end - at - 4))
        return 0;
    head->data = row->value = at + 4 + get32(at);
    row->value_bytes = (size_t)(end - head->data);
    return read_stored_metadata(at + 4, head->data, wanted, head, row);
}

/* The message of a batch at ``at``, all before ``end``: where the next one begins; NULL if it is
 * not of the usual shape. */
static const uint8_t *read_row(const uint8_t *at, const uint8_t *end, long wanted, Row *row) {
    if (end - at < 4 || get32(at) > (uint64_t)(end - at - 4))
        return NULL;
    const uint8_t *values = at + 4 + get32(at);
    int sized = 0, odd = 0;
    Field field;
    *row = (Row){values, NULL, 0, 0, 0, 0};
    for (at += 4; at < values;) {
        at = read_field(at, values, &field);
        if (at == NULL)
            return NULL;
        switch (field.tag) {
        case 1 << 3 | 2: /* properties */
            odd |= (wanted & WANT_PROPERTIES) != 0;
            break;
        case 2 << 3 | 2: /* partition_key */
            row->key = field.bytes;
            row->key_bytes = (size_t)field.value;
            break;
        case 3 << 3: /* payload_size */
            sized = field.value <= (uint64_t)(end - values);
            row->value_bytes = (size_t)field.value;
            break;
        case 4 << 3: /* compacted_out */
            odd |= field.value != 0;
            break;
        case 5 << 3: /* event_time */
            odd |= field.value > TIME_MS_MAX;
            row->event_time_ms = (int64_t)field.value;
            break;
        case 6 << 3: /* partition_key_b64_encoded */
            row->key_encoded = field.value != 0;
            break;
        case 9 << 3: /* null_value */
            row->value = field.value ? NULL : values;
            break;
        }
    }
    return sized && !odd ? values + row->value_bytes : NULL;
}

typedef struct {
    StoredHead *heads;
    Py_ssize_t entries;
    Row *rows;
    Py_ssize_t count;
    uint64_t bytes, bytes_max; /* of values and keys */
    long wanted;
} Gathering;

static int add_row(Gathering *gathering, const Row *row) {
    Row *larger = grown(gathering->rows, gathering->count, sizeof(Row));
    if (larger == NULL)
        return -1;
    gathering->rows = larger;
    larger[gathering->count++] = *row;
    if (row->value != NULL)
        gathering->bytes += row->value_bytes;
    if (row->key != NULL)
        gathering->bytes += row->key_bytes;
    return gathering->bytes <= gathering->bytes_max;
}

/* The messages of an entry. 1: taken, 0: not of the usual shape, or too much, -1: an error. */
static int add_stored(Gathering *gathering, const Py_buffer *entry) {
    const uint8_t *at = entry->buf;
    StoredHead head;
    Row row;
    if (!read_stored_head(at, at + entry->len, gathering->wanted, &head, &row))
        return 0;
    StoredHead *larger = grown(gathering->heads, gathering->entries, sizeof(StoredHead));
    if (larger == NULL)
        return -1;
    gathering->heads = larger;
    Py_ssize_t count = gathering->count;
    uint64_t bytes = gathering->bytes;
    int added = 1;
    at = head.data;
    if (head.messages < 0)
        added = add_row(gathering, &row);
    for (int64_t i = 0; added > 0 && i < head.messages; i++) {
        at = read_row(at, head.end, gathering->wanted, &row);
        added = at == NULL ? 0 : add_row(gathering, &row);
    }
    if (added <= 0) { /* nothing of it */
        gathering->count = count;
        gathering->bytes = bytes;
        return added;
    }
    larger[gathering->entries++] = head;
    return 1;
}

/* A column of bytes: offsets of 32 bits, the bytes, and which there are. */
typedef struct {
    uint8_t *offsets, *data, *present;
} BytesColumn;

static void write_bytes_column(const Gathering *gathering, int keys, BytesColumn column) {
    int32_t offset = 0;
    memcpy(column.offsets, &offset, 4);
    for (Py_ssize_t i = 0; i < gathering->count; i++) {
        const Row *row = &gathering->rows[i];
        const uint8_t *bytes = keys ? row->key : row->value;
        if (bytes != NULL) {
            size_t size = keys ? row->key_bytes : row->value_bytes;
            if (size)
                memcpy(column.data + offset, bytes, size);
            offset += (int32_t)size;
            if (column.present != NULL)
                column.present[i / 8] |= (uint8_t)(1 << i % 8);
        }
        memcpy(column.offsets + 4 * (i + 1), &offset, 4);
    }
}

/* (offsets, bytes, bits of those that are there, or None if all are); NULL on an error. */
static PyObject *bytes_column(const Gathering *gathering, int keys) {
    Py_ssize_t absent = 0, bytes = 0;
    for (Py_ssize_t i = 0; i < gathering->count; i++) {
        const Row *row = &gathering->rows[i];
        if ((keys ? row->key : row->value) == NULL)
            absent++;
        else
            bytes += (Py_ssize_t)(keys ? row->key_bytes : row->value_bytes);
    }
    Py_ssize_t bits = (gathering->count + 7) / 8;
    PyObject *offsets = PyBytes_FromStringAndSize(NULL, 4 * (gathering->count + 1));
    PyObject *data = PyBytes_FromStringAndSize(NULL, bytes);
    PyObject *present = absent ? PyBytes_FromStringAndSize(NULL, bits) : Py_NewRef(Py_None);
    PyObject *found = NULL;
    if (offsets != NULL && data != NULL && present != NULL) {
        BytesColumn column = {
            (uint8_t *)PyBytes_AsString(offsets), (uint8_t *)PyBytes_AsString(data),
            absent ? memset(PyBytes_AsString(present), 0, (size_t)bits) : NULL};
        if (bytes < UNLOCKED_BYTES_MIN) {
            write_bytes_column(gathering, keys, column);
        } else {
            Py_BEGIN_ALLOW_THREADS
            write_bytes_column(gathering, keys, column);
            Py_END_ALLOW_THREADS
        }
        found = PyTuple_Pack(3, offsets, data, present);
    }
    Py_XDECREF(offsets);
    Py_XDECREF(data);
    Py_XDECREF(present);
    return found;
}

/* The numbers of all entries, four each. */
static PyObject *heads_column(const Gathering *gathering) {
    PyObject *found = PyBytes_FromStringAndSize(NULL, 32 * gathering->entries);
    char *at = found == NULL ? NULL : PyBytes_AsString(found);
    for (Py_ssize_t i = 0; at != NULL && i < gathering->entries; i++, at += 32)
        memcpy(at, &gathering->heads[i].messages, 32);
    return found;
}

static PyObject *event_times_column(const Gathering *gathering) {
    PyObject *found = PyBytes_FromStringAndSize(NULL, 8 * gathering->count);
    char *at = found == NULL ? NULL : PyBytes_AsString(found);
    for (Py_ssize_t i = 0; at != NULL && i < gathering->count; i++, at += 8)
        memcpy(at, &gathering->rows[i].event_time_ms, 8);
    return found;
}

static PyObject *keys_encoded_column(const Gathering *gathering) {
    PyObject *found = PyBytes_FromStringAndSize(NULL, gathering->count);
    char *at = found == NULL ? NULL : PyBytes_AsString(found);
    for (Py_ssize_t i = 0; at != NULL && i < gathering->count; i++)
        at[i] = (char)gathering->rows[i].key_encoded;
    return found;
}

static PyObject *gathered(const Gathering *gathering) {
    long wanted = gathering->wanted;
    PyObject *columns[5] = {
        heads_column(gathering),
        wanted & WANT_VALUES ? bytes_column(gathering, 0) : Py_NewRef(Py_None),
        wanted & WANT_KEYS ? bytes_column(gathering, 1) : Py_NewRef(Py_None),
        wanted & WANT_EVENT_TIMES ? event_times_column(gathering) : Py_NewRef(Py_None),
        wanted & WANT_KEYS_ENCODED ? keys_encoded_column(gathering) : Py_NewRef(Py_None),
    };
    PyObject *found = NULL;
    if (columns[0] && columns[1] && columns[2] && columns[3] && columns[4])
        found = PyTuple_Pack(5, columns[0], columns[1], columns[2], columns[3], columns[4]);
    for (int i = 0; i < 5; i++)
        Py_XDECREF(columns[i]);
    return found;
}

static PyObject *gather_messages(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (check_count(count, 3) < 0)
        return NULL;
    Gathering gathering = {NULL, 0, NULL, 0, 0, 0, PyLong_AsLong(args[1])};
    if (gathering.wanted == -1 && PyErr_Occurred())
        return NULL;
    long long bytes_max = PyLong_AsLongLong(args[2]);
    if (bytes_max == -1 && PyErr_Occurred())
        return NULL;
    if (bytes_max < 0 || bytes_max > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "bytes_max is not within what offsets of 32 bits say");
        return NULL;
    }
    gathering.bytes_max = (uint64_t)bytes_max;
    Py_ssize_t given = PySequence_Size(args[0]), opened = 0;
    Py_buffer *entries = given > 0 ? PyMem_Malloc((size_t)given * sizeof(Py_buffer)) : NULL;
    if (given > 0 && entries == NULL)
        PyErr_NoMemory();
    int added = PyErr_Occurred() ? -1 : 1;
    while (added > 0 && opened < given) {
        PyObject *entry = PySequence_GetItem(args[0], opened);
        added = entry == NULL || PyObject_GetBuffer(entry, &entries[opened], PyBUF_SIMPLE) < 0
                    ? -1
                    : add_stored(&gathering, &entries[opened++]);
        Py_XDECREF(entry); /* what was opened holds it */
    }
    PyObject *found = added < 0 ? NULL : gathered(&gathering);
    while (opened)
        PyBuffer_Release(&entries[--opened]);
    PyMem_Free(entries);
    PyMem_Free(gathering.heads);
    PyMem_Free(gathering.rows);
    return found;
}

/* -- the module ------------------------------------------------------------------------------ */

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION(build_entries),   FUNCTION(check_records), FUNCTION(count_sound),
    FUNCTION(crc32c),          FUNCTION(decode_add_answers), FUNCTION(decode_adds),
    FUNCTION(encode_receipts), FUNCTION(find_frames),   FUNCTION(frame_records),
    FUNCTION(gather_messages), FUNCTION(inspect_adds),  FUNCTION(join_entries),
    FUNCTION(join_messages),   FUNCTION(join_records),  FUNCTION(read_acks),
    FUNCTION(read_sends),      FUNCTION(split_entries), FUNCTION(whole_messages),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_speedups", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__speedups(void) {
    make_crc_tables();
    name_ledger_id = PyUnicode_InternFromString("ledger_id");
    name_entry_id = PyUnicode_InternFromString("entry_id");
    name_data = PyUnicode_InternFromString("data");
    name_payload_offset = PyUnicode_InternFromString("payload_offset");
    if (!name_ledger_id || !name_entry_id || !name_data || !name_payload_offset)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        Py_CLEAR(module);
    return module;
}
