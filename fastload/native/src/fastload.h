/* What all parts of the native library share: how functions are exported, and which instruction set is used.
 *
 * Plain C, no global state that changes but the level that tests set, nothing of Python. Every function may be called by many threads at once, as
 * long as no two of them are given the same memory to write, or the same scratch.
 */
#ifndef FASTLOAD_H
#define FASTLOAD_H

#include <stddef.h>
#include <stdint.h>

/* Counted up with each change of an exported function; fastload/native/__init__.py names the one that it speaks. */
#define FASTLOAD_ABI 23

#define FASTLOAD_EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

/* What an exported function that can fail returns. Positive: this library leaves the image to another decoder. The
 * numbers are those of fastload/native/rows.py. */
enum fastload_status {
    FASTLOAD_BAD_ARGUMENT = -1, /* the caller's mistake: nothing was written */
    FASTLOAD_DONE = 0,
    FASTLOAD_NOT_JPEG = 1,    /* not a JPEG file, or its headers are damaged or unusual */
    FASTLOAD_CODING = 2,      /* arithmetic, lossless or hierarchical coding, or not 8 bits a sample */
    FASTLOAD_COLORS = 3,      /* neither one nor three components: CMYK and the like */
    FASTLOAD_SAMPLING = 4,    /* components sampled in an uncommon way */
    FASTLOAD_TOO_LARGE = 5,   /* more pixels than FASTLOAD_MAX_PIXELS */
    FASTLOAD_DAMAGED = 6,     /* truncated, or what libjpeg warns of */
    FASTLOAD_NO_MEMORY = 7,
    FASTLOAD_INCOMPLETE = 8, /* more of the file is needed */
    FASTLOAD_NOT_PNG = 9,    /* not a PNG file, or its chunks are damaged or unusual */
};

/* Below what Pillow warns of as a possible decompression bomb. */
#define FASTLOAD_MAX_PIXELS (1 << 26)
/* The longest side of a result. */
#define FASTLOAD_MAX_SIDE (1 << 15)

/* Kernels exist in several versions that compute the same bits. */
enum fastload_level { FASTLOAD_PLAIN = 0, FASTLOAD_AVX2 = 1, FASTLOAD_AVX512 = 2 };

/* FASTLOAD_PORTABLE leaves them out. */
#if defined(__x86_64__) && !defined(FASTLOAD_PORTABLE)
#define FASTLOAD_X86 1
#define FASTLOAD_TARGET_AVX2 __attribute__((target("avx2,fma,bmi,bmi2,popcnt,pclmul")))
#define FASTLOAD_TARGET_AVX512 \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni,avx2,fma,bmi,bmi2,"    \
                          "popcnt,pclmul")))
#endif

/* What FASTLOAD_PLAIN may use: vectors that every x86-64 or every 64-bit ARM processor has. */
#if !defined(FASTLOAD_PORTABLE) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#if defined(__aarch64__) && defined(__ARM_NEON)
#define FASTLOAD_NEON 1
#elif defined(__SSE2__)
#define FASTLOAD_SSE2 1
#endif
#endif

/* The level that kernels use: the highest of the processor at hand, unless fastload_limit_level says a lower one. */
extern int fastload_level;
FASTLOAD_EXPORT void fastload_limit_level(int most);

/* CRC-32: the checksum of PNG files' chunks, and of what is cached. */
uint32_t crc32_of(const uint8_t *bytes, size_t length, int level);

#endif
