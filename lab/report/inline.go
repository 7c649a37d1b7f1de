package report

import (
	"bytes"
	"fmt"
	"html/template"
	"strings"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// inlineWidth is the width of charts in a page, in points. A phone shows it at
// nearly its own size, so that their letters are as large as the page's small
// ones.
const inlineWidth = 400 * vg.Length(1)

// inline is the chart as an <svg> element that is as wide as the place it is put
// into. It has no ids, so that many go into one page, and its letters are those
// of the page's device: Arial and Helvetica are as wide as Liberation Sans, by
// which everything was placed.
func (ch chart) inline() (template.HTML, error) {
	canvas := vgsvg.New(ch.width, ch.height)
	ch.draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return "", fmt.Errorf("draw an SVG: %w", err)
	}
	_, svg, found := strings.Cut(b.String(), "<svg")
	_, body, closed := strings.Cut(svg, ">")
	if !found || !closed {
		return "", fmt.Errorf("draw an SVG: the drawing library's output has no <svg> element: %.80q", b.String())
	}
	body = strings.ReplaceAll(body, "font-family:Liberation Sans", "font-family:Liberation Sans,Arial,Helvetica,sans-serif")
	start := fmt.Sprintf(`<svg viewBox="0 0 %g %g" xmlns="http://www.w3.org/2000/svg">`, ch.width.Points(), ch.height.Points())
	return template.HTML(start + body), nil
}
