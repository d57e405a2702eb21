/* From the bytes of a JPEG file to a row of a batch: only the rows and columns that a box needs are made.
 *
 * What comes out equals decoding all of the file with libjpeg-turbo, cutting out the box and resizing it, bit for bit.
 *
 *   bytes ─entropy─> coefficients ─picture─> rows of pixels ─resizer─> rows of the result
 */
#include "coefficients.h"
#include "entropy.h"
#include "progressive.h"
#include "resample.h"

#include <string.h>

/* Where coefficients come from: a record, a file's only scan, or all of its scans. */
struct source {
    const uint8_t *bytes;
    size_t length;
    const struct record *record; /* NULL: none */
    const struct scans *scans;   /* NULL: none */
    struct entropy entropy;
    struct progressive progressive;
};

static int source_begin(struct source *s, struct fastload_scratch *scratch, const struct jpeg_header *header,
                        const struct picture *p)
{
    if (s->record)
        return FASTLOAD_DONE;
    return s->scans ? progressive_begin(&s->progressive, scratch, s->scans, s->bytes, p)
                    : entropy_begin(&s->entropy, scratch, header, s->bytes, s->length);
}

/* A row of MCUs. Only a single scan has to be read from its beginning. */
static int source_row(struct source *s, const struct picture *p, int mcu_row, int wanted)
{
    if (!s->record && !s->scans)
        return entropy_row(&s->entropy, p, mcu_row, wanted);
    if (!wanted)
        return FASTLOAD_DONE;
    if (s->record)
        return record_row(s->record, p, mcu_row);
    progressive_row(&s->progressive, p, mcu_row);
    return FASTLOAD_DONE;
}

static int decode(struct fastload_scratch *scratch, struct source *source, const struct jpeg_header *header,
                  const int part[4], struct resizer *resizer)
{
    struct picture picture;
    int status = picture_begin(&picture, scratch, header, part, resizer->level);
    if (status == FASTLOAD_DONE)
        status = source_begin(source, scratch, header, &picture);
    if (status != FASTLOAD_DONE)
        return status;
    const size_t stride = padded(part[3]);
    uint8_t *pixels = reserve(&scratch->pixels, stride * ROWS_AT_ONCE);
    if (!pixels)
        return FASTLOAD_NO_MEMORY;
    const int bottom = part[0] + part[2];
    int held = 0;
    for (int mcu_row = 0, y = part[0]; mcu_row <= picture.last_row; mcu_row++) {
        const int wanted = mcu_row >= picture.first_row;
        status = source_row(source, &picture, mcu_row, wanted);
        if (status != FASTLOAD_DONE)
            return status;
        const int ready = wanted ? finish_mcu_row(&picture, mcu_row) : 0;
        for (; y < ready && y < bottom; y++) {
            picture_row(&picture, y, pixels + held++ * stride);
            if (held == ROWS_AT_ONCE || y == bottom - 1) {
                resizer_push(resizer, pixels, stride, held);
                held = 0;
            }
        }
    }
    return FASTLOAD_DONE;
}

/* From a JPEG file, or its record, to a row of a batch. Returns enum fastload_status. Unless it is FASTLOAD_DONE, the
 * result holds anything. Files in colour are not made grey: a target of one channel is for grey files. */
FASTLOAD_EXPORT int fastload_jpeg_row(struct fastload_scratch *scratch, const uint8_t *bytes, size_t length,
                                      const struct fastload_request *request)
{
    struct jpeg_header header;
    struct record record;
    const int packed = is_record(bytes, length);
    const int read = packed ? read_record(bytes, length, &record, &header) : read_jpeg_header(bytes, length, &header);
    if (read != FASTLOAD_DONE)
        return read;
    if (check_request(request, header.height, header.width) != FASTLOAD_DONE)
        return FASTLOAD_BAD_ARGUMENT;
    if (request->target.channels == 1 && header.components != 1)
        return FASTLOAD_COLORS;
    struct scans scans;
    struct source source = {.bytes = bytes, .length = length, .record = packed ? &record : NULL};
    if (!packed && !header.is_sequential) {
        const int found = read_scans(bytes, length, &header, &scans);
        if (found != FASTLOAD_DONE)
            return found == FASTLOAD_INCOMPLETE ? FASTLOAD_DAMAGED : found;
        source.scans = &scans;
    }
    struct resizer resizer;
    const int status = resizer_begin(&resizer, scratch, request);
    if (status != FASTLOAD_DONE)
        return status;
    const int part[4] = {request->box[0] + resizer.rows.first, request->box[1] + resizer.columns.first,
                         resizer.rows.in, resizer.columns.in};
    return decode(scratch, &source, &header, part, &resizer);
}

/* The size and kind of a JPEG file, or of its record. out: width, height, components, the first component's sampling
 * factors as a file has them, in one byte, and whether the image is upright by its EXIF data. Returns
 * enum fastload_status; sizes are also given where a file was understood but is left to another decoder. */
FASTLOAD_EXPORT int fastload_jpeg_size(const uint8_t *bytes, size_t length, int32_t out[5])
{
    struct jpeg_header header;
    struct record record;
    const int status = is_record(bytes, length) ? read_record(bytes, length, &record, &header)
                                                : read_jpeg_header(bytes, length, &header);
    out[0] = header.width;
    out[1] = header.height;
    out[2] = header.components;
    out[3] = header.component[0].h << 4 | header.component[0].v;
    out[4] = header.is_upright;
    return status;
}

/* Whether decoding may be put off: Pillow's libjpeg will not fail on this file, whatever its coded data are.
 *
 * out: where the image ends, its width, height and components. FASTLOAD_DONE: all before, between and behind the coded
 * data is as libjpeg accepts it, up to the end of the image. FASTLOAD_INCOMPLETE: right so far. Others: decode at once.
 * Tried with 123,000 damaged scans that pass: libjpeg warns of them, and does not fail. */
FASTLOAD_EXPORT int fastload_jpeg_can_wait(const uint8_t *bytes, size_t length, int64_t out[4])
{
    struct jpeg_header header;
    const int status = read_jpeg_header(bytes, length, &header);
    out[0] = 0;
    out[1] = header.width;
    out[2] = header.height;
    out[3] = header.components;
    if (status != FASTLOAD_DONE)
        return header.incomplete ? FASTLOAD_INCOMPLETE : status;
    if (!header.is_sequential) {
        struct scans scans;
        const int found = read_scans(bytes, length, &header, &scans);
        out[0] = found == FASTLOAD_DONE ? (int64_t)scans.end : 0;
        return found;
    }
    for (size_t at = header.scan;;) {
        const uint8_t *found = at < length ? memchr(bytes + at, 0xFF, length - at) : NULL;
        if (!found || found + 1 == bytes + length)
            return FASTLOAD_INCOMPLETE;
        at = (size_t)(found - bytes) + 2;
        if (found[1] == JPEG_EOI) {
            out[0] = (int64_t)at;
            return FASTLOAD_DONE;
        }
        if (found[1] != 0 && (found[1] < JPEG_RST0 || found[1] > JPEG_RST0 + 7))
            return FASTLOAD_DAMAGED;
    }
}
