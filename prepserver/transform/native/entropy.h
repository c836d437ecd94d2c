/* A Huffman decoder in the place of libjpeg-turbo's, for baseline JPEGs; see entropy.c. */
#ifndef PREP_ENTROPY_H
#define PREP_ENTROPY_H

#include "turbo.h"

#define INDEX_BITS 10           /* looked up at once: more takes longer to make than it gains */
#define MCU_BYTES (10 * 64 * 4) /* no MCU takes more: blocks, numbers, 31 bits for a code and what belongs to it */
#define ROOM 8192

/* The values in a step. Of a code whose number the index does not hold whole, `first` and `last` are 0, and what the
 * bits after the code say is added to `last`. If a step is one code, both go to the same coefficient, `last` later. */
struct numbers {
    int16_t first, last; /* of the first code and of the last */
    uint8_t first_on;    /* how many coefficients the first goes on, 63 at the end of a block */
    uint8_t length;      /* of that code, bits; else 0 */
    uint8_t spare;       /* NONE less the bits of its number; else NONE */
};
#define NONE 63

/* One Huffman table; entropy.c explains `steps` and `numbers`. */
struct codes {
    int made;              /* whether the rest is made of `bits` and `values` */
    uint8_t bits[17];      /* how many codes there are of each length */
    uint8_t values[256];   /* what they stand for, in the order of the codes */
    uint32_t limit[17];    /* where the codes of a length end, left-aligned in 16 bits */
    int32_t place[17];     /* what turns a code of that length into its place in `values` */
    uint16_t steps[1 << INDEX_BITS]; /* by the next bits: how far their codes go; small, since all else waits for it */
    struct numbers numbers[1 << INDEX_BITS]; /* and the values */
};

/* Kept from image to image: encoders that do not optimise put the same four into every file. */
struct code_tables {
    struct codes dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
};

/* A scan on its way from bytes to coefficients. */
struct entropy {
    void (*refuse)(j_common_ptr); /* does not return */
    void (*open)(j_decompress_ptr); /* where segments lie apart, each with its marker: makes the next one the source */
    uint64_t window;              /* the next bits, left-aligned */
    int held;                     /* how many of them are no longer at `next` */
    const uint8_t *next, *end;    /* in `room`, where stuffed zeros are taken out: the bytes after those held */
    int is_wide;                  /* whether bytes come 64 at a time */
    int marker;                   /* which one ended them, 0 for none yet */
    unsigned restart, to_restart, restarts;        /* MCUs from marker to marker, and to the next; markers seen */
    unsigned column, columns, first, beyond;       /* of MCUs: the present one, all, and those that are wanted */
    int blocks;                                    /* in an MCU */
    struct {
        const struct codes *dc, *ac;
        int32_t *last_dc;
    } block[D_MAX_BLOCKS_IN_MCU];
    int32_t last_dc[MAX_COMPS_IN_SCAN];
    uint8_t room[ROOM + MCU_BYTES + 16];
};

/* Whether this can take over from libjpeg, which has started to decompress a file of one scan but not read of it.
 * `is_theirs` says of the function that would be replaced whether it is libjpeg's. */
int prep_entropy_serves(const struct jpeg_decompress_struct *jpeg, int (*is_theirs)(const void *));

/* Take over. jpeg->client_data is to point to `self`, of which `refuse` and `open`, or NULL, are set. Of columns of MCUs
 * outside [first, beyond) there will be no coefficients. Returns 0, with nothing taken, if a Huffman table is no prefix
 * code. */
int prep_entropy_take(struct entropy *self, j_decompress_ptr jpeg, unsigned first, unsigned beyond);

/* Give the source back, after the last byte read. Returns whether the MCUs ended where a marker is. */
int prep_entropy_leave(struct entropy *self, j_decompress_ptr jpeg);

#endif
