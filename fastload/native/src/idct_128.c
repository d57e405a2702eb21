/* The inverse transform with the vectors that every x86-64 and every 64-bit ARM processor has. See idct_vector.h. */
#include "fastload.h"

#ifdef FASTLOAD_VECTORS_128
#define TARGET
#define BLOCKS 1

#ifdef __SSE2__
#include <emmintrin.h>

#define V __m128i
#define LOAD(p) _mm_loadu_si128((const __m128i *)(p))
#define STORE_ZERO(p) _mm_storeu_si128((__m128i *)(p), _mm_setzero_si128())
#define ADD _mm_add_epi16
#define SUB _mm_sub_epi16
#define MUL _mm_mullo_epi16
#define LOW8 _mm_unpacklo_epi8
#define HIGH8 _mm_unpackhi_epi8
#define LOW16 _mm_unpacklo_epi16
#define HIGH16 _mm_unpackhi_epi16
#define LOW32 _mm_unpacklo_epi32
#define HIGH32 _mm_unpackhi_epi32
#define LOW64 _mm_unpacklo_epi64
#define HIGH64 _mm_unpackhi_epi64
#define PAIR(a, b) _mm_set1_epi32((int)((uint32_t)(uint16_t)(a) | (uint32_t)(uint16_t)(b) << 16))
#define DOT(sum, x, pair) _mm_add_epi32(sum, _mm_madd_epi16(x, pair))
#define ADD32 _mm_add_epi32
#define SUB32 _mm_sub_epi32
#define SHIFT32 _mm_srai_epi32
#define ALL32 _mm_set1_epi32
#define PACK32 _mm_packs_epi32
#define PACK16 _mm_packs_epi16
#define MIDDLE(x) _mm_xor_si128(x, _mm_set1_epi8(-128))
#define IS_LARGE(x) \
    (_mm_movemask_epi8(_mm_cmpeq_epi16(_mm_srai_epi16(_mm_slli_epi16(x, PASS1_BITS), PASS1_BITS), x)) != 0xFFFF)
#define STORE_ROWS(x, first, second) \
    (_mm_storel_epi64((__m128i *)(first), x), _mm_storel_epi64((__m128i *)(second), _mm_unpackhi_epi64(x, x)))

#else
#include <arm_neon.h>

/* Of any numbers: the names say what is done with them. */
#define V int16x8_t
#define OF8 vreinterpretq_s16_s8
#define OF32 vreinterpretq_s16_s32
#define OF64 vreinterpretq_s16_s64
#define AS8 vreinterpretq_s8_s16
#define AS32 vreinterpretq_s32_s16
#define AS64 vreinterpretq_s64_s16
#define LOAD(p) vld1q_s16((const int16_t *)(p))
#define STORE_ZERO(p) vst1q_s16((int16_t *)(p), vdupq_n_s16(0))
#define ADD vaddq_s16
#define SUB vsubq_s16
#define MUL vmulq_s16
#define LOW8(a, b) OF8(vzip1q_s8(AS8(a), AS8(b)))
#define HIGH8(a, b) OF8(vzip2q_s8(AS8(a), AS8(b)))
#define LOW16 vzip1q_s16
#define HIGH16 vzip2q_s16
#define LOW32(a, b) OF32(vzip1q_s32(AS32(a), AS32(b)))
#define HIGH32(a, b) OF32(vzip2q_s32(AS32(a), AS32(b)))
#define LOW64(a, b) OF64(vzip1q_s64(AS64(a), AS64(b)))
#define HIGH64(a, b) OF64(vzip2q_s64(AS64(a), AS64(b)))
#define PAIR(a, b) OF32(vdupq_n_s32((int32_t)((uint32_t)(uint16_t)(a) | (uint32_t)(uint16_t)(b) << 16)))
#define DOT(sum, x, pair) \
    OF32(vaddq_s32(AS32(sum), vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(pair)), vmull_high_s16(x, pair))))
#define ADD32(a, b) OF32(vaddq_s32(AS32(a), AS32(b)))
#define SUB32(a, b) OF32(vsubq_s32(AS32(a), AS32(b)))
#define SHIFT32(x, n) OF32(vshlq_s32(AS32(x), vdupq_n_s32(-(n))))
#define ALL32(number) OF32(vdupq_n_s32(number))
#define PACK32(a, b) vcombine_s16(vqmovn_s32(AS32(a)), vqmovn_s32(AS32(b)))
#define PACK16(a, b) OF8(vcombine_s8(vqmovn_s16(a), vqmovn_s16(b)))
#define MIDDLE(x) OF8(veorq_s8(AS8(x), vdupq_n_s8(-128)))
#define IS_LARGE(x) (vminvq_u16(vceqq_s16(vshrq_n_s16(vshlq_n_s16(x, PASS1_BITS), PASS1_BITS), x)) == 0)
#define STORE_ROWS(x, first, second) \
    (vst1_s8((int8_t *)(first), vget_low_s8(AS8(x))), vst1_s8((int8_t *)(second), vget_high_s8(AS8(x))))
#endif

#define ROW LOAD
#include "idct_vector.h"

void idct_128(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride, enum extent extent)
{
    transform_group(group, quant, out, stride, extent);
}

#else
typedef int no_vectors_here; /* ISO C wants something in a file */
#endif
