/* Which of the kernels' instruction sets the processor at hand has.
 *
 * Not by __builtin_cpu_supports: with "zig cc" it always says no.
 */
#include "fastload.h"

static int highest = FASTLOAD_PLAIN;
int fastload_level = FASTLOAD_PLAIN;

/* From now on kernels use no higher level. Not while others of them run. */
FASTLOAD_EXPORT void fastload_limit_level(int most)
{
    fastload_level = most < highest ? most : highest;
}

#ifdef FASTLOAD_X86
#include <cpuid.h>

/* Bits of the registers, all of which have to be set: what FASTLOAD_TARGET_AVX2 and _AVX512 name, each on its own, as a
 * virtual machine may hide any of them; and that the system keeps the vector registers. */
#define BIT(n) (1u << (n))
enum { SAVED_AVX2 = 0x06, SAVED_AVX512 = 0xe6 };
static const unsigned PCLMUL_FMA_POPCNT_OSXSAVE = BIT(1) | BIT(12) | BIT(23) | BIT(27); /* 1, ecx */
static const unsigned BMI_AVX2_BMI2 = BIT(3) | BIT(5) | BIT(8);              /* 7, ebx */
static const unsigned F_DQ_BW_VL = BIT(16) | BIT(17) | BIT(30) | BIT(31);    /* 7, ebx */
static const unsigned VBMI_VBMI2_VNNI = BIT(1) | BIT(6) | BIT(11);           /* 7, ecx */

static int has(unsigned found, unsigned wanted)
{
    return (found & wanted) == wanted;
}

/* Once, as cpuid takes microseconds in a virtual machine. */
__attribute__((constructor)) static void look_at_processor(void)
{
    unsigned a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, PCLMUL_FMA_POPCNT_OSXSAVE))
        return;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(saved, SAVED_AVX2) || !has(b, BMI_AVX2_BMI2))
        return;
    const int is_avx512 = has(saved, SAVED_AVX512) && has(b, F_DQ_BW_VL) && has(c, VBMI_VBMI2_VNNI);
    fastload_level = highest = is_avx512 ? FASTLOAD_AVX512 : FASTLOAD_AVX2;
}
#endif
