/* The checksum of a PNG file's chunks: CRC-32. */
#ifndef FASTLOAD_CRC32_H
#define FASTLOAD_CRC32_H

#include "fastload.h"

uint32_t crc32_of(const uint8_t *bytes, size_t length, int level);

#endif
