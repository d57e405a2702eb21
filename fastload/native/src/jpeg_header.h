/* What stands before the coded data of a JPEG file. */
#ifndef FASTLOAD_JPEG_HEADER_H
#define FASTLOAD_JPEG_HEADER_H

#include "fastload.h"

enum { JPEG_RST0 = 0xD0, JPEG_EOI = 0xD9, JPEG_SOS = 0xDA };

#define JPEG_TABLES 4 /* of each kind that a file may define */

struct jpeg_component {
    uint8_t id;
    uint8_t h, v;         /* sampling factors; 1 for the only component of a grey file */
    uint8_t quant;        /* quantisation table */
    uint8_t dc, ac;       /* Huffman tables */
};

struct jpeg_header {
    int32_t width, height;
    int32_t components;
    int32_t progressive;
    int32_t status; /* enum fastload_status: FASTLOAD_DONE if the rest of the library can decode such a file */
    int32_t incomplete; /* the bytes end before the first scan does */
    size_t scan;        /* where the first scan's coded data begin; 0: it was not reached */
    size_t scan_header; /* where its marker stands */
    /* Whether libjpeg's reading of what comes before the first scan does not fail. */
    int32_t is_valid;
    /* Whether moreover all components are in one sequential scan that follows, and its tables are there and valid. */
    int32_t is_sequential;
    int32_t is_rgb; /* three components are red, green and blue, not luma and chroma */
    int32_t is_upright; /* EXIF data give no orientation, or the upright one; 0 where that is not clear */
    int32_t restart_interval; /* in MCUs; 0: none */
    struct jpeg_component component[3];
    /* In the file's bytes: 64 levels in zigzag order, of two bytes where is_wide; and 16 counts and the symbols. NULL:
     * not defined. */
    const uint8_t *quant[JPEG_TABLES], *huffman[2][JPEG_TABLES];
    uint8_t is_wide[JPEG_TABLES];
};

/* Reads the markers up to the first scan, strictly: what is not as every encoder writes it is left to another decoder.
 * `header` is filled as far as it was read, with zeros else, and points into `bytes`. Returns header->status. */
int read_jpeg_header(const uint8_t *bytes, size_t length, struct jpeg_header *header);

/* Reads the segments between two scans, from *at on, as strictly. Returns JPEG_SOS or JPEG_EOI with *at at its marker;
 * 0: another decoder has to read them; -1: the bytes end before. */
int read_tables(const uint8_t *bytes, size_t length, size_t *at, struct jpeg_header *header);

/* Whether libjpeg takes a Huffman table: codes fit into their lengths, none is all ones, and sizes of DC values are
 * below 16. */
int is_valid_huffman(const uint8_t *table, int is_dc);

#endif
