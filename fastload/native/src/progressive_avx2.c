/* Decoding scans of progressive files with AVX2 and BMI2. See progressive.h. */
#include "fastload.h"

#ifdef FASTLOAD_X86
#define TARGET FASTLOAD_TARGET_AVX2
#define BIT_BELOW bit_below_bmi2
#define SPREAD _pdep_u64
#define CORRECT correct

#include "progressive_bmi2.h"
#include "progressive_scan.h"

#include <cpuid.h>

static int has_fast_pdep;

/* AMD's before Zen 3 take as long as the mask has bits. Looked at once: cpuid takes microseconds in virtual machines. */
__attribute__((constructor)) static void look_at_pdep(void)
{
    enum { AUTH = 0x68747541, HYGO = 0x6f677948, ZEN_3 = 0x19 };
    unsigned a, vendor = 0, version = 0, c, d;
    __get_cpuid(0, &a, &vendor, &c, &d);
    __get_cpuid(1, &version, &a, &c, &d);
    const unsigned family = (version >> 8 & 15) + (version >> 20 & 255);
    has_fast_pdep = (vendor != AUTH && vendor != HYGO) || family >= ZEN_3;
}

FASTLOAD_TARGET_AVX2 int decode_scan_avx2(struct pass *pass, const struct picture *p, const struct blocks *blocks)
{
    return has_fast_pdep ? decode_scan_by_kind(pass, p, blocks) : decode_scan_plain(pass, p, blocks);
}
#endif
