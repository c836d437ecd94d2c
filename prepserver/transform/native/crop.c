/* A whole row in one call: header, random crop, decode, turn, resize and flip, for the pipeline that nearly all
 * training has.
 *
 * It is what prepserver/transform does step by step (ops/random_resized_crop.py; header.py, `extent`; decode.py),
 * number for number, less the Python between the steps. Whatever is not plain is refused; then
 * Python takes the steps one by one, and its verdict holds.
 */
#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a maker's crop is like. native/compiled.py has the same struct, `CropRecipe`. */
struct recipe {
    double least, greatest;       /* share of the image's area */
    double log_narrow, log_wide;  /* logarithms of the ratios between which one is drawn */
    double residual, scale;       /* scale.py: RESIDUAL, and the least of SCALES */
    int64_t max_pixels;
    int32_t height, width;        /* of the row */
    int32_t least_scaled;         /* a part with a shorter side is decoded at its size */
    int32_t upright;              /* the image is to be turned by its EXIF orientation */
};

struct box {
    unsigned top, left, height, width;
};

/* A number in [low, high) from a random word; in [0, count). stage.py: `Draws`. */
static double uniform(uint64_t word, double low, double high) {
    return low + (high - low) * ((double)(word >> 11) * 0x1p-53);
}

static unsigned below(uint64_t word, unsigned count) {
    return (unsigned)((unsigned __int128)word * count >> 64);
}

/* Draw the part of an image of height x width. Returns 0 if `words`, eight, are too few for it. */
static int draw(const struct recipe *recipe, const uint64_t *words, unsigned height, unsigned width, struct box *box) {
    for (int at = 0; at + 4 <= 8; at += 2) {
        const double area = (double)((uint64_t)height * width) * uniform(words[at], recipe->least, recipe->greatest);
        const double aspect = exp(uniform(words[at + 1], recipe->log_narrow, recipe->log_wide));
        const double columns = rint(sqrt(area * aspect)), rows = rint(sqrt(area / aspect)); /* half to even */
        if (columns > 0 && columns <= width && rows > 0 && rows <= height) {
            box->height = (unsigned)rows;
            box->width = (unsigned)columns;
            box->top = below(words[at + 2], height - box->height + 1);
            box->left = below(words[at + 3], width - box->width + 1);
            return 1;
        }
    }
    return 0;
}

/* Whether the part is decoded at its size, and resized at all. */
static int is_plain(const struct recipe *recipe, const struct box *box) {
    const double down = (double)box->height / recipe->height, across = (double)box->width / recipe->width;
    const unsigned least = (unsigned)recipe->least_scaled;
    if (box->height >= least && box->width >= least && fmin(down, across) / recipe->residual >= recipe->scale)
        return 0;
    return box->height != (unsigned)recipe->height || box->width != (unsigned)recipe->width;
}

/* Where a part of the upright image, of height x width, lies in the image as stored (orientation.py, `as_stored`). */
static struct box as_stored(const struct box *box, int orientation, unsigned height, unsigned width) {
    const int from_below = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    const int from_right = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
    const unsigned top = from_below ? height - box->top - box->height : box->top;
    const unsigned left = from_right ? width - box->left - box->width : box->left;
    return orientation >= 5 ? (struct box){left, top, box->width, box->height}
                            : (struct box){top, left, box->height, box->width};
}

/* What is decided before anything is decoded. */
struct plan {
    int orientation;         /* by which the part is turned */
    struct box part, stored; /* of the upright image; the same of the image as stored */
    size_t pixels;           /* bytes that decoding the part needs */
};

/* Plan the row of an image of height x width as stored, and say in `drawn` what of the upright image it shows: height
 * and width of the whole, then top, left, height and width of the part. Returns 0 if it is not plain. */
static int plan(const struct recipe *recipe, const uint64_t *words, int orientation, unsigned height, unsigned width,
                struct plan *plan, int32_t *drawn) {
    plan->orientation = recipe->upright ? orientation : 1;
    const int swapped = plan->orientation >= 5;
    const unsigned upright_height = swapped ? width : height, upright_width = swapped ? height : width;
    if (orientation < 1 || orientation > 8 || (int64_t)height * width > recipe->max_pixels ||
        !draw(recipe, words, upright_height, upright_width, &plan->part) || !is_plain(recipe, &plan->part))
        return 0;
    plan->stored = as_stored(&plan->part, plan->orientation, upright_height, upright_width);
    plan->pixels = ((size_t)plan->stored.height + 1) * (plan->stored.width + MARGIN) * 3;
    const unsigned numbers[] = {upright_height, upright_width, plan->part.top, plan->part.left, plan->part.height,
                                plan->part.width};
    memcpy(drawn, numbers, sizeof numbers);
    return 1;
}

/* Turn the decoded part if need be, resize it and flip it. `first`: its first column in `pixels`, or -1. */
static int finish(const struct recipe *recipe, const struct plan *plan, int first, int mirror, const uint8_t *pixels,
                  uint8_t *out) {
    if (first < 0)
        return 0;
    const int height = (int)plan->part.height, width = (int)plan->part.width;
    const size_t pitch = 3 * (size_t)(plan->stored.width + MARGIN);
    pixels += 3 * (size_t)(plan->stored.left - (unsigned)first);
    if (plan->orientation == 1)
        return prep_resize(pixels, pitch, height, width, out, recipe->height, recipe->width, mirror);
    uint8_t *const upright = malloc((size_t)height * (size_t)width * 3);
    const int done = upright != NULL && prep_turn(pixels, pitch, plan->orientation, height, width, upright) &&
                     prep_resize(upright, (size_t)width * 3, height, width, out, recipe->height, recipe->width, mirror);
    free(upright);
    return done;
}

/* Make the row `out`, (recipe->height, recipe->width, 3), of a JPEG.
 *
 * words:        the first eight for the crop (stage.py, `Draws`).
 * mirror:       flip the result horizontally.
 * subsamplings: as for `prep_region`.
 * room:         for what is decoded on the way.
 * drawn:        six numbers, see `plan`.
 *
 * Returns 1 if it is made; 0 if not: `out` may then hold anything.
 */
int prep_crop(const uint8_t *data, size_t size, const struct recipe *recipe, const uint64_t *words, int mirror,
              unsigned subsamplings, uint8_t *room, size_t room_bytes, uint8_t *out, int32_t *drawn) {
    int32_t header[NUMBERS];
    struct plan row;
    if (prep_header(data, size, header) != 1)
        return 0;
    const unsigned height = (unsigned)header[HEIGHT], width = (unsigned)header[WIDTH];
    if (!plan(recipe, words, header[ORIENTATION], height, width, &row, drawn) || row.pixels > room_bytes)
        return 0;
    /* How much of the file is looked at: header.py, `extent`. */
    const struct box *const part = &row.stored;
    const unsigned unit_height = (unsigned)header[UNIT_HEIGHT], unit_width = (unsigned)header[UNIT_WIDTH];
    unsigned claimed = part->top + part->height + unit_height / 8;
    int left_over = header[TRIMMABLE] && claimed + 2 * unit_height <= height;
    if (left_over && header[INTERVAL]) {
        const size_t down = (claimed + unit_height - 1) / unit_height, across = (width + unit_width - 1) / unit_width;
        const size_t interval = (size_t)header[INTERVAL];
        const size_t cut = prep_cut(data, size, (size_t)header[SCAN_AT], (down * across + interval - 1) / interval);
        left_over = cut ? 2 : 0;
        size = cut ? cut : size;
    }
    if (!left_over)
        claimed = height;
    const int first = prep_region(data, size, (size_t)header[HEIGHT_AT], claimed, left_over, width, subsamplings, 1,
                                  part->top, part->top + part->height, part->left, part->left + part->width,
                                  part->width + MARGIN, room);
    return finish(recipe, &row, first, mirror, room, out);
}

/* The same of an indexed JPEG, with the numbers of its record as for `prep_scan`, and its orientation. */
int prep_crop_scan(const uint8_t *record, size_t lengths_at, size_t jpeg_at, size_t size, unsigned segments,
                   unsigned height_at, unsigned scan_at, unsigned height, unsigned width, unsigned unit_height,
                   unsigned unit_width, unsigned interval, int orientation, const struct recipe *recipe,
                   const uint64_t *words, int mirror, unsigned subsamplings, uint8_t *room, size_t room_bytes,
                   uint8_t *out, int32_t *drawn) {
    struct plan row;
    if (!plan(recipe, words, orientation, height, width, &row, drawn) || row.pixels > room_bytes ||
        !prep_is_true(record, lengths_at, jpeg_at, size, segments, height_at, scan_at, height, width, unit_height,
                      unit_width, interval))
        return 0;
    const struct box *const part = &row.stored;
    const int first = prep_scan(record, lengths_at, jpeg_at, size, segments, height_at, scan_at, height, width,
                                unit_height, unit_width, interval, subsamplings, part->top, part->top + part->height,
                                part->left, part->left + part->width, part->width + MARGIN, room + row.pixels,
                                room_bytes - row.pixels, room);
    return finish(recipe, &row, first, mirror, room, out);
}
