/* Random words as a function of (key, id, purpose): Philox4x32-10 for the samples of a batch.
 *
 * In: the ids of samples. Out: for each of them words, or numbers in [0, 1) made of two words each, as
 * fastload/keys/philox.py defines them; that file is the reference, and says whose algorithm this is.
 */
#include "fastload.h"

#include <string.h>

#ifdef FASTLOAD_X86
#include <immintrin.h>
#endif

#define ROUNDS 10
#define GROUP 8 /* samples that are done together */

static const uint32_t MULTIPLIERS[2] = {0xD2511F53u, 0xCD9E8D57u};
static const uint32_t KEY_STEPS[2] = {0x9E3779B9u, 0xBB67AE85u};

/* The words of one block of a group: [GROUP][4]. `first` holds the counters' first words, `ids` the last two. */
typedef void block_function(const uint32_t first[GROUP], const uint64_t ids[GROUP], uint32_t purpose,
                            const uint32_t keys[ROUNDS][2], uint32_t words[GROUP][4]);

static void block_plain(const uint32_t first[GROUP], const uint64_t ids[GROUP], uint32_t purpose,
                        const uint32_t keys[ROUNDS][2], uint32_t words[GROUP][4])
{
    for (int sample = 0; sample < GROUP; sample++) {
        uint32_t a = first[sample], b = purpose, c = (uint32_t)ids[sample], d = (uint32_t)(ids[sample] >> 32);
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t low = (uint64_t)a * MULTIPLIERS[0], high = (uint64_t)c * MULTIPLIERS[1];
            a = (uint32_t)(high >> 32) ^ b ^ keys[round][0];
            c = (uint32_t)(low >> 32) ^ d ^ keys[round][1];
            b = (uint32_t)high;
            d = (uint32_t)low;
        }
        words[sample][0] = a;
        words[sample][1] = b;
        words[sample][2] = c;
        words[sample][3] = d;
    }
}

#ifdef FASTLOAD_X86
/* Each word has 64 bits of a register to itself, so that a product stays where it is. The upper halves are left as they
 * come: no product reads them, and they are dropped at the end. */
FASTLOAD_TARGET_AVX2
static void block_avx2(const uint32_t first[GROUP], const uint64_t ids[GROUP], uint32_t purpose,
                       const uint32_t keys[ROUNDS][2], uint32_t words[GROUP][4])
{
    const __m256i multiplier0 = _mm256_set1_epi64x(MULTIPLIERS[0]), multiplier1 = _mm256_set1_epi64x(MULTIPLIERS[1]);
    const __m256i low_half = _mm256_set1_epi64x(0xFFFFFFFF);
    __m256i a[2], b[2], c[2], d[2];
    for (int half = 0; half < 2; half++) {
        a[half] = _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)(first + 4 * half)));
        b[half] = _mm256_set1_epi64x(purpose);
        c[half] = _mm256_loadu_si256((const __m256i *)(ids + 4 * half));
        d[half] = _mm256_srli_epi64(c[half], 32);
    }
    for (int round = 0; round < ROUNDS; round++) {
        __m256i key0 = _mm256_set1_epi64x(keys[round][0]), key1 = _mm256_set1_epi64x(keys[round][1]);
        for (int half = 0; half < 2; half++) {
            __m256i low = _mm256_mul_epu32(a[half], multiplier0), high = _mm256_mul_epu32(c[half], multiplier1);
            a[half] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(high, 32), b[half]), key0);
            c[half] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(low, 32), d[half]), key1);
            b[half] = high;
            d[half] = low;
        }
    }
    for (int half = 0; half < 2; half++) {
        __m256i ab = _mm256_or_si256(_mm256_and_si256(a[half], low_half), _mm256_slli_epi64(b[half], 32));
        __m256i cd = _mm256_or_si256(_mm256_and_si256(c[half], low_half), _mm256_slli_epi64(d[half], 32));
        __m256i even = _mm256_unpacklo_epi64(ab, cd), odd = _mm256_unpackhi_epi64(ab, cd);
        __m256i *to = (__m256i *)words[4 * half];
        _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
}
#endif

static inline double to_unit(uint32_t high, uint32_t low)
{
    return (double)(int64_t)((uint64_t)(high >> 5) << 26 | low >> 6) * 0x1p-53;
}

/* Write random words, or numbers in [0, 1), for each sample.
 *
 * ids: [num]. repeats: [num], of which the lowest 20 bits count; or NULL. key: two words. first_block: the place in the
 * samples' sequence of blocks of four words. num_words: for each sample. words: [num, num_words], or NULL.
 * units: [num, num_words / 2], if words is NULL.
 */
FASTLOAD_EXPORT void fastload_philox(const int64_t *ids, const int64_t *repeats, int64_t num, uint32_t key0,
                                     uint32_t key1, uint32_t purpose, uint32_t first_block, int64_t num_words,
                                     uint32_t *words, double *units)
{
    block_function *block = block_plain;
#ifdef FASTLOAD_X86
    if (fastload_level >= FASTLOAD_AVX2)
        block = block_avx2;
#endif
    uint32_t keys[ROUNDS][2];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        keys[round][0] = key0 + round * KEY_STEPS[0];
        keys[round][1] = key1 + round * KEY_STEPS[1];
    }
    for (int64_t begin = 0; begin < num; begin += GROUP) {
        int count = num - begin < GROUP ? (int)(num - begin) : GROUP;
        uint64_t wide[GROUP] = {0};
        uint32_t turns[GROUP] = {0}, first[GROUP], made[GROUP][4];
        memcpy(wide, ids + begin, (size_t)count * sizeof *wide);
        for (int sample = 0; repeats && sample < count; sample++)
            turns[sample] = (uint32_t)repeats[begin + sample] << 12;
        for (int64_t done = 0; done < num_words; done += 4) {
            int left = num_words - done < 4 ? (int)(num_words - done) : 4;
            for (int sample = 0; sample < GROUP; sample++)
                first[sample] = turns[sample] | (first_block + (uint32_t)(done / 4));
            block(first, wide, purpose, keys, made);
            for (int sample = 0; sample < count; sample++) {
                int64_t row = begin + sample;
                if (words && left == 4)
                    memcpy(words + row * num_words + done, made[sample], sizeof *made);
                else if (words)
                    memcpy(words + row * num_words + done, made[sample], (size_t)left * sizeof **made);
                else
                    for (int pair = 0; pair < left / 2; pair++)
                        units[row * (num_words / 2) + done / 2 + pair] =
                            to_unit(made[sample][2 * pair], made[sample][2 * pair + 1]);
            }
        }
    }
}
