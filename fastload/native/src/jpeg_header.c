/* See jpeg_header.h. */
#include "jpeg_header.h"

#include <string.h>

enum marker { SOF0 = 0xC0, SOF2 = 0xC2, SOF15 = 0xCF, DHT = 0xC4, JPG = 0xC8, DAC = 0xCC, SOI = 0xD8, SOS = 0xDA,
              DQT = 0xDB, DRI = 0xDD, APP0 = 0xE0, APP15 = 0xEF, COM = 0xFE };

static int is_frame(int marker)
{
    return marker >= SOF0 && marker <= SOF15 && marker != DHT && marker != JPG && marker != DAC;
}

/* Grey, 4:4:4, 4:2:2, 4:4:0, 4:2:0 and 4:1:1, whose decoding of parts was tried. */
static int is_common(const uint8_t *component, int num)
{
    if (num == 1)
        return component[1] == 0x11 || component[1] == 0x21 || component[1] == 0x12 || component[1] == 0x22;
    const int first = component[1];
    return component[4] == 0x11 && component[7] == 0x11 &&
           (first == 0x11 || first == 0x21 || first == 0x12 || first == 0x22 || first == 0x41);
}

static int read_frame(const uint8_t *body, size_t size, int marker, struct jpeg_header *header)
{
    if (size < 6)
        return FASTLOAD_NOT_JPEG;
    header->height = body[1] << 8 | body[2];
    header->width = body[3] << 8 | body[4];
    header->components = body[5];
    header->progressive = marker == SOF2;
    if (size != 6 + (size_t)3 * body[5] || header->height == 0 || header->width == 0)
        return FASTLOAD_NOT_JPEG;
    if (marker > SOF2 || body[0] != 8)
        return FASTLOAD_CODING;
    if (body[5] != 1 && body[5] != 3)
        return FASTLOAD_COLORS;
    if (!is_common(body + 6, body[5]))
        return FASTLOAD_SAMPLING;
    if ((int64_t)header->width * header->height > FASTLOAD_MAX_PIXELS)
        return FASTLOAD_TOO_LARGE;
    return FASTLOAD_DONE;
}

int read_jpeg_header(const uint8_t *bytes, size_t length, struct jpeg_header *header)
{
    memset(header, 0, sizeof *header);
    header->status = FASTLOAD_NOT_JPEG;
    if (length < 4 || bytes[0] != 0xFF || bytes[1] != SOI)
        return header->status;
    int found = -1; /* the frame header's status */
    size_t at = 2;
    while (length - at >= 4) {
        const int marker = bytes[at + 1];
        const size_t size = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (bytes[at] != 0xFF || size < 2)
            return header->status;
        if (size > length - at - 2)
            break;
        if (is_frame(marker)) {
            if (found >= 0)
                return header->status;
            found = read_frame(bytes + at + 4, size - 2, marker, header);
            if (found == FASTLOAD_NOT_JPEG)
                return header->status;
        } else if (marker == SOS) {
            if (found >= 0)
                header->status = found;
            header->scan = at + 2 + size;
            return header->status;
        } else if (marker != DHT && marker != DQT && marker != DRI && marker != DAC && marker != COM &&
                   (marker < APP0 || marker > APP15)) {
            return header->status;
        }
        at += 2 + size;
    }
    header->incomplete = 1;
    return header->status;
}

/* The size and kind of a JPEG file. out: width, height, components, progressive (0 or 1). Returns enum
 * fastload_status; sizes are also given where a file was understood but is left to another decoder. */
FASTLOAD_EXPORT int fastload_jpeg_size(const uint8_t *bytes, size_t length, int32_t out[4])
{
    struct jpeg_header header;
    const int status = read_jpeg_header(bytes, length, &header);
    out[0] = header.width;
    out[1] = header.height;
    out[2] = header.components;
    out[3] = header.progressive;
    return status;
}
