/* Writes a JPEG file of noise over slow waves, of kinds that Pillow does not write. For the tests and the fuzzer.
 *
 * make_jpeg FILE WIDTH HEIGHT QUALITY SEED KIND H V RESTART
 *
 * KIND: a letter for each property: g grey, c CMYK, r RGB (no transform), p progressive, a arithmetic, n a scan for
 * each component, o optimised Huffman tables, i a progression that stops early, m a progression of many scans. H, V: sampling of the first component.
 * RESTART: MCUs between restart markers, 0 for none. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

/* Sets of components, coefficients, and bits: each kind of scan, in an order of its own for each component. */
static const jpeg_scan_info MANY[] = {
    {3, {0, 1, 2}, 0, 0, 0, 2}, {1, {0}, 1, 2, 0, 3},  {1, {0}, 3, 63, 0, 4}, {1, {1}, 1, 63, 0, 2},
    {3, {0, 1, 2}, 0, 0, 2, 1}, {1, {0}, 1, 2, 3, 2},  {1, {0}, 3, 63, 4, 3}, {1, {0}, 3, 63, 3, 2},
    {1, {0}, 1, 63, 2, 1},      {2, {0, 2}, 0, 0, 1, 0}, {1, {2}, 1, 63, 0, 0}, {1, {1}, 1, 20, 2, 1},
    {1, {1}, 21, 63, 2, 1},     {1, {1}, 1, 63, 1, 0}, {1, {1}, 0, 0, 1, 0},  {1, {0}, 1, 63, 1, 0},
};

int main(int argc, char **argv)
{
    if (argc != 10)
        return 2;
    const int width = atoi(argv[2]), height = atoi(argv[3]);
    const char *kind = argv[6];
    unsigned state = (unsigned)atoi(argv[5]) * 2654435761u + 1;
    FILE *file = fopen(argv[1], "wb");
    if (!file)
        return 1;
    struct jpeg_compress_struct cinfo;
    struct jpeg_error_mgr errors;
    cinfo.err = jpeg_std_error(&errors);
    jpeg_create_compress(&cinfo);
    jpeg_stdio_dest(&cinfo, file);
    cinfo.image_width = (JDIMENSION)width;
    cinfo.image_height = (JDIMENSION)height;
    const int channels = strchr(kind, 'g') ? 1 : strchr(kind, 'c') ? 4 : 3;
    cinfo.input_components = channels;
    cinfo.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_set_defaults(&cinfo);
    if (strchr(kind, 'r'))
        jpeg_set_colorspace(&cinfo, JCS_RGB);
    jpeg_set_quality(&cinfo, atoi(argv[4]), TRUE);
    for (int c = 0; c < cinfo.num_components; c++)
        cinfo.comp_info[c].h_samp_factor = cinfo.comp_info[c].v_samp_factor = 1;
    cinfo.comp_info[0].h_samp_factor = atoi(argv[7]);
    cinfo.comp_info[0].v_samp_factor = atoi(argv[8]);
    cinfo.restart_interval = (unsigned)atoi(argv[9]);
    cinfo.optimize_coding = strchr(kind, 'o') != NULL;
    cinfo.arith_code = strchr(kind, 'a') != NULL;
    if (strchr(kind, 'p') || strchr(kind, 'i'))
        jpeg_simple_progression(&cinfo);
    if (strchr(kind, 'i'))
        cinfo.num_scans -= 2;
    jpeg_scan_info scans[4];
    if (strchr(kind, 'n')) {
        memset(scans, 0, sizeof scans);
        for (int c = 0; c < channels; c++) {
            scans[c].comps_in_scan = 1;
            scans[c].component_index[0] = c;
            scans[c].Se = 63;
        }
        cinfo.scan_info = scans;
        cinfo.num_scans = channels;
    }
    if (strchr(kind, 'm')) {
        cinfo.scan_info = MANY;
        cinfo.num_scans = sizeof MANY / sizeof *MANY;
    }
    jpeg_start_compress(&cinfo, TRUE);
    JSAMPROW row = malloc((size_t)width * 4);
    const double slow = 0.02 + 0.1 * (state >> 28) / 16;
    for (int y = 0; y < height; y++) {
        for (int i = 0; i < width * channels; i++) {
            state = state * 1664525u + 1013904223u;
            const double wave = sin(slow * (i / channels)) + cos(slow * y + i % channels);
            const double value = 128 + 60 * wave + (int)(state >> 24) / 4 - 32;
            row[i] = (JSAMPLE)(value < 0 ? 0 : value > 255 ? 255 : value);
        }
        jpeg_write_scanlines(&cinfo, &row, 1);
    }
    jpeg_finish_compress(&cinfo);
    jpeg_destroy_compress(&cinfo);
    free(row);
    return fclose(file) != 0;
}
