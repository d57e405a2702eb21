/* What stands before the coded data of a JPEG file. */
#ifndef FASTLOAD_JPEG_HEADER_H
#define FASTLOAD_JPEG_HEADER_H

#include "fastload.h"

struct jpeg_header {
    int32_t width, height;
    int32_t components;
    int32_t progressive;
    int32_t status; /* enum fastload_status: FASTLOAD_DONE if the rest of the library can decode such a file */
    int32_t incomplete; /* the bytes end before the first scan does */
    size_t scan;        /* where the first scan's coded data begin; 0: it was not reached */
};

/* Reads the markers up to the first scan, strictly: what is not as every encoder writes it is left to another decoder.
 * `header` is filled as far as it was read, with zeros else. Returns header->status. */
int read_jpeg_header(const uint8_t *bytes, size_t length, struct jpeg_header *header);

/* In jpeg.c: whether the libjpeg that was loaded is of the version that this was compiled for. */
int jpeg_works(void);

#endif
