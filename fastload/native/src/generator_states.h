/* Keys of LANES samples, and the seeded states of Mersenne Twisters, all samples at once. generators.c includes this
 * file once for each width of a register.
 *
 * Before the include: WIDTH, the 32-bit lanes of a register; NAME(x), which gives each inclusion its own names; TARGET,
 * the attribute of its functions.
 *
 * A seeded state is a chain: each of its 624 words is computed from the one before. One chain alone leaves most of a
 * processor idle, so each lane of a register computes the chain of another sample.
 */
#define VECTORS (LANES / WIDTH)

typedef uint32_t NAME(u32) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint64_t NAME(u64) __attribute__((vector_size(4 * WIDTH), aligned(8), may_alias));

#define U32 NAME(u32)
#define U64 NAME(u64)
/* Interleave the words of two registers within each 128 bits; and pairs of words. */
#if WIDTH == 4
#define LOW_WORDS 0, 4, 1, 5
#define HIGH_WORDS 2, 6, 3, 7
#define LOW_PAIRS 0, 2
#define HIGH_PAIRS 1, 3
#else
#define LOW_WORDS 0, 8, 1, 9, 4, 12, 5, 13
#define HIGH_WORDS 2, 10, 3, 11, 6, 14, 7, 15
#define LOW_PAIRS 0, 4, 2, 6
#define HIGH_PAIRS 1, 5, 3, 7
#endif
/* Store four successive words of each lane's chain where its state is: `to` is the first lane's. */
TARGET static inline void NAME(store_four)(const U32 words[4][VECTORS], uint32_t *to)
{
    for (int vector = 0; vector < VECTORS; vector++) {
        U32 low01 = SHUFFLE(U32, words[0][vector], words[1][vector], LOW_WORDS);
        U32 high01 = SHUFFLE(U32, words[0][vector], words[1][vector], HIGH_WORDS);
        U32 low23 = SHUFFLE(U32, words[2][vector], words[3][vector], LOW_WORDS);
        U32 high23 = SHUFFLE(U32, words[2][vector], words[3][vector], HIGH_WORDS);
        U64 made[4] = {
            SHUFFLE(U64, (U64)low01, (U64)low23, LOW_PAIRS),
            SHUFFLE(U64, (U64)low01, (U64)low23, HIGH_PAIRS),
            SHUFFLE(U64, (U64)high01, (U64)high23, LOW_PAIRS),
            SHUFFLE(U64, (U64)high01, (U64)high23, HIGH_PAIRS),
        };
        for (int part = 0; part < WIDTH / 4; part++)
            for (int lane = 0; lane < 4; lane++)
                memcpy(to + (size_t)(vector * WIDTH + part * 4 + lane) * ROW, (char *)&made[lane] + 16 * part, 16);
    }
}

/* What init_by_array() makes of a seed of 64 bits, for `random`, in two passes; beside each pass, which alone would wait
 * for its multiplications, what init_genrand() makes of a seed, for NumPy and for torch.
 *
 * base: the state by which the first pass begins. middle: room between the passes.
 */
TARGET static void NAME(seed_states)(const struct seeds *seeds, const uint32_t *base, uint32_t *middle, uint32_t *rows)
{
    U32(*pass)[VECTORS] = (U32(*)[VECTORS])middle;
    U32 added[2][VECTORS], second[VECTORS], now[VECTORS], other[VECTORS], kept[4][VECTORS], start[4][VECTORS];
    memcpy(added, seeds->random, sizeof added);
    memcpy(other, seeds->numpy, sizeof other);
    for (int vector = 0; vector < VECTORS; vector++)
        now[vector] = (U32){0} + base[0];
    for (uint32_t i = 0; i < STATE_WORDS; i += 4) {
        for (uint32_t j = 0; j < 4; j++)
            for (int vector = 0; vector < VECTORS; vector++) {
                if (i + j > 0)
                    now[vector] = (STEP(now[vector], 1664525u) ^ base[i + j]) + added[(j + 1) & 1][vector];
                pass[i + j][vector] = now[vector];
                kept[j][vector] = other[vector];
                other[vector] = STEP(other[vector], 1812433253u) + (i + j + 1);
            }
        NAME(store_four)((const U32(*)[VECTORS])kept, rows + STATE_WORDS + i);
    }
    /* Behind the last word comes the second one again, and the second pass begins there. */
    memcpy(other, seeds->torch, sizeof other);
    for (int vector = 0; vector < VECTORS; vector++)
        now[vector] = (STEP(now[vector], 1664525u) ^ pass[1][vector]) + added[1][vector];
    memcpy(second, now, sizeof second);
    for (uint32_t i = 0; i < STATE_WORDS; i += 4) {
        U32 made[4][VECTORS];
        for (uint32_t j = 0; j < 4; j++)
            for (int vector = 0; vector < VECTORS; vector++) {
                if (i + j > 1)
                    now[vector] = (STEP(now[vector], 1566083941u) ^ pass[i + j][vector]) - (i + j);
                made[j][vector] = now[vector];
                kept[j][vector] = other[vector];
                other[vector] = STEP(other[vector], 1812433253u) + (i + j + 1);
            }
        if (i)
            NAME(store_four)((const U32(*)[VECTORS])made, rows + i);
        else
            memcpy(start, made, sizeof start);
        NAME(store_four)((const U32(*)[VECTORS])kept, rows + 2 * STATE_WORDS + i);
    }
    for (int vector = 0; vector < VECTORS; vector++) {
        start[0][vector] = (U32){0} + 0x80000000u;
        start[1][vector] = (STEP(now[vector], 1566083941u) ^ second[vector]) - 1;
    }
    NAME(store_four)((const U32(*)[VECTORS])start, rows);
}

/* The first 16 bytes of BLAKE2b of one block, which has these eight words and then zeros. */
TARGET static void NAME(hash)(uint64_t words[8][LANES], uint64_t digest[2][LANES])
{
    for (int first = 0; first < LANES; first += WIDTH / 2) {
        U64 v[16], m[16];
        for (int i = 0; i < 8; i++) {
            memcpy(&m[i], words[i] + first, sizeof *m);
            m[i + 8] = (U64){0};
            v[i] = (U64){0} + HASH_START[i];
            v[i + 8] = (U64){0} + HASH_WORDS[i];
        }
        v[12] ^= MESSAGE_BYTES;
        v[14] = ~v[14]; /* the last block */
        for (int round = 0; round < 12; round++) {
            const uint8_t *order = HASH_ORDER[round % 10];
            for (int i = 0; i < 8; i++) {
                /* Columns first, then diagonals. */
                int shift = i / 4, a = i % 4, b = 4 + (i + shift) % 4, c = 8 + (i + 2 * shift) % 4;
                int d = 12 + (i + 3 * shift) % 4;
                v[a] += v[b] + m[order[2 * i]];
                v[d] = ROTATED(v[d] ^ v[a], 32);
                v[c] += v[d];
                v[b] = ROTATED(v[b] ^ v[c], 24);
                v[a] += v[b] + m[order[2 * i + 1]];
                v[d] = ROTATED(v[d] ^ v[a], 16);
                v[c] += v[d];
                v[b] = ROTATED(v[b] ^ v[c], 63);
            }
        }
        for (int i = 0; i < 2; i++) {
            U64 made = v[i] ^ v[i + 8] ^ HASH_START[i];
            memcpy(digest[i] + first, &made, sizeof made);
        }
    }
}

#undef VECTORS
#undef U32
#undef U64
#undef LOW_WORDS
#undef HIGH_WORDS
#undef LOW_PAIRS
#undef HIGH_PAIRS
#undef WIDTH
#undef NAME
#undef TARGET
