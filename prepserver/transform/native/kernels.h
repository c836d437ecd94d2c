/* What the C files of this folder offer each other. */
#ifndef PREP_KERNELS_H
#define PREP_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* Columns that may be decoded beyond those asked for: to the next MCU (at most 32 pixels) and a sample of chroma on
 * either side. native/compiled.py has the same number. */
#define MARGIN 40

/* Room after the data for what is looked at ahead. native/compiled.py has the same number. */
#define MARGIN_BYTES 8192

/* header.c: the places of a header's numbers. */
enum {
    HEIGHT, WIDTH, COMPONENTS, HEIGHT_AT, SCAN_AT, TRIMMABLE, UNIT_HEIGHT, UNIT_WIDTH, INTERVAL, ORIENTATION, NUMBERS
};

int prep_header(const uint8_t *data, size_t size, int32_t *out);
int prep_is_true(const uint8_t *record, size_t lengths_at, size_t jpeg_at, size_t size, unsigned segments,
                 unsigned height_at, unsigned scan_at, unsigned height, unsigned width, unsigned unit_height,
                 unsigned unit_width, unsigned interval);
size_t prep_cut(const uint8_t *data, size_t size, size_t scan_at, size_t count);

/* region.c */
int prep_region(const uint8_t *data, size_t length, size_t height_at, unsigned claimed, int left_over, unsigned width,
                unsigned subsamplings, unsigned scale, unsigned top, unsigned bottom, unsigned left, unsigned right,
                unsigned pitch, uint8_t *out);
int prep_scan(const uint8_t *record, size_t lengths_at, size_t jpeg_at, size_t size, unsigned segments,
              unsigned height_at, unsigned scan_at, unsigned height, unsigned width, unsigned unit_height,
              unsigned unit_width, unsigned interval, unsigned subsamplings, unsigned top, unsigned bottom,
              unsigned left, unsigned right, unsigned pitch, uint8_t *work, size_t work_bytes, uint8_t *out);

/* rewrite.c */
void prep_bind_rewrite(void *library);
size_t prep_rewrite(const uint8_t *data, size_t size, unsigned interval, uint8_t **made);
void prep_free(uint8_t *made);

/* resize.c */
int prep_resize(const uint8_t *in, size_t pitch, int height, int width, uint8_t *out, int out_height, int out_width,
                int mirror);

/* turn.c */
int prep_turn(const uint8_t *in, size_t pitch, int orientation, int height, int width, uint8_t *out);

/* warp.c */
int prep_warp(const uint8_t *in, size_t pitch, int height, int width, int channels, const double *matrix, int bilinear,
              const uint8_t *fill, uint8_t *out, int out_height, int out_width);

/* yuv.c */
int prep_yuv(const uint8_t *record, size_t size, size_t at, int height, int width, int top, int left, int bottom,
             int right, uint8_t *out);

#endif
