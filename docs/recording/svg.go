package main

import (
	"fmt"
	"html"
	"strings"
	"time"
)

// frame has the contents of the terminals at a time.
type frame struct {
	at    time.Duration
	lines []string // of all terminals, with tmux's colours
}

// screen is a terminal's place in the picture.
type screen struct {
	title         string
	columns, rows int
}

const (
	titleHeight = 26
	gap         = 14
	// The last frame is shown for lastFrame, and then the recording begins again.
	lastFrame = 4 * time.Second
)

// compose returns an animated SVG of frames, without scripts. Readers who prefer no motion see the frame that still names.
func compose(screens []screen, frames []frame, still int, words string) string {
	width, height := 0.0, 0.0
	for _, s := range screens {
		width = max(width, float64(s.columns)*cellWidth+2*margin)
		height += titleHeight + float64(s.rows)*cellHeight + 2*margin + gap
	}
	height -= gap
	ids := map[string]string{} // of the distinct lines
	var lines, shown, steps strings.Builder
	total := frames[len(frames)-1].at - frames[0].at + lastFrame
	for i, f := range frames {
		fmt.Fprintf(&shown, `<g transform="translate(%.0f 0)">`, float64(i)*width)
		next := 0
		top := 0.0
		for _, s := range screens {
			var p pen
			y := top + titleHeight + margin
			for range s.rows {
				if next < len(f.lines) {
					if body := draw(parse(f.lines[next], &p)); body != "" {
						id, known := ids[body]
						if !known {
							id = fmt.Sprintf("l%d", len(ids))
							ids[body] = id
							fmt.Fprintf(&lines, "<g id=%q>%s</g>\n", id, body)
						}
						fmt.Fprintf(&shown, `<use href="#%s" x="%d" y="%.0f"/>`, id, margin, y)
					}
				}
				next++
				y += cellHeight
			}
			top += titleHeight + float64(s.rows)*cellHeight + 2*margin + gap
		}
		shown.WriteString("</g>\n")
		fmt.Fprintf(&steps, "%.3f%% { transform: translateX(-%.0fpx) }\n", 100*float64(f.at-frames[0].at)/float64(total), float64(i)*width)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" fill="%s" role="img" aria-label="%s">`+"\n",
		width, height, width, height, ink, html.EscapeString(words))
	fmt.Fprintf(&b, `<style>
text { font: %dpx ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre }
.title { font: 13px system-ui, sans-serif; fill: #a5b3c1 }
#frames { animation: play %.2fs step-end infinite }
@keyframes play {
%s}
@media (prefers-reduced-motion: reduce) { #frames { animation: none; transform: translateX(-%.0fpx) } }
</style>
`, fontSize, total.Seconds(), steps.String(), float64(still)*width)
	fmt.Fprintf(&b, "<defs>\n%s</defs>\n", lines.String())
	top := 0.0
	for _, s := range screens {
		h := titleHeight + float64(s.rows)*cellHeight + 2*margin
		fmt.Fprintf(&b, `<rect y="%.0f" width="%.0f" height="%.0f" rx="8" fill="%s" stroke="#33404d"/>`, top, width, h, paper)
		fmt.Fprintf(&b, `<text class="title" x="%d" y="%.0f">%s</text>`+"\n", margin, top+19, html.EscapeString(s.title))
		top += h + gap
	}
	fmt.Fprintf(&b, "<g id=\"frames\">\n%s</g>\n</svg>\n", shown.String())
	return b.String()
}
