/* A whole row in one call: header, random crop, decode, resize and flip, for the pipeline that nearly all training has.
 *
 * It is what prepserver/transform does step by step (geometry.py, ResizedCropStage; header.py, `extent`; decode.py),
 * number for number, less the Python between the steps. Whatever is not plain is refused, with nothing lost but the
 * try: then the steps are taken one by one, and theirs is the verdict.
 */
#include "kernels.h"

#include <math.h>

/* What a maker's crop is like. native/__init__.py has the same struct. */
struct recipe {
    double least, greatest;       /* share of the image's area */
    double log_narrow, log_wide;  /* logarithms of the ratios between which one is drawn */
    double residual, scale;       /* scale.py: what is left to shrink by of a part decoded at the least of its scales */
    int64_t max_pixels;
    int32_t height, width;        /* of the row */
    int32_t least_scaled;         /* a part with a shorter side is decoded at its size */
    int32_t upright;              /* the image is to be turned by its EXIF orientation */
};

struct box {
    unsigned top, left, height, width;
};

/* A number in [low, high) from a random word; in [0, count). draw.py: `uniform`, `below`. */
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

static int resize(const struct recipe *recipe, const struct box *box, int first, int mirror, const uint8_t *pixels,
                  uint8_t *out) {
    if (first < 0)
        return 0;
    return prep_resize(pixels + 3 * (size_t)(box->left - (unsigned)first), 3 * (size_t)(box->width + MARGIN),
                       (int)box->height, (int)box->width, out, recipe->height, recipe->width, mirror);
}

static size_t pixel_bytes(const struct box *box) {
    return ((size_t)box->height + 1) * (box->width + MARGIN) * 3;
}

/* Make the row `out`, (recipe->height, recipe->width, 3), of a JPEG.
 *
 * words:        the eight first ones for the crop (draw.py).
 * mirror:       flip the result horizontally.
 * subsamplings: as for `prep_region`.
 * room:         for what is decoded on the way.
 *
 * Returns 1 if it is made; 0 if not: `out` may then hold anything.
 */
int prep_crop(const uint8_t *data, size_t size, const struct recipe *recipe, const uint64_t *words, int mirror,
              unsigned subsamplings, uint8_t *room, size_t room_bytes, uint8_t *out) {
    int32_t header[NUMBERS];
    struct box box;
    if (prep_header(data, size, header) != 1 || (recipe->upright && header[ORIENTATION] != 1))
        return 0;
    const unsigned height = (unsigned)header[HEIGHT], width = (unsigned)header[WIDTH];
    if ((int64_t)height * width > recipe->max_pixels || !draw(recipe, words, height, width, &box) ||
        !is_plain(recipe, &box) || pixel_bytes(&box) > room_bytes)
        return 0;
    const unsigned unit_height = (unsigned)header[UNIT_HEIGHT];
    unsigned claimed = box.top + box.height + unit_height / 8;
    const int trims = header[TRIMMABLE] && claimed + 2 * unit_height <= height;
    if (trims && header[INTERVAL])
        return 0;
    if (!trims)
        claimed = height;
    const int first =
        prep_region(data, size, (size_t)header[HEIGHT_AT], claimed, trims, width, subsamplings, 1, box.top,
                    box.top + box.height, box.left, box.left + box.width, box.width + MARGIN, room);
    return resize(recipe, &box, first, mirror, room, out);
}

/* The same of an indexed JPEG, with the numbers of its record as for `prep_scan`. */
int prep_crop_scan(const uint8_t *record, size_t lengths_at, size_t jpeg_at, size_t size, unsigned segments,
                   unsigned height_at, unsigned scan_at, unsigned height, unsigned width, unsigned unit_height,
                   unsigned unit_width, unsigned interval, const struct recipe *recipe, const uint64_t *words,
                   int mirror, unsigned subsamplings, uint8_t *room, size_t room_bytes, uint8_t *out) {
    struct box box;
    if ((int64_t)height * width > recipe->max_pixels || !draw(recipe, words, height, width, &box) ||
        !is_plain(recipe, &box))
        return 0;
    const size_t pixels = pixel_bytes(&box);
    if (pixels > room_bytes)
        return 0;
    const int first =
        prep_scan(record, lengths_at, jpeg_at, size, segments, height_at, scan_at, height, width, unit_height,
                  unit_width, interval, subsamplings, box.top, box.top + box.height, box.left, box.left + box.width,
                  box.width + MARGIN, room + pixels, room_bytes - pixels, room);
    return resize(recipe, &box, first, mirror, room, out);
}
