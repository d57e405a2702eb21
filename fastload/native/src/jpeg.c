/* From the bytes of a JPEG file to a row of a batch: only the rows and columns that a box needs are decoded.
 *
 * What comes out equals decoding all of the file, cutting out the box and resizing it, bit for bit. Upsampling colours
 * looks at the pixels beside, so a margin of them is decoded too. libjpeg's messages are errors here, warnings as well:
 * such a file goes to another decoder.
 */
#ifdef FASTLOAD_WITH_JPEG
#include "entropy.h"
#include "jpeg_header.h"
#include "resample.h"

#include <jerror.h>
#include <setjmp.h>
#include <string.h>

/* Columns beside a box that its colours may need: two of a subsampled component, rounded up. */
#define MARGIN 4
/* Fewer columns are not worth the cutting, and libjpeg treats components narrower than two samples apart. */
#define LEAST_WIDTH 32
/* libjpeg-turbo writes aligned rows past the cache, from where they would have to be read again. */
#define MISALIGNED 8
/* More scans are no image but an attempt to cost time. */
#define MOST_SCANS 256

struct job {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf leave;
    int status;
    struct entropy entropy;
    struct resizer resizer;
};

static void on_error(j_common_ptr cinfo)
{
    struct job *job = (struct job *)((char *)cinfo->err - offsetof(struct job, errors));
    job->status = cinfo->err->msg_code == JERR_OUT_OF_MEMORY ? FASTLOAD_NO_MEMORY : FASTLOAD_DAMAGED;
    longjmp(job->leave, 1);
}

static void on_message(j_common_ptr cinfo, int level)
{
    if (level < 0)
        on_error(cinfo);
}

static void ignore_message(j_common_ptr cinfo)
{
    (void)cinfo;
}

static void count_scans(j_common_ptr cinfo)
{
    if (((j_decompress_ptr)cinfo)->input_scan_number > MOST_SCANS)
        on_error(cinfo);
}

/* Whether all scans of a progressive file came: else libjpeg invents what is missing, each version in its own way. */
static int is_complete(j_decompress_ptr cinfo)
{
    for (int c = 0; cinfo->progressive_mode && c < cinfo->num_components; c++)
        for (int k = 0; k < DCTSIZE2; k++)
            if (cinfo->coef_bits[c][k] != 0)
                return 0;
    return 1;
}

static int decode(struct job *job, struct fastload_scratch *scratch, const uint8_t *bytes, size_t length,
                  const struct jpeg_header *header, const int32_t box[4])
{
    const j_decompress_ptr cinfo = &job->cinfo;
    struct resizer *resizer = &job->resizer;
    /* The part of the image that the result needs. */
    const int top = box[0] + resizer->rows.first, height = resizer->rows.in;
    const int left = box[1] + resizer->columns.first, width = resizer->columns.in;
    jpeg_create_decompress(cinfo);
    job->progress.progress_monitor = count_scans;
    cinfo->progress = &job->progress;
    jpeg_mem_src(cinfo, bytes, (unsigned long)length);
    jpeg_read_header(cinfo, TRUE);
    if ((int32_t)cinfo->image_width != header->width || (int32_t)cinfo->image_height != header->height ||
        cinfo->num_components != header->components)
        return FASTLOAD_DAMAGED;
    const struct target *target = &resizer->target;
    const int direct = width == header->width && takes_rows_as_they_are(resizer);
    cinfo->out_color_space = !direct || target->channels == 3 ? JCS_RGB
                             : target->channels == 4          ? JCS_EXT_RGBA
                                                              : JCS_GRAYSCALE;
    cinfo->dct_method = JDCT_ISLOW;
    cinfo->do_fancy_upsampling = TRUE;
    jpeg_start_decompress(cinfo);
    if (jpeg_has_multiple_scans(cinfo)) {
        if (!is_complete(cinfo))
            return FASTLOAD_DAMAGED;
    } else {
        const int status = take_over_entropy(cinfo, &job->entropy, scratch, resizer->level);
        if (status != FASTLOAD_DONE)
            return status;
    }

    int begin = left - MARGIN > 0 ? left - MARGIN : 0;
    int end = left + width + MARGIN < header->width ? left + width + MARGIN : header->width;
    if (end - begin < LEAST_WIDTH)
        end = begin + LEAST_WIDTH < header->width ? begin + LEAST_WIDTH : header->width;
    if (end - begin < LEAST_WIDTH)
        begin = end - LEAST_WIDTH > 0 ? end - LEAST_WIDTH : 0;
    JDIMENSION offset = (JDIMENSION)begin, columns = (JDIMENSION)(end - begin);
    jpeg_crop_scanline(cinfo, &offset, &columns);
    const JDIMENSION mcu = (JDIMENSION)(DCTSIZE * (header->components == 1 ? 1 : cinfo->max_h_samp_factor));
    job->entropy.first_column = offset / mcu;
    job->entropy.last_column = (offset + columns - 1) / mcu;

    const size_t stride = padded((int)cinfo->output_width);
    uint8_t *pixels = reserve(&scratch->pixels, stride * ROWS_AT_ONCE + MISALIGNED);
    if (!pixels)
        return FASTLOAD_NO_MEMORY;
    pixels += MISALIGNED;
    const size_t shift = (size_t)3 * ((size_t)left - offset);

    if (top && jpeg_skip_scanlines(cinfo, (JDIMENSION)top) != (JDIMENSION)top)
        return FASTLOAD_DAMAGED;
    for (int y = 0; y < height; y += ROWS_AT_ONCE) {
        const int wanted = height - y < ROWS_AT_ONCE ? height - y : ROWS_AT_ONCE;
        JSAMPROW rows[ROWS_AT_ONCE];
        for (int i = 0; i < wanted; i++)
            rows[i] = direct ? target->data + (y + i) * target->row : pixels + i * stride;
        for (int come = 0; come < wanted;) {
            const JDIMENSION more = jpeg_read_scanlines(cinfo, rows + come, (JDIMENSION)(wanted - come));
            if (more == 0)
                return FASTLOAD_DAMAGED;
            come += (int)more;
        }
        if (!direct)
            resizer_push(resizer, pixels + shift, stride, wanted);
    }
    return FASTLOAD_DONE;
}

static void prepare_errors(struct job *job)
{
    job->cinfo.err = jpeg_std_error(&job->errors);
    job->errors.error_exit = on_error;
    job->errors.emit_message = on_message;
    job->errors.output_message = ignore_message;
}

static int create_or_leave(struct job *job)
{
    if (setjmp(job->leave) == 0)
        jpeg_create_decompress(&job->cinfo);
    jpeg_destroy_decompress(&job->cinfo);
    return job->status == FASTLOAD_DONE;
}

/* The job is the caller's variable, not this function's: so a longjmp leaves it as it is. */
static int decode_or_leave(struct job *job, struct fastload_scratch *scratch, const uint8_t *bytes, size_t length,
                           const struct jpeg_header *header, const int32_t box[4])
{
    if (setjmp(job->leave) == 0)
        job->status = decode(job, scratch, bytes, length, header, box);
    jpeg_destroy_decompress(&job->cinfo);
    return job->status;
}

/* Whether the libjpeg that was loaded is one that this was compiled for. */
int jpeg_works(void)
{
    struct job job;
    memset(&job, 0, sizeof job);
    prepare_errors(&job);
    return create_or_leave(&job);
}

/* From a JPEG file to a row of a batch. Returns enum fastload_status. Unless it is FASTLOAD_DONE, the result holds
 * anything. Files in colour are not made grey: a target of one channel is for grey files. */
FASTLOAD_EXPORT int fastload_jpeg_row(struct fastload_scratch *scratch, const uint8_t *bytes, size_t length,
                                      const struct fastload_request *request)
{
    struct jpeg_header header;
    if (read_jpeg_header(bytes, length, &header) != FASTLOAD_DONE)
        return header.status;
    if (check_request(request, header.height, header.width) != FASTLOAD_DONE)
        return FASTLOAD_BAD_ARGUMENT;
    if (request->target.channels == 1 && header.components != 1)
        return FASTLOAD_COLORS;
    struct job job;
    memset(&job, 0, sizeof job);
    const int status = resizer_begin(&job.resizer, scratch, request);
    if (status != FASTLOAD_DONE)
        return status;
    prepare_errors(&job);
    return decode_or_leave(&job, scratch, bytes, length, &header, request->box);
}

static int start_or_leave(struct job *job, const uint8_t *bytes, size_t length, const struct jpeg_header *header)
{
    if (setjmp(job->leave) == 0) {
        const j_decompress_ptr cinfo = &job->cinfo;
        jpeg_create_decompress(cinfo);
        jpeg_mem_src(cinfo, bytes, (unsigned long)length);
        jpeg_read_header(cinfo, TRUE);
        /* Starting a decompressor of several scans reads them all. */
        if (jpeg_has_multiple_scans(cinfo)) {
            job->status = FASTLOAD_DAMAGED;
        } else {
            cinfo->out_color_space = cinfo->num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
            jpeg_start_decompress(cinfo);
            if ((int32_t)cinfo->image_width != header->width || (int32_t)cinfo->image_height != header->height ||
                cinfo->num_components != header->components)
                job->status = FASTLOAD_DAMAGED;
        }
    }
    jpeg_destroy_decompress(&job->cinfo);
    return job->status;
}

/* What is known of a file that is being read. All zeros before its first byte. */
struct fastload_waiting {
    int64_t end;  /* in the bytes given last: behind the end of the image */
    int32_t size[3]; /* width, height, components */
    int32_t has_header;
    int32_t is_marked; /* whether the last byte was 0xFF */
};

/* Whether decoding may be put off: libjpeg will not fail on this file, whatever its coded data are.
 *
 * bytes, length   the file from its beginning; once the header is read, what comes behind the bytes given before
 *
 * FASTLOAD_DONE: libjpeg's own reading of the header and its start succeed, there is one scan, and between it and the
 * end of the image there are no markers but restarts. FASTLOAD_INCOMPLETE: right so far, call again with more of the
 * file. Others: decode at once. Tried with 123,000 damaged scans that pass: libjpeg warns of them, and does not fail. */
FASTLOAD_EXPORT int fastload_jpeg_can_wait(const uint8_t *bytes, size_t length, struct fastload_waiting *waiting)
{
    size_t at = 0;
    if (!waiting->has_header) {
        struct jpeg_header header;
        const int status = read_jpeg_header(bytes, length, &header);
        waiting->size[0] = header.width;
        waiting->size[1] = header.height;
        waiting->size[2] = header.components;
        if (status != FASTLOAD_DONE)
            return header.incomplete ? FASTLOAD_INCOMPLETE : status;
        if (header.progressive)
            return FASTLOAD_CODING;
        struct job job;
        memset(&job, 0, sizeof job);
        prepare_errors(&job);
        const int started = start_or_leave(&job, bytes, length, &header);
        if (started != FASTLOAD_DONE)
            return started;
        waiting->has_header = 1;
        at = header.scan;
    }
    for (;;) {
        if (!waiting->is_marked) {
            const uint8_t *found = at < length ? memchr(bytes + at, 0xFF, length - at) : NULL;
            if (!found)
                return FASTLOAD_INCOMPLETE;
            at = (size_t)(found - bytes) + 1;
            waiting->is_marked = 1;
        }
        if (at >= length)
            return FASTLOAD_INCOMPLETE;
        const int marker = bytes[at++];
        waiting->is_marked = 0;
        if (marker == JPEG_EOI) {
            waiting->end = (int64_t)at;
            return FASTLOAD_DONE;
        }
        if (marker != 0 && (marker < JPEG_RST0 || marker > JPEG_RST0 + 7))
            return FASTLOAD_DAMAGED;
    }
}

#else
typedef int no_jpeg_here; /* ISO C wants something in a file */
#endif
