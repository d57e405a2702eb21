/* zlib streams (RFC 1950, 1951) in memory, inflated in one go into memory of a known size. */
#ifndef FASTLOAD_INFLATE_H
#define FASTLOAD_INFLATE_H

#include "fastload.h"

/* Bytes behind the stream that are read, and behind the room that are written; what they are is of no consequence. */
#define INFLATE_IN_PADDING 32
#define INFLATE_OUT_PADDING 320

/* No stream has more bytes in each of its own: 258 take at least two bits. */
#define INFLATE_MOST_RATIO 1032

/* Inflates a stream that ends where its bytes do, and whose checksum is right. Returns how many bytes it made, or -1:
 * it is damaged, or needs more room. What this takes every zlib takes, also one built with INFLATE_STRICT. */
int64_t inflate_stream(const uint8_t *in, size_t length, uint8_t *out, size_t room, int level);

/* The checksum of zlib streams goes on from `sum`, which is 1 before the first byte. */
uint32_t adler32_of(uint32_t sum, const uint8_t *bytes, size_t length, int level);

#endif
