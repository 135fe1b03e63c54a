#!/bin/sh
# Renders the sample pages, page.png and small.png, from their sources in src/.
#
# Needs chromium, the Liberation fonts, and python3 with Pillow, which brings the pages down to a small palette.
# It reads nothing over the network, and touches nothing but the two pictures.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# render NAME WIDTH HEIGHT
render() {
    # A taller window than the page: some versions take the browser's own bars off the height.
    "${CHROMIUM:-chromium}" --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
        --disable-component-update --disable-sync --hide-scrollbars --force-device-scale-factor=1 --disable-lcd-text \
        --user-data-dir="$work/profile" --window-size="$2,$(($3 + 200))" \
        --screenshot="$work/$1.png" "file://$here/src/$1.html" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    "${PYTHON:-python3}" - "$work/$1.png" "$here/$1.png" "$2" "$3" <<'PY'
import sys
from PIL import Image

source, target, width, height = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
page = Image.open(source).convert("RGB")
if page.width != width or page.height < height:
    sys.exit(f"{source} is {page.width}x{page.height}, too small for {width}x{height}")
page.crop((0, 0, width, height)).quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(target, optimize=True)
PY
}

render page 1240 1754
render small 480 360
