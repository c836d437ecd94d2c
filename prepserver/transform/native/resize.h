/* What the three forms of the resize have in common: see resize.c. */
#ifndef PREP_RESIZE_H
#define PREP_RESIZE_H

#include <stddef.h>
#include <stdint.h>

#include "vectors.h"

/* One axis: output i is the sum over k < taps of weight[i * stride + k] * input[first[i] + k]. */
struct axis {
    int32_t *first;
    int16_t *weight; /* padded with zeros to `stride`, a multiple of 4 */
    int taps, stride, fraction_bits;
};

/* resize_avx2.c: the same sums by AVX2, which writes one byte past an output line. */
void prep_avx2_lines(const struct axis *axis, int width, int mirror, const uint8_t *const in[4],
                     uint8_t *const out[4]);
void prep_avx2_columns(const struct axis *axis, int i, const uint8_t *ring, int mask, size_t pitch, uint8_t *out,
                       size_t nbytes);

/* resize_wide.c: the same sums by AVX-512, for CPUs and sizes that it is for. */

#define WIDE 64 /* bytes of a register */

/* The lines' axis put in order for it: output bytes go in groups of WIDE_GROUP. */
#define WIDE_GROUP 16
struct wide {
    int groups, pairs;
    int32_t *start;   /* where a group's WIDE bytes of input begin */
    uint8_t *places;  /* WIDE for each group: where in these are the first two taps of each output byte */
    int16_t *weights; /* WIDE bytes for each group and pair of taps */
};

/* Bytes that `struct wide` needs for its three, each beginning on a multiple of WIDE. */
size_t prep_wide_bytes(int out_width, int most_taps);

/* Put it in order, in `memory`. Returns 0 if WIDE bytes do not hold all that some group sees. */
int prep_wide_order(struct wide *wide, const struct axis *axis, int width, int out_width, int mirror, char *memory);

/* Four lines at once: input in[0..3], output out[0..3], of which whole groups are written. */
void prep_wide_lines(const struct wide *wide, int fraction_bits, const uint8_t *const in[4], uint8_t *const out[4]);

/* One output line from `axis->taps` lines of the ring; the ring's lines are whole multiples of WIDE. */
void prep_wide_columns(const struct axis *axis, int i, const uint8_t *ring, int mask, size_t pitch, uint8_t *out,
                       size_t nbytes);

#endif
