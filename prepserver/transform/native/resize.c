/* Antialiased bilinear resize of RGB bytes, with the very bytes of torch's _upsample_bilinear2d_aa on uint8.
 *
 * torch's arithmetic (ATen/native/cpu/UpSampleKernel.cpp and UpSampleKernelAVXAntialias.h, after Pillow-SIMD): weights
 * in double, normalised, rounded to 16-bit fixed point with as many fraction bits as the largest weight leaves room
 * for; lines first, rounded to bytes, then columns, rounded again. This must be compiled without contracting
 * products and sums (-ffp-contract=off). tests/unit/transform compares it with torch, and so does native/__init__.py
 * when it is loaded.
 *
 * What is gained: a mirrored image costs nothing, lines stay in the first-level cache until their columns are summed,
 * and nothing but the row is written.
 */
#include "kernels.h"
#include "resize.h"

#if defined(__x86_64__)
#include <immintrin.h>
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

/* Work out the weights. `within`: so that all of `stride` inputs of each output are there, if there are so many. */
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

/* Four lines at once: input lines in[0..3], output lines out[0..3]; up to 16 bytes behind a line's end are read, one
 * byte behind the output's is written. */
__attribute__((target("avx2"))) static inline __attribute__((always_inline)) void
lines_of(const struct axis *axis, int width, int mirror, const uint8_t *const in[4], uint8_t *const out[4], int quads) {
    /* 16 bytes hold five pixels; interleave the channels of the first and second, third and fourth, widened. */
    const __m256i one = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i two = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    const __m256i half = _mm256_set1_epi32(1 << (axis->fraction_bits - 1));
    const __m128i shift = _mm_cvtsi32_si128(axis->fraction_bits);
    for (int at = 0; at < width; at++) { /* ascending, since each store spills one byte */
        int i = mirror ? width - 1 - at : at;
        size_t from = (size_t)axis->first[i] * 3;
        const int16_t *weight = axis->weight + (size_t)i * axis->stride;
        __m256i ab = half, cd = half;
        for (int q = 0; q < quads; q++, from += 12, weight += 4) {
            int32_t pair[2];
            memcpy(pair, weight, sizeof pair);
            const __m256i w1 = _mm256_set1_epi32(pair[0]), w2 = _mm256_set1_epi32(pair[1]);
            __m256i p = _mm256_loadu2_m128i((const __m128i *)(in[1] + from), (const __m128i *)(in[0] + from));
            __m256i r = _mm256_loadu2_m128i((const __m128i *)(in[3] + from), (const __m128i *)(in[2] + from));
            ab = _mm256_add_epi32(ab, _mm256_madd_epi16(_mm256_shuffle_epi8(p, one), w1));
            cd = _mm256_add_epi32(cd, _mm256_madd_epi16(_mm256_shuffle_epi8(r, one), w1));
            ab = _mm256_add_epi32(ab, _mm256_madd_epi16(_mm256_shuffle_epi8(p, two), w2));
            cd = _mm256_add_epi32(cd, _mm256_madd_epi16(_mm256_shuffle_epi8(r, two), w2));
        }
        __m256i bytes = _mm256_packus_epi32(_mm256_sra_epi32(ab, shift), _mm256_sra_epi32(cd, shift));
        bytes = _mm256_packus_epi16(bytes, bytes);
        uint64_t ac = (uint64_t)_mm256_extract_epi64(bytes, 0), bd = (uint64_t)_mm256_extract_epi64(bytes, 2);
        uint32_t a = (uint32_t)ac, b = (uint32_t)bd, c = (uint32_t)(ac >> 32), d = (uint32_t)(bd >> 32);
        memcpy(out[0] + 3 * at, &a, 4);
        memcpy(out[1] + 3 * at, &b, 4);
        memcpy(out[2] + 3 * at, &c, 4);
        memcpy(out[3] + 3 * at, &d, 4);
    }
}

__attribute__((target("avx2"))) static void lines(const struct axis *axis, int width, int mirror,
                                                  const uint8_t *const in[4], uint8_t *const out[4]) {
    switch (axis->stride) { /* loops of known length: most images are reduced less than twofold */
    case 4: lines_of(axis, width, mirror, in, out, 1); break;
    case 8: lines_of(axis, width, mirror, in, out, 2); break;
    default: lines_of(axis, width, mirror, in, out, axis->stride / 4);
    }
}

/* One output line from `axis->taps` lines of the ring; the ring's lines are whole multiples of WIDE. */
__attribute__((target("avx2"))) static void columns(const struct axis *axis, int i, const uint8_t *ring, int mask,
                                                    size_t pitch, uint8_t *out, size_t nbytes) {
    const int16_t *weight = axis->weight + (size_t)i * axis->stride;
    const int first = axis->first[i], pairs = (axis->taps + 1) / 2;
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (axis->fraction_bits - 1));
    const __m128i shift = _mm_cvtsi32_si128(axis->fraction_bits);
    for (size_t at = 0; at < nbytes; at += 32) {
        __m256i s0 = half, s1 = half, s2 = half, s3 = half;
        for (int k = 0; k < pairs; k++) {
            int32_t pair;
            memcpy(&pair, weight + 2 * k, sizeof pair);
            const __m256i w = _mm256_set1_epi32(pair);
            __m256i a = _mm256_load_si256((const __m256i *)(ring + (size_t)((first + 2 * k) & mask) * pitch + at));
            __m256i b = _mm256_load_si256((const __m256i *)(ring + (size_t)((first + 2 * k + 1) & mask) * pitch + at));
            __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
            s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), w));
            s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), w));
            s2 = _mm256_add_epi32(s2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), w));
            s3 = _mm256_add_epi32(s3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), w));
        }
        __m256i bytes = _mm256_packus_epi16(
            _mm256_packus_epi32(_mm256_sra_epi32(s0, shift), _mm256_sra_epi32(s1, shift)),
            _mm256_packus_epi32(_mm256_sra_epi32(s2, shift), _mm256_sra_epi32(s3, shift)));
        if (nbytes - at >= 32) {
            _mm256_storeu_si256((__m256i *)(out + at), bytes);
        } else { /* never a byte behind the row: it is another row's */
            uint8_t rest[32];
            _mm256_storeu_si256((__m256i *)rest, bytes);
            memcpy(out + at, rest, nbytes - at);
        }
    }
}

#define MOST_BYTES ((size_t)64 << 20) /* what is reduced so much that it needs more is left to torch */

/* Resize (height, width, 3) bytes, `pitch` bytes from line to line, to a contiguous (out_height, out_width, 3).
 *
 * mirror: write each line from right to left.
 * Returns 1 if done, 0 if this is not for those sizes or this CPU, or there is no memory.
 */
int prep_resize(const uint8_t *in, size_t pitch, int height, int width, uint8_t *out, int out_height, int out_width,
                int mirror) {
    if (height < 1 || width < 8 || out_height < 1 || out_width < 1 || height > 65535 || width > 65535 ||
        out_height > 8192 || out_width > 8192 || pitch < (size_t)width * 3 || !__builtin_cpu_supports("avx2"))
        return 0;
    int x_most = most_taps(width, out_width), y_most = most_taps(height, out_height), ring_lines = 8;
    while (ring_lines < y_most + 8)
        ring_lines *= 2;
    size_t line = (size_t)out_width * 3, ring_pitch = (line + 1 + WIDE - 1) & ~(size_t)(WIDE - 1);
    size_t exact = (size_t)out_width * x_most > (size_t)out_height * y_most ? (size_t)out_width * x_most
                                                                           : (size_t)out_height * y_most;
    const int may_be_wide = prep_wide_serves();
    size_t sizes[] = {(size_t)out_width * 4,
                      (size_t)out_height * 4,
                      (size_t)out_width * (x_most + 3) * 2,
                      (size_t)out_height * (y_most + 3) * 2,
                      exact * sizeof(double),
                      ring_lines * ring_pitch,
                      (size_t)width * 3 + 32,
                      may_be_wide ? prep_wide_bytes(out_width, x_most) : 0};
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
    const int is_wide = may_be_wide && prep_wide_order(&wide, &x, width, out_width, mirror, take(&pool, sizes[7]));
    memset(ring, 0, ring_lines * ring_pitch); /* lines not there yet have weight 0, but are read */
    /* Reading goes up to 16 bytes behind a line's end; only behind the last line may there be nothing. */
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
            else
                lines(&x, out_width, mirror, from, to);
        }
        if (may_be_wide)
            prep_wide_columns(&y, i, ring, mask, ring_pitch, out + (size_t)i * line, line);
        else
            columns(&y, i, ring, mask, ring_pitch, out + (size_t)i * line, line);
    }
    free(memory);
    return 1;
}

#else

int prep_resize(const uint8_t *in, size_t pitch, int height, int width, uint8_t *out, int out_height, int out_width,
                int mirror) {
    (void)in, (void)pitch, (void)height, (void)width, (void)out, (void)out_height, (void)out_width, (void)mirror;
    return 0;
}

#endif
