/* CRC-32. Bits are mirrored: the lowest of a byte is the highest power of a polynomial over two. */
#include "fastload.h"

/* What four bits become, of the polynomial 0xEDB88320. */
static const uint32_t of_bits[16] = {
    0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4, 0x4DB26158, 0x5005713C,
    0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C, 0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C,
};

static uint32_t add_bytes(uint32_t sum, const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        sum ^= bytes[i];
        sum = sum >> 4 ^ of_bits[sum & 15];
        sum = sum >> 4 ^ of_bits[sum & 15];
    }
    return sum;
}

#ifdef FASTLOAD_X86
#include <immintrin.h>

enum { BLOCK = 64 };

/* What lies so many bits before `next` as the constants of `by` say, added to it. */
FASTLOAD_TARGET_AVX2 static inline __m128i fold(__m128i x, __m128i by, __m128i next)
{
    const __m128i halves = _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11));
    return _mm_xor_si128(halves, next);
}

/* At least a block, and whole blocks: 16 bytes with the same remainder are left of all, and added one by one. */
FASTLOAD_TARGET_AVX2 static uint32_t add_blocks(uint32_t sum, const uint8_t *bytes, size_t blocks)
{
    /* Powers of x, divided by the polynomial: 32 more and 32 fewer than the 512 and 128 bits between two pieces. */
    const __m128i by_block = _mm_set_epi64x(0x1C6E41596, 0x154442BD4), by_piece = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    __m128i x[4];
    for (int k = 0; k < 4; k++)
        x[k] = _mm_loadu_si128((const __m128i *)bytes + k);
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)sum));
    for (size_t i = 1; i < blocks; i++)
        for (int k = 0; k < 4; k++)
            x[k] = fold(x[k], by_block, _mm_loadu_si128((const __m128i *)(bytes + i * BLOCK) + k));
    for (int k = 1; k < 4; k++)
        x[k] = fold(x[k - 1], by_piece, x[k]);
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, x[3]);
    return add_bytes(0, rest, sizeof rest);
}
#endif

uint32_t crc32_of(const uint8_t *bytes, size_t length, int level)
{
    uint32_t sum = 0xFFFFFFFF;
    (void)level;
#ifdef FASTLOAD_X86
    if (level != FASTLOAD_PLAIN && length >= BLOCK) {
        const size_t blocks = length / BLOCK;
        sum = add_blocks(sum, bytes, blocks);
        bytes += blocks * BLOCK;
        length -= blocks * BLOCK;
    }
#endif
    return ~add_bytes(sum, bytes, length);
}
