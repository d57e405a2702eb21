/* Files that this library does not decode itself, by libjpeg-turbo where it was built with it. See libjpeg.c. */
#ifndef FASTLOAD_LIBJPEG_H
#define FASTLOAD_LIBJPEG_H

#include "jpeg_header.h"
#include "resample.h"

/* Whether the library was built with libjpeg, and the one that was loaded is of the version it was compiled for. */
int libjpeg_works(void);

/* Pushes a part of an image (top, left, height, width) to a resizer. Where the header is_sequential, the caller has
 * checked that the scan is complete. Returns enum fastload_status. */
int libjpeg_decode(struct fastload_scratch *scratch, const uint8_t *bytes, size_t length,
                   const struct jpeg_header *header, const int part[4], struct resizer *resizer);

#endif
