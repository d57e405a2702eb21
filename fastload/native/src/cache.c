/* A table in memory that processes share: entries that are found by a key, are never moved, and never removed.
 *
 * Any number of processes and threads may use it at once, without locks: memory is given out by an atomic counter, an
 * entry is written before its place is published, and a place that is published does not change. A process that is
 * killed on the way loses the entry that it was writing, and nothing else.
 *
 * The memory is that of a memory file, which has no path, so nobody else writes to it or shortens it. It is zero before
 * fastload_cache_begin, and holds, one after the other, as they come: the beginning (struct cache), tables of places, and
 * entries (struct entry), all at multiples of 16 bytes. What is given out was allocated in the file before, in steps, so
 * there is no page that the system could not have when it is written to.
 *
 * The value of an entry is the end of a line of an index, which says where a record lies (fastload/cache/record_file.py).
 *
 * Table k has FIRST_SLOTS << k slots. An entry goes into the newest table; where that is three quarters full, another is
 * begun, and the older ones stay. So a look-up of n entries reads at most log2(n / FIRST_SLOTS) tables, the largest first. */
#define _GNU_SOURCE /* fstat with nanoseconds; fallocate */
#include "fastload.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#ifdef __linux__ /* there is no cache elsewhere */
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#endif

#define FIRST_SLOTS 1024
#define MOST_TABLES 32
#define ALIGN 16
#define STEP (UINT64_C(8) << 20) /* bytes that the system is asked for at a time: 1 to 2 ms */
#define SECOND_NS INT64_C(1000000000)

/* 192 bits, of which one may rely on that no two files have the same. */
struct key {
    uint64_t words[3];
};

/* A line of an index: where a record lies in a file. */
struct line {
    struct key key; /* its first word is 0 where there is none */
    uint64_t value[2];
};

struct slot {
    _Atomic uint64_t tag;   /* the key's first word; 0: free */
    _Atomic uint64_t place; /* of the entry; 0: it is not published yet, or its writer was killed */
};

/* Before a value. */
struct entry {
    uint64_t rest[2]; /* of the key: its other words */
};

struct cache {
    _Atomic uint64_t allocated; /* up to where the file has memory */
    _Atomic uint64_t next;      /* the first byte that was not given out */
    _Atomic uint64_t num_entries;
    _Atomic uint64_t is_full;  /* whether a record found no room */
    _Atomic uint64_t is_short; /* whether that was since the system had none */
    _Atomic uint64_t tables[MOST_TABLES]; /* where they begin; 0: not made yet */
    _Atomic uint64_t used[MOST_TABLES];   /* slots of each that are taken */
};

/* Where a process has mapped a cache. */
struct where {
    uint8_t *memory;
    uint64_t size; /* in bytes */
    int64_t file;
};

static struct cache *cache_at(const struct where *where)
{
    return (struct cache *)(void *)where->memory;
}

static uint64_t num_slots(int table)
{
    return (uint64_t)FIRST_SLOTS << table;
}

static struct slot *table_at(const struct where *where, int table)
{
    const uint64_t place = atomic_load_explicit(&cache_at(where)->tables[table], memory_order_acquire);
    return (struct slot *)(void *)(where->memory + place);
}

/* Notes that a record has found no room, and whether that is since the system has none. */
FASTLOAD_EXPORT void fastload_cache_full(const struct where *where, int is_short)
{
    if (is_short)
        atomic_store(&cache_at(where)->is_short, 1);
    atomic_store(&cache_at(where)->is_full, 1);
}

/* Asks the system for memory up to a place, and some more for those who come next; returns whether it is had. Several
 * processes may do it at once: that changes nothing.
 *
 * Not posix_fallocate, which writes to parts that others may write to, where a file system has no way to do this. */
static int has_memory(const struct where *where, uint64_t end)
{
    struct cache *cache = cache_at(where);
    uint64_t known = atomic_load_explicit(&cache->allocated, memory_order_acquire);
    if (end <= known)
        return 1;
#ifdef __linux__
    const uint64_t wanted = end > known + STEP ? end : known + STEP, next = wanted < where->size ? wanted : where->size;
    int tries = 100; /* a signal undoes it */
    while (fallocate((int)where->file, 0, (off_t)known, (off_t)(next - known)))
        if (errno != EINTR || !--tries) {
            fastload_cache_full(where, 1);
            return 0;
        }
    while (known < next && !atomic_compare_exchange_weak_explicit(&cache->allocated, &known, next, memory_order_acq_rel,
                                                                  memory_order_acquire)) {
    }
    return 1;
#else
    return 0;
#endif
}

/* Gives out memory; returns where it begins. 0: there is not so much left. */
static uint64_t take(const struct where *where, uint64_t length)
{
    struct cache *cache = cache_at(where);
    length = (length + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
    uint64_t place = atomic_load_explicit(&cache->next, memory_order_relaxed);
    do {
        if (length > where->size - place) {
            fastload_cache_full(where, 0);
            return 0;
        }
        if (!has_memory(where, place + length))
            return 0;
    } while (!atomic_compare_exchange_weak_explicit(&cache->next, &place, place + length, memory_order_relaxed,
                                                    memory_order_relaxed));
    return place;
}

/* Begins a cache in memory that is all zero; one that has begun stays as it is. Returns whether there is room. */
FASTLOAD_EXPORT int fastload_cache_begin(const struct where *where)
{
    const uint64_t first = sizeof(struct cache), table = num_slots(0) * sizeof(struct slot);
#ifdef __linux__
    if (where->size < first + table || fallocate((int)where->file, 0, 0, (off_t)first))
        return 0;
#endif
    struct cache *cache = cache_at(where);
    uint64_t none = 0; /* where another process is faster, its table is used, and this memory is lost */
    atomic_compare_exchange_strong(&cache->next, &none, first);
    if (atomic_load(&cache->tables[0]))
        return 1;
    const uint64_t place = take(where, table);
    none = 0;
    if (place)
        atomic_compare_exchange_strong(&cache->tables[0], &none, place);
    return atomic_load(&cache->tables[0]) != 0;
}

/* The newest table, with room for another entry; -1: there is no memory for one. */
static int newest(const struct where *where)
{
    struct cache *cache = cache_at(where);
    int table = 0;
    while (table + 1 < MOST_TABLES && atomic_load_explicit(&cache->tables[table + 1], memory_order_acquire))
        table++;
    if (4 * atomic_load_explicit(&cache->used[table], memory_order_relaxed) < 3 * num_slots(table))
        return table;
    if (++table == MOST_TABLES)
        return -1;
    const uint64_t place = take(where, num_slots(table) * sizeof(struct slot));
    if (!place)
        return -1;
    uint64_t none = 0; /* where another was faster, its table is used, and this memory is lost */
    atomic_compare_exchange_strong_explicit(&cache->tables[table], &none, place, memory_order_acq_rel,
                                            memory_order_acquire);
    return table;
}

/* Returns where the value of a key begins, from the beginning of the memory; 0: there is none. */
FASTLOAD_EXPORT uint64_t fastload_cache_find(const struct where *where, const struct key *key)
{
    struct cache *cache = cache_at(where);
    const uint64_t tag = key->words[0];
    int table = 0;
    while (table + 1 < MOST_TABLES && atomic_load_explicit(&cache->tables[table + 1], memory_order_acquire))
        table++;
    /* Most entries are in the newest tables: their slots are fetched from memory at once, not one after the other. */
    for (int next = table; next >= 0 && next > table - 4; next--)
        __builtin_prefetch(table_at(where, next) + (key->words[1] & (num_slots(next) - 1)));
    for (; table >= 0; table--) {
        struct slot *slots = table_at(where, table);
        const uint64_t mask = num_slots(table) - 1;
        /* Writers stop at three quarters, but for those that were on their way. */
        for (uint64_t left = mask, at = key->words[1] & mask; left; left--, at = (at + 1) & mask) {
            const uint64_t here = atomic_load_explicit(&slots[at].tag, memory_order_acquire);
            if (!here)
                break;
            const uint64_t place = here == tag ? atomic_load_explicit(&slots[at].place, memory_order_acquire) : 0;
            if (place && !memcmp(where->memory + place, key->words + 1, 16))
                return place + sizeof(struct entry);
        }
    }
    return 0;
}

/* Publishes an entry that was written, and counts it if it is to count. Returns whether there was room for its place. */
static int enter(const struct where *where, const struct key *key, uint64_t place, int counts)
{
    struct cache *cache = cache_at(where);
    for (;;) {
        const int table = newest(where);
        if (table < 0)
            return 0;
        struct slot *slots = table_at(where, table);
        const uint64_t mask = num_slots(table) - 1;
        for (uint64_t left = mask, at = key->words[1] & mask; left; left--, at = (at + 1) & mask) {
            uint64_t free = 0;
            if (!atomic_compare_exchange_strong_explicit(&slots[at].tag, &free, key->words[0], memory_order_acq_rel,
                                                         memory_order_acquire))
                continue;
            atomic_fetch_add_explicit(&cache->used[table], 1, memory_order_relaxed);
            atomic_store_explicit(&slots[at].place, place, memory_order_release);
            atomic_fetch_add_explicit(&cache->num_entries, counts != 0, memory_order_relaxed);
            return 1;
        }
        /* Writers killed between two steps have filled it without counting: count them, and go on to the next. */
        atomic_store_explicit(&cache->used[table], num_slots(table), memory_order_relaxed);
    }
}

/* Keeps the values of so many lines under their keys, in place of those that are kept. All count, or keys whose last bit is
 * set. Returns for how many there was room. */
FASTLOAD_EXPORT uint64_t fastload_cache_list(const struct where *where, const struct line *lines, uint64_t num, int all)
{
    for (uint64_t i = 0; i < num; i++) {
        const struct line *line = lines + i;
        if (!line->key.words[0])
            continue;
        uint64_t place = fastload_cache_find(where, &line->key);
        if (place) {
            if (memcmp(where->memory + place, line->value, sizeof line->value))
                memcpy(where->memory + place, line->value, sizeof line->value);
            continue;
        }
        const struct entry head = {{line->key.words[1], line->key.words[2]}};
        place = take(where, sizeof head + sizeof line->value);
        if (!place)
            return i;
        memcpy(where->memory + place, &head, sizeof head);
        memcpy(where->memory + place + sizeof head, line->value, sizeof line->value);
        if (!enter(where, &line->key, place, all || line->key.words[2] & 1))
            return i;
    }
    return num;
}

/* Writes how many entries count, whether a record found no room, and whether the system had none for it. */
FASTLOAD_EXPORT void fastload_cache_look(const struct where *where, uint64_t found[3])
{
    struct cache *cache = cache_at(where);
    found[0] = atomic_load(&cache->num_entries);
    found[1] = atomic_load(&cache->is_full);
    found[2] = atomic_load(&cache->is_short);
}

/* Returns the checksum of bytes: CRC-32. */
FASTLOAD_EXPORT uint32_t fastload_cache_sum(const uint8_t *bytes, uint64_t length)
{
    return crc32_of(bytes, (size_t)length, fastload_level);
}

/* A bijection in which each bit of the input changes about half of the output's: the finaliser of MurmurHash3. */
static uint64_t mixed(uint64_t word)
{
    word ^= word >> 33;
    word *= UINT64_C(0xFF51AFD7ED558CCD);
    word ^= word >> 33;
    word *= UINT64_C(0xC4CEB9FE1A85EC53);
    return word ^ word >> 33;
}

/* Writes the key of an open file: of its device, inode, size, and times of change; and its device, if one may rely on the
 * time of its last change. Returns 1; 0 where it is no plain file, or has changed within the last `settled_ns`
 * nanoseconds, so that it may change again and have the same key; -1 where the system tells nothing. */
FASTLOAD_EXPORT int fastload_cache_key(int file, int64_t settled_ns, struct key *key, uint64_t *device)
{
#ifdef __linux__
    struct stat found;
    struct timespec now;
    if (fstat(file, &found) || clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (!S_ISREG(found.st_mode))
        return 0;
    const int64_t modified = (int64_t)found.st_mtim.tv_sec * SECOND_NS + found.st_mtim.tv_nsec;
    const int64_t changed = (int64_t)found.st_ctim.tv_sec * SECOND_NS + found.st_ctim.tv_nsec;
    /* Users can set the time of modification, not that of the last change. */
    if ((int64_t)now.tv_sec * SECOND_NS + now.tv_nsec - changed < settled_ns)
        return 0;
    const uint64_t words[5] = {(uint64_t)found.st_dev, (uint64_t)found.st_ino, (uint64_t)found.st_size,
                               (uint64_t)modified, (uint64_t)changed};
    for (int lane = 0; lane < 3; lane++) {
        uint64_t hash = UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)(lane + 1);
        for (int i = 0; i < 5; i++)
            hash = mixed(hash ^ words[i]) + UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)(lane + 2);
        key->words[lane] = hash;
    }
    key->words[0] |= !key->words[0]; /* 0 stands for a free slot */
    key->words[2] &= ~UINT64_C(1);   /* set in keys of bytes */
    *device = found.st_ctim.tv_nsec ? words[0] : 0; /* of whole seconds: made up where an image of a disk was made */
    return 1;
#else
    (void)file;
    (void)settled_ns;
    (void)key;
    (void)device;
    return -1;
#endif
}
