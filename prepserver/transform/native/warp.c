/* See an image through a matrix (prepserver/transform/warp.py, `warp`, has the same arithmetic).
 *
 * Coordinates are doubles, whose sums and products the compiler must not fuse (hatch_build.py's flags). Nothing is read
 * or written outside the two images.
 */
#include "kernels.h"

#define LONGEST 65535

/* The pixels before and after a place on a line, and how near the latter is, in 256ths. */
static inline int between(double at, int length, int *first, int *second) {
    const double exact = (at - 0.5) * 256.0 + 0.5;
    const int cut = (int)exact, steps = cut - (exact < cut), before = steps >> 8; /* floor() is a call */
    *first = before < 0 ? 0 : before;
    *second = before + 1 < length ? before + 1 : length - 1;
    return steps & 255;
}

/* Warp an image of 1 or 3 channels.
 *
 * in, pitch, height, width: the image, `pitch` bytes from line to line.
 * matrix:                   eight numbers, as `Warp.matrix`.
 * bilinear:                 or the nearest pixel.
 * fill:                     a byte for each channel.
 * out, ...:                 the result, without gaps; does not overlap the image.
 *
 * Returns 1, or 0 if the sizes make no sense.
 */
int prep_warp(const uint8_t *in, size_t pitch, int height, int width, int channels, const double *matrix, int bilinear,
              const uint8_t *fill, uint8_t *out, int out_height, int out_width) {
    if (height < 1 || width < 1 || out_height < 1 || out_width < 1 || height > LONGEST || width > LONGEST ||
        out_height > LONGEST || out_width > LONGEST || (channels != 1 && channels != 3) ||
        pitch < (size_t)width * channels)
        return 0;
    const double a = matrix[0], b = matrix[1], c = matrix[2], d = matrix[3], e = matrix[4], f = matrix[5];
    const double g = matrix[6], h = matrix[7];
    const int in_perspective = g != 0.0 || h != 0.0;
    for (int row = 0; row < out_height; row++) {
        const double y = row + 0.5, across_from = b * y + c, down_from = e * y + f, w_from = h * y + 1.0;
        for (int column = 0; column < out_width; column++, out += channels) {
            const double x = column + 0.5;
            double across = a * x + across_from, down = d * x + down_from;
            if (in_perspective) {
                const double w = g * x + w_from;
                across = across / w;
                down = down / w;
            }
            if (!(across >= 0.0 && across < width && down >= 0.0 && down < height)) {
                out[0] = fill[0];
                if (channels == 3) {
                    out[1] = fill[1];
                    out[2] = fill[2];
                }
            } else if (!bilinear) {
                const uint8_t *const from = in + (size_t)(int)down * pitch + (size_t)(int)across * channels;
                out[0] = from[0];
                if (channels == 3) {
                    out[1] = from[1];
                    out[2] = from[2];
                }
            } else {
                int left, right, above, below;
                const int near_right = between(across, width, &left, &right);
                const int near_below = between(down, height, &above, &below);
                const uint8_t *const upper = in + (size_t)above * pitch, *const lower = in + (size_t)below * pitch;
                for (int k = 0; k < channels; k++) {
                    const int l = left * channels + k, r = right * channels + k;
                    const int up = upper[l] * (256 - near_right) + upper[r] * near_right;
                    const int low = lower[l] * (256 - near_right) + lower[r] * near_right;
                    out[k] = (uint8_t)((up * (256 - near_below) + low * near_below + (1 << 15)) >> 16);
                }
            }
        }
    }
    return 1;
}
