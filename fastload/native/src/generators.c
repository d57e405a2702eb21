/* The states that `random`, NumPy and torch seed themselves with, for the samples of a chunk, one after the other.
 *
 *     ids ─BLAKE2b─> keys ─chains─> states of LANES samples ─copy─> the three generators, one sample at a time
 *
 * In: what a sample's key is made of, and where the generators' states are. Out: at each call the state of the next
 * sample, the same as by random.seed(), np.random.seed() and torch.Generator.manual_seed() with the words of its key.
 * fastload/keys/seeding.py defines keys and words; fastload/native/generators.py finds the states, and checks what is said
 * here of their layouts before anything is written.
 */
#include "fastload.h"

#include <string.h>

#define LANES 16
#define STATE_WORDS 624
#define STATE_BYTES (STATE_WORDS * 4)
/* Words of a sample: its three states. */
#define ROW (3 * STATE_WORDS)

/* Of torch's generator, in bytes from its seed, which 32 bits follow that say how many words are left: whether it was
 * seeded, the place of the next word, the words, and whether it keeps a second Gaussian of 32 and of 64 bits. */
#define TORCH_SEEDED 12
#define TORCH_PLACE 16
#define TORCH_WORDS 20
#define TORCH_FLOAT 2524
#define TORCH_DOUBLE 2536
#define TORCH_BYTES 2544
#define GAUSS_BYTES 16

/* From the seeds of LANES samples. */
struct seeds {
    uint32_t random[2][LANES]; /* what is added at even steps of the first pass, and at odd ones */
    uint32_t numpy[LANES];
    uint32_t torch[LANES];
};

/* BLAKE2b. A message is the prefix (seed, epoch, domain) and an id: six words of 64 bits. */
#define MESSAGE_BYTES 48
#define ROTATED(x, by) (((x) >> (by)) | ((x) << (64 - (by))))

static const uint64_t HASH_WORDS[8] = {
    0x6A09E667F3BCC908u, 0xBB67AE8584CAA73Bu, 0x3C6EF372FE94F82Bu, 0xA54FF53A5F1D36F1u,
    0x510E527FADE682D1u, 0x9B05688C2B3E6C1Fu, 0x1F83D9ABFB41BD6Bu, 0x5BE0CD19137E2179u,
};
/* The same, changed by the parameters: a digest of 16 bytes, no key, one node, and "fastload.v1" as the person. */
static const uint64_t HASH_START[8] = {
    0x6A09E667F3BCC908u ^ 0x01010010u, 0xBB67AE8584CAA73Bu, 0x3C6EF372FE94F82Bu, 0xA54FF53A5F1D36F1u,
    0x510E527FADE682D1u, 0x9B05688C2B3E6C1Fu, 0x1F83D9ABFB41BD6Bu ^ 0x64616F6C74736166u,
    0x5BE0CD19137E2179u ^ 0x31762Eu,
};
static const uint8_t HASH_ORDER[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

/* One step of a chain, but for what is added and what stood there before. */
#define STEP(previous, factor) (((previous) ^ ((previous) >> 30)) * (factor))

#ifdef __clang__
#define SHUFFLE(kind, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(kind, a, b, ...) __builtin_shuffle(a, b, (kind){__VA_ARGS__})
#endif

#define WIDTH 4
#define NAME(x) x##_plain
#define TARGET
#include "generator_states.h"
#ifdef FASTLOAD_X86
#define WIDTH 8
#define NAME(x) x##_avx2
#define TARGET FASTLOAD_TARGET_AVX2
#include "generator_states.h"
#endif

/* Memory for the states to come. */
struct room {
    uint64_t digests[2][LANES];
    uint32_t rows[LANES][ROW]; /* for `random`, NumPy and torch */
    uint32_t middle[STATE_WORDS][LANES];
    uint32_t base[STATE_WORDS];
};

/* Where states are, and what tells whether the caller's thread is the only one of Python's. fastload/native/generators.py
 * has the same structure, and the next. */
struct states {
    uint8_t *random; /* a place of 32 bits, and the words */
    uint8_t *numpy;  /* the words, and a place of 32 bits */
    uint8_t *gauss;  /* 32 bits: whether a second Gaussian is kept; and behind 8 bytes this one */
    uint8_t *torch;  /* its seed, and what TORCH_SEEDED and the others say */
    void *interpreter;
    void *(*first_thread)(void *); /* PyInterpreterState_ThreadHead */
    void *(*next_thread)(void *);  /* PyThreadState_Next */
};

/* A run of samples. */
struct run {
    const struct states *states;
    struct room *room;
    const int64_t *ids; /* NULL: first, first + stride, ... */
    int64_t first;
    int64_t stride;
    int64_t num;        /* samples of the run */
    int64_t done;       /* of which the generators have had the states */
    uint64_t prefix[4];
};

/* Make the keys of the next samples. */
static void make_digests(const struct run *run)
{
    uint64_t message[8][LANES] = {{0}};
    for (int lane = 0; lane < LANES; lane++) {
        int64_t place = run->done + lane, id = 0;
        if (place < run->num)
            id = run->ids ? run->ids[place] : (int64_t)((uint64_t)run->first + (uint64_t)place * (uint64_t)run->stride);
        for (int word = 0; word < 4; word++)
            message[word][lane] = run->prefix[word];
        message[4][lane] = (uint64_t)id;
        message[5][lane] = id < 0 ? ~(uint64_t)0 : 0;
    }
#ifdef FASTLOAD_X86
    if (fastload_level >= FASTLOAD_AVX2) {
        hash_avx2(message, run->room->digests);
        return;
    }
#endif
    hash_plain(message, run->room->digests);
}

/* Make the states of the keys. */
static void make_states(struct room *room)
{
    struct seeds seeds;
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t low = (uint32_t)room->digests[0][lane], high = (uint32_t)(room->digests[0][lane] >> 32);
        seeds.random[0][lane] = low;
        /* A seed of 32 bits is an array of one word, which then comes at all steps. */
        seeds.random[1][lane] = high ? high + 1 : low;
        seeds.numpy[lane] = (uint32_t)room->digests[1][lane];
        seeds.torch[lane] = (uint32_t)(room->digests[1][lane] >> 32);
    }
#ifdef FASTLOAD_X86
    if (fastload_level >= FASTLOAD_AVX2) {
        seed_states_avx2(&seeds, room->base, room->middle[0], room->rows[0]);
        return;
    }
#endif
    seed_states_plain(&seeds, room->base, room->middle[0], room->rows[0]);
}

/* Bytes of struct room. */
FASTLOAD_EXPORT int64_t fastload_generators_room(void)
{
    return sizeof(struct room);
}

/* Prepare the memory of runs. */
FASTLOAD_EXPORT void fastload_generators_prepare(struct run *run)
{
    uint32_t *base = run->room->base;
    base[0] = 19650218u;
    for (uint32_t i = 1; i < STATE_WORDS; i++)
        base[i] = STEP(base[i - 1], 1812433253u) + i;
}

/* Copy states to memory of fastload_generators_bytes(), or from there. */
static void copy_states(const struct states *states, uint8_t *memory, int back)
{
    uint8_t *places[4] = {states->random, states->numpy, states->gauss, states->torch};
    static const size_t sizes[4] = {STATE_BYTES + 4, STATE_BYTES + 4, GAUSS_BYTES, TORCH_BYTES};
    for (int i = 0; i < 4; memory += sizes[i++])
        memcpy(back ? places[i] : memory, back ? memory : places[i], sizes[i]);
}

FASTLOAD_EXPORT int64_t fastload_generators_bytes(void)
{
    return 2 * (STATE_BYTES + 4) + GAUSS_BYTES + TORCH_BYTES;
}

FASTLOAD_EXPORT void fastload_generators_read(const struct states *states, uint8_t *to)
{
    copy_states(states, to, 0);
}

FASTLOAD_EXPORT void fastload_generators_write(const struct states *states, uint8_t *from)
{
    copy_states(states, from, 1);
}

/* Give the generators the states of the next sample, NumPy's lock being held. Returns 0, or -1 if there was none. */
FASTLOAD_EXPORT int fastload_generators_next_locked(struct run *run)
{
    if (run->done >= run->num)
        return -1;
    int64_t lane = run->done % LANES;
    if (lane == 0) {
        make_digests(run);
        make_states(run->room);
    }
    run->done++;
    const struct states *to = run->states;
    const uint32_t *row = run->room->rows[lane];
    const uint32_t none = 0, place = STATE_WORDS; /* all words are used up: the first draw makes new ones */
    memcpy(to->random, &place, 4);
    memcpy(to->random + 4, row, STATE_BYTES);
    row += STATE_WORDS;
    memcpy(to->numpy, row, STATE_BYTES);
    memcpy(to->numpy + STATE_BYTES, &place, 4);
    memset(to->gauss, 0, 4);
    memset(to->gauss + 8, 0, 8);
    row += STATE_WORDS;
    const uint32_t seed[3] = {row[0], 0, 1}; /* and one word is left, behind which likewise new ones are made */
    memcpy(to->torch, seed, sizeof seed);
    to->torch[TORCH_SEEDED] = 1;
    memcpy(to->torch + TORCH_PLACE, &none, 4);
    memcpy(to->torch + TORCH_WORDS, row, STATE_BYTES);
    to->torch[TORCH_FLOAT] = to->torch[TORCH_DOUBLE] = 0;
    return 0;
}

/* The same without the lock, if no other thread of Python's is there to draw. Returns 1 if there is one: nothing was
 * done. */
FASTLOAD_EXPORT int fastload_generators_next(struct run *run)
{
    const struct states *states = run->states;
    if (states->next_thread(states->first_thread(states->interpreter)))
        return 1;
    return fastload_generators_next_locked(run);
}
