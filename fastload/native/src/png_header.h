/* The chunks of a PNG file. Pillow has opened the file: it has compared the checksums of the chunks before the image data,
 * and read what they say. Here only those that change the pixels are read. */
#ifndef FASTLOAD_PNG_HEADER_H
#define FASTLOAD_PNG_HEADER_H

#include "fastload.h"

enum png_color { PNG_GREY = 0, PNG_RGB = 2, PNG_PALETTE = 3, PNG_GREY_ALPHA = 4, PNG_RGB_ALPHA = 6 };

struct png_header {
    int width, height;
    int bits;  /* of a sample */
    int color; /* enum png_color */
    int is_behind; /* chunks other than the last stand behind the image data */
    const uint8_t *palette; /* bytes of red, green and blue */
    int colors;             /* of the palette */
    size_t data, last;      /* where the first chunk of image data begins, and the last of all */
    size_t coded;           /* bytes of image data in all chunks */
};

static inline uint32_t png_number(const uint8_t *from)
{
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

static inline int png_samples(int color)
{
    return color == PNG_RGB ? 3 : color == PNG_GREY_ALPHA ? 2 : color == PNG_RGB_ALPHA ? 4 : 1;
}

/* Reads all chunks. FASTLOAD_INCOMPLETE: all is well, and the end is missing.
 * Width and height, bits and color are set as soon as they are known; 0 before. */
int read_png_header(const uint8_t *bytes, size_t length, struct png_header *header);

#endif
