/* See idct_avx512.h. */
#include "fastload.h"

#ifdef FASTLOAD_X86
#include "idct_avx512.h"

FASTLOAD_TARGET_AVX512 void idct_avx512(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride,
                                        enum extent extent)
{
    transform_group(group, quant, out, stride, extent);
}
#endif
