/* Antialiased bilinear resize of RGB bytes, with the very bytes of torch's _upsample_bilinear2d_aa on uint8.
 *
 * torch's arithmetic (ATen/native/cpu/UpSampleKernel.cpp and UpSampleKernelAVXAntialias.h, after Pillow-SIMD): weights
 * in double, normalised, rounded to 16-bit fixed point with as many fraction bits as the largest weight leaves room
 * for; lines first, rounded to bytes, then columns, rounded again. This must be compiled without contracting
 * products and sums (-ffp-contract=off). tests/unit/transform compares it with torch, and so does native/__init__.py
 * when it is loaded.
 *
 * The gain: a mirrored image costs nothing, lines stay in the first-level cache until their columns are summed,
 * and nothing but the row is written.
 *
 * The sums are here in plain C, for every CPU and as what the other two forms must equal: resize_avx2.c, resize_wide.c.
 * torch, too, gives the same bytes on CPUs with AVX2 and without, though by different code.
 */
#include "kernels.h"
#include "resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *take(char **pool, size_t nbytes) {
    void *taken = *pool;
    *pool += (nbytes + 63) & ~(size_t)63;
    return taken;
}

/* The most inputs that one output can see, as torch reckons it. */
static int most_taps(int in, int out) {
    double scale = (double)in / out, support = scale >= 1.0 ? scale : 1.0;
    return (int)ceil(support) * 2 + 1;
}

/* Work out the weights. `within`: all `stride` inputs of each output lie in the line, if it has as many. */
static void weigh(struct axis *axis, int in, int out, int within, double *exact) {
    double scale = (double)in / out;
    double support = scale >= 1.0 ? scale : 1.0, inverse = scale >= 1.0 ? 1.0 / scale : 1.0, greatest = 0.0;
    int most = most_taps(in, out);
    axis->taps = 1;
    for (int i = 0; i < out; i++) {
        double *w = exact + (size_t)i * most, total = 0.0, center = scale * (i + 0.5);
        int64_t first = (int64_t)(center - support + 0.5), end = (int64_t)(center + support + 0.5);
        first = first > 0 ? first : 0;
        end = end < in ? end : in;
        int count = (int)(end - first), k = 0;
        count = count < 0 ? 0 : count > most ? most : count;
        for (; k < count; k++) {
            double x = fabs((k + first - center + 0.5) * inverse);
            w[k] = x < 1.0 ? 1.0 - x : 0.0;
            total += w[k];
        }
        for (k = 0; k < count; k++) {
            if (total != 0.0)
                w[k] /= total;
            greatest = w[k] > greatest ? w[k] : greatest;
        }
        for (; k < most; k++)
            w[k] = 0.0;
        axis->first[i] = (int32_t)first;
        axis->taps = count > axis->taps ? count : axis->taps;
    }
    int bits = 0;
    while (bits < 22 && (int)(0.5 + greatest * (1 << (bits + 1))) < 1 << 15)
        bits++;
    axis->fraction_bits = bits;
    axis->stride = (axis->taps + 3) & ~3;
    for (int i = 0; i < out; i++) {
        int16_t *weight = axis->weight + (size_t)i * axis->stride;
        int beyond = axis->first[i] + axis->stride - in, ahead = 0;
        if (within && beyond > 0) /* near the end: begin earlier, with zeros, rather than read on */
            ahead = beyond < axis->first[i] ? beyond : axis->first[i];
        axis->first[i] -= ahead;
        for (int k = 0; k < axis->stride; k++)
            weight[k] = k >= ahead && k - ahead < most
                            ? (int16_t)(0.5 + exact[(size_t)i * most + k - ahead] * (1 << bits))
                            : 0;
    }
}

static uint8_t byte(int32_t sum, int fraction_bits) {
    const int32_t value = sum >> fraction_bits;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Four lines at once, as all forms have it: input lines in[0..3], of which up to 16 bytes past the end are read, and
 * output lines out[0..3]. */
static void plain_lines(const struct axis *axis, int width, int mirror, const uint8_t *const in[4],
                        uint8_t *const out[4]) {
    for (int at = 0; at < width; at++) {
        const int i = mirror ? width - 1 - at : at;
        const int16_t *const weight = axis->weight + (size_t)i * axis->stride;
        for (int line = 0; line < 4; line++) {
            const uint8_t *const pixel = in[line] + (size_t)axis->first[i] * 3;
            int32_t red, green, blue;
            red = green = blue = 1 << (axis->fraction_bits - 1);
            for (int k = 0; k < axis->stride; k++) {
                red += weight[k] * pixel[3 * k];
                green += weight[k] * pixel[3 * k + 1];
                blue += weight[k] * pixel[3 * k + 2];
            }
            out[line][3 * at] = byte(red, axis->fraction_bits);
            out[line][3 * at + 1] = byte(green, axis->fraction_bits);
            out[line][3 * at + 2] = byte(blue, axis->fraction_bits);
        }
    }
}

/* One output line from `axis->taps` lines of the ring; the ring's lines are whole multiples of WIDE. */
static void plain_columns(const struct axis *axis, int i, const uint8_t *ring, int mask, size_t pitch, uint8_t *out,
                          size_t nbytes) {
    const int16_t *const weight = axis->weight + (size_t)i * axis->stride;
    for (size_t at = 0; at < nbytes; at += WIDE) {
        int32_t sums[WIDE];
        for (int k = 0; k < WIDE; k++)
            sums[k] = 1 << (axis->fraction_bits - 1);
        for (int tap = 0; tap < axis->taps; tap++) {
            const uint8_t *const line = ring + (size_t)((axis->first[i] + tap) & mask) * pitch + at;
            for (int k = 0; k < WIDE; k++)
                sums[k] += weight[tap] * line[k];
        }
        for (size_t k = 0; k < WIDE && at + k < nbytes; k++)
            out[at + k] = byte(sums[k], axis->fraction_bits);
    }
}

#define MOST_BYTES ((size_t)64 << 20) /* what is reduced so much that it needs more is left to torch */

/* Resize (height, width, 3) bytes, `pitch` bytes from line to line, to a contiguous (out_height, out_width, 3).
 *
 * mirror: write each line from right to left.
 * Returns 1 if done, 0 if this is not for those sizes, or there is no memory.
 */
int prep_resize(const uint8_t *in, size_t pitch, int height, int width, uint8_t *out, int out_height, int out_width,
                int mirror) {
    if (height < 1 || width < 8 || out_height < 1 || out_width < 1 || height > 65535 || width > 65535 ||
        out_height > 8192 || out_width > 8192 || pitch < (size_t)width * 3)
        return 0;
    int x_most = most_taps(width, out_width), y_most = most_taps(height, out_height), ring_lines = 8;
    while (ring_lines < y_most + 8)
        ring_lines *= 2;
    size_t line = (size_t)out_width * 3, ring_pitch = (line + 1 + WIDE - 1) & ~(size_t)(WIDE - 1);
    size_t exact = (size_t)out_width * x_most > (size_t)out_height * y_most ? (size_t)out_width * x_most
                                                                           : (size_t)out_height * y_most;
    const enum vectors best = prep_vectors();
    size_t sizes[] = {(size_t)out_width * 4,
                      (size_t)out_height * 4,
                      (size_t)out_width * (x_most + 3) * 2,
                      (size_t)out_height * (y_most + 3) * 2,
                      exact * sizeof(double),
                      ring_lines * ring_pitch,
                      (size_t)width * 3 + 32,
                      best == AVX512 ? prep_wide_bytes(out_width, x_most) : 0};
    size_t total = 64;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        total += (sizes[k] + 63) & ~(size_t)63;
    if (total > MOST_BYTES)
        return 0;
    char *memory = malloc(total);
    if (memory == NULL)
        return 0;
    char *pool = (char *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    struct axis x, y;
    x.first = take(&pool, sizes[0]);
    y.first = take(&pool, sizes[1]);
    x.weight = take(&pool, sizes[2]);
    y.weight = take(&pool, sizes[3]);
    double *weights = take(&pool, sizes[4]);
    uint8_t *ring = take(&pool, sizes[5]), *last = take(&pool, sizes[6]);
    weigh(&x, width, out_width, 1, weights);
    weigh(&y, height, out_height, 0, weights);
    struct wide wide;
    const int is_wide = best == AVX512 && prep_wide_order(&wide, &x, width, out_width, mirror, take(&pool, sizes[7]));
    memset(ring, 0, ring_lines * ring_pitch); /* lines not there yet have weight 0, but are read */
    /* Reading goes up to 16 bytes past a line's end, which only after the last line may be past the image. */
    memcpy(last, in + (size_t)(height - 1) * pitch, (size_t)width * 3);
    memset(last + (size_t)width * 3, 0, 32);
    int done = 0, mask = ring_lines - 1;
    for (int i = 0; i < out_height; i++) {
        int end = y.first[i] + y.taps < height ? y.first[i] + y.taps : height;
        for (; done < end; done += 4) {
            const uint8_t *from[4];
            uint8_t *to[4];
            for (int k = 0; k < 4; k++) { /* beyond the last line: it again, to where no weight reaches */
                from[k] = done + k < height - 1 ? in + (size_t)(done + k) * pitch : last;
                to[k] = ring + (size_t)((done + k) & mask) * ring_pitch;
            }
            if (is_wide)
                prep_wide_lines(&wide, x.fraction_bits, from, to);
            else if (best >= AVX2)
                prep_avx2_lines(&x, out_width, mirror, from, to);
            else
                plain_lines(&x, out_width, mirror, from, to);
        }
        if (best == AVX512)
            prep_wide_columns(&y, i, ring, mask, ring_pitch, out + (size_t)i * line, line);
        else if (best >= AVX2)
            prep_avx2_columns(&y, i, ring, mask, ring_pitch, out + (size_t)i * line, line);
        else
            plain_columns(&y, i, ring, mask, ring_pitch, out + (size_t)i * line, line);
    }
    free(memory);
    return 1;
}
