/* Decoding by libjpeg: files of several scans, which are mostly progressive. Optional: without it they are left to
 * another decoder.
 *
 * Only the rows and columns that a box needs are decoded; upsampling colours looks at the pixels beside, so a margin of
 * them is decoded too. libjpeg's messages are errors here, warnings as well: such a file goes to another decoder.
 */
#include "libjpeg.h"

#ifdef FASTLOAD_WITH_JPEG
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

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
                  const struct jpeg_header *header, const int part[4], struct resizer *resizer)
{
    const j_decompress_ptr cinfo = &job->cinfo;
    const int top = part[0], left = part[1], height = part[2], width = part[3];
    jpeg_create_decompress(cinfo);
    job->progress.progress_monitor = count_scans;
    cinfo->progress = &job->progress;
    jpeg_mem_src(cinfo, bytes, (unsigned long)length);
    jpeg_read_header(cinfo, TRUE);
    if ((int32_t)cinfo->image_width != header->width || (int32_t)cinfo->image_height != header->height ||
        cinfo->num_components != header->components)
        return FASTLOAD_DAMAGED;
    /* Several scans are all read before the first row, so no error can come behind the last row that is wanted. Of a
     * single scan only one that the caller has checked is decoded. */
    if (!jpeg_has_multiple_scans(cinfo) && !header->is_sequential)
        return FASTLOAD_NOT_JPEG;
    const struct target *target = &resizer->target;
    const int direct = width == header->width && takes_rows_as_they_are(resizer);
    cinfo->out_color_space = !direct || target->channels == 3 ? JCS_RGB
                             : target->channels == 4          ? JCS_EXT_RGBA
                                                              : JCS_GRAYSCALE;
    cinfo->dct_method = JDCT_ISLOW;
    cinfo->do_fancy_upsampling = TRUE;
    jpeg_start_decompress(cinfo);
    if (!is_complete(cinfo))
        return FASTLOAD_DAMAGED;

    int begin = left - MARGIN > 0 ? left - MARGIN : 0;
    int end = left + width + MARGIN < header->width ? left + width + MARGIN : header->width;
    if (end - begin < LEAST_WIDTH)
        end = begin + LEAST_WIDTH < header->width ? begin + LEAST_WIDTH : header->width;
    if (end - begin < LEAST_WIDTH)
        begin = end - LEAST_WIDTH > 0 ? end - LEAST_WIDTH : 0;
    JDIMENSION offset = (JDIMENSION)begin, columns = (JDIMENSION)(end - begin);
    jpeg_crop_scanline(cinfo, &offset, &columns);
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
                           const struct jpeg_header *header, const int part[4], struct resizer *resizer)
{
    if (setjmp(job->leave) == 0)
        job->status = decode(job, scratch, bytes, length, header, part, resizer);
    jpeg_destroy_decompress(&job->cinfo);
    return job->status;
}

int libjpeg_works(void)
{
    struct job job;
    memset(&job, 0, sizeof job);
    prepare_errors(&job);
    return create_or_leave(&job);
}

int libjpeg_decode(struct fastload_scratch *scratch, const uint8_t *bytes, size_t length,
                   const struct jpeg_header *header, const int part[4], struct resizer *resizer)
{
    struct job job;
    memset(&job, 0, sizeof job);
    prepare_errors(&job);
    return decode_or_leave(&job, scratch, bytes, length, header, part, resizer);
}

#else
int libjpeg_works(void)
{
    return 0;
}

int libjpeg_decode(struct fastload_scratch *scratch, const uint8_t *bytes, size_t length,
                   const struct jpeg_header *header, const int part[4], struct resizer *resizer)
{
    (void)scratch, (void)bytes, (void)length, (void)header, (void)part, (void)resizer;
    return FASTLOAD_CODING;
}
#endif
