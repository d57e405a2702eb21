/* Decoding scans of progressive files with AVX2 and BMI2: the shifts. PDEP is slow on some processors that have no
 * AVX-512. See progressive.h. */
#include "fastload.h"

#ifdef FASTLOAD_X86
#define TARGET FASTLOAD_TARGET_AVX2
#define BIT_BELOW bit_below
#define SPREAD spread
#define CORRECT correct
#include "progressive_scan.h"

FASTLOAD_TARGET_AVX2 int decode_scan_avx2(struct pass *pass, const struct picture *p, const struct blocks *blocks)
{
    return decode_scan_by_kind(pass, p, blocks);
}

#else
typedef int no_avx2_here; /* ISO C wants something in a file */
#endif
