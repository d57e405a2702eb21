/* The keyed order of an epoch: what fastload/sampling/order.py's class Permutation defines; that file is the reference. */
#include "fastload.h"

#define GROUP 32 /* positions that are walked together */

struct network {
    uint64_t low, high; /* masks of the two halves */
    int low_bits;
    const uint64_t *keys;
    int rounds;
    int backwards;
};

typedef void pass_function(const struct network *network, uint64_t words[GROUP]);

static inline uint64_t mixed(uint64_t word, uint64_t key)
{
    word = (word ^ key) * UINT64_C(0x9E3779B97F4A7C15);
    word = (word ^ word >> 32) * UINT64_C(0xA24BAED4963EE407);
    return word >> 32;
}

/* All rounds, once. In loops over the group that a compiler makes vectors of. */
INLINE void pass(const struct network *network, uint64_t words[GROUP])
{
    uint64_t low[GROUP], high[GROUP];
    for (int lane = 0; lane < GROUP; lane++) {
        low[lane] = words[lane] & network->low;
        high[lane] = words[lane] >> network->low_bits;
    }
    for (int turn = 0; turn < network->rounds; turn++) {
        int round = network->backwards ? network->rounds - 1 - turn : turn;
        uint64_t key = network->keys[round];
        if (round % 2)
            for (int lane = 0; lane < GROUP; lane++)
                low[lane] ^= mixed(high[lane], key) & network->low;
        else
            for (int lane = 0; lane < GROUP; lane++)
                high[lane] ^= mixed(low[lane], key) & network->high;
    }
    for (int lane = 0; lane < GROUP; lane++)
        words[lane] = high[lane] << network->low_bits | low[lane];
}

static void pass_plain(const struct network *network, uint64_t words[GROUP])
{
    pass(network, words);
}

#ifdef FASTLOAD_X86
FASTLOAD_TARGET_AVX2
static void pass_avx2(const struct network *network, uint64_t words[GROUP])
{
    pass(network, words);
}

FASTLOAD_TARGET_AVX512
static void pass_avx512(const struct network *network, uint64_t words[GROUP])
{
    pass(network, words);
}
#endif

/* Put what the permutation has at them in the place of positions, or, backwards, the positions in that of values.
 *
 * values: [num], each in 0..length-1. low_bits, high_bits: of the two halves of a word. keys: [rounds].
 */
FASTLOAD_EXPORT void fastload_permute(int64_t *values, int64_t num, uint64_t length, int low_bits, int high_bits,
                                      const uint64_t *keys, int rounds, int backwards)
{
    pass_function *pass_of_level = pass_plain;
#ifdef FASTLOAD_X86
    if (fastload_level >= FASTLOAD_AVX2)
        pass_of_level = fastload_level >= FASTLOAD_AVX512 ? pass_avx512 : pass_avx2;
#endif
    const struct network network = {
        .low = (UINT64_C(1) << low_bits) - 1,
        .high = (UINT64_C(1) << high_bits) - 1,
        .low_bits = low_bits,
        .keys = keys,
        .rounds = rounds,
        .backwards = backwards,
    };
    uint64_t words[GROUP] = {0};
    int64_t places[GROUP];
    int walking = 0;
    for (int64_t next = 0; walking || next < num;) {
        for (; walking < GROUP && next < num; walking++, next++) {
            words[walking] = (uint64_t)values[next];
            places[walking] = next;
        }
        pass_of_level(&network, words);
        int outside = 0; /* these walk on, beside the next ones */
        for (int lane = 0; lane < walking; lane++) {
            if (words[lane] < length) {
                values[places[lane]] = (int64_t)words[lane];
            } else {
                words[outside] = words[lane];
                places[outside++] = places[lane];
            }
        }
        walking = outside;
    }
}
