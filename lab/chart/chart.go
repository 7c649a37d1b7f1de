// Package chart draws the lab's measurements: distributions, goodput over time, ratios and lines. A chart is
// part of a page, or a file. The package is independent of scenarios and results. lab/report, lab/demo and
// lab/bench import it.
package chart

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"os"
	"strings"

	"golang.org/x/image/font"
	"gonum.org/v1/plot"
	plotfont "gonum.org/v1/plot/font"
	"gonum.org/v1/plot/font/liberation"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The palette of Okabe and Ito (2008), which can be distinguished with every kind of colour vision. The
// direct path has the first colour.
var palette = []color.NRGBA{
	{0x00, 0x72, 0xB2, 0xFF}, // blue
	{0xE6, 0x9F, 0x00, 0xFF}, // orange
	{0x00, 0x9E, 0x73, 0xFF}, // green
	{0xCC, 0x79, 0xA7, 0xFF}, // purple
	{0x56, 0xB4, 0xE9, 0xFF}, // sky
	{0xD5, 0x5E, 0x00, 0xFF}, // vermilion
}

var (
	ink   = color.NRGBA{0x22, 0x22, 0x22, 0xFF}
	faint = color.NRGBA{0x66, 0x66, 0x66, 0xFF}
	rule  = color.NRGBA{0xE4, 0xE4, 0xE4, 0xFF}
)

// Sizes of a chart, in points.
const (
	chartWidth  = 620 * vg.Length(1)
	chartHeight = 340 * vg.Length(1)
	margin      = 14 * vg.Length(1)
	// inlineWidth is the width of charts in a page. A phone shows it at nearly its own
	// size, so that its letters are as large as the page's small ones.
	inlineWidth = 400 * vg.Length(1)
	pngDPI      = 144
)

func colour(i int) color.NRGBA { return palette[i%len(palette)] }

func alpha(c color.NRGBA, a uint8) color.NRGBA { c.A = a; return c }

// fonts are embedded, so that a plot looks the same on every machine.
var fonts = plotfont.NewCache(liberation.Collection())

func label(size vg.Length, c color.Color, bold bool) text.Style {
	f := plotfont.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	if bold {
		f.Weight = font.WeightBold
	}
	return text.Style{Color: c, Font: f, XAlign: text.XLeft, YAlign: text.YBottom, Handler: text.Plain{Fonts: fonts}}
}

func thin(c color.Color, dashes ...vg.Length) draw.LineStyle {
	return draw.LineStyle{Color: c, Width: vg.Points(0.8), Dashes: dashes}
}

// newPlot returns an empty plot in the lab's style.
func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.TextHandler = text.Plain{Fonts: fonts}
	p.BackgroundColor = nil
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color = faint
		axis.LineStyle.Width = vg.Points(0.6)
		axis.Tick.Color = faint
		axis.Tick.LineStyle.Width = vg.Points(0.6)
		axis.Tick.Length = vg.Points(4)
		axis.Padding = 0
		align := axis.Tick.Label
		axis.Tick.Label = label(10, ink, false)
		axis.Tick.Label.XAlign, axis.Tick.Label.YAlign = align.XAlign, align.YAlign
		axis.Label.TextStyle = label(10, faint, false)
		axis.Label.Padding = vg.Points(4)
	}
	p.X.Label.TextStyle.XAlign, p.X.Label.TextStyle.YAlign = text.XCenter, text.YBottom
	p.Y.Label.TextStyle.XAlign, p.Y.Label.TextStyle.YAlign = text.XCenter, text.YBottom
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.Y.Tick.Length = 0
	p.Y.LineStyle.Width = 0
	return p
}

// drawing is a plot with its headings, if it has any, and the room beside it for
// labels.
type drawing struct {
	title, subtitle string
	plot            *plot.Plot
	width           vg.Length
	height          vg.Length
	right           vg.Length // room right of the data
	// over draws on top of the plot; data is the plot's data area.
	over func(c, data draw.Canvas)
}

// svg returns the chart as a file. Its letters are Liberation Sans, by which everything was placed, or where that
// is missing those of the reader's device: Arial and Helvetica are as wide.
func (d drawing) svg() ([]byte, error) {
	canvas := vgsvg.New(d.width, d.height)
	d.draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, fmt.Errorf("draw an SVG: %w", err)
	}
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif")), nil
}

// inline returns the chart as an <svg> element that is as wide as the place it is put
// into. It has no ids, so that many go into one page.
func (d drawing) inline() (template.HTML, error) {
	file, err := d.svg()
	if err != nil {
		return "", err
	}
	_, svg, found := strings.Cut(string(file), "<svg")
	_, body, closed := strings.Cut(svg, ">")
	if !found || !closed {
		return "", fmt.Errorf("draw an SVG: the drawing library's output has no <svg> element: %.80q", file)
	}
	start := fmt.Sprintf(`<svg viewBox="0 0 %g %g" xmlns="http://www.w3.org/2000/svg">`, d.width.Points(), d.height.Points())
	return template.HTML(start + body), nil
}

// save writes the chart to base.svg and base.png.
func (d drawing) save(base string) error {
	svg, err := d.svg()
	if err != nil {
		return err
	}
	png := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(d.width, d.height), vgimg.UseDPI(pngDPI))}
	d.draw(draw.New(png))
	for _, out := range []struct {
		path  string
		write func(*os.File) error
	}{
		{base + ".svg", func(f *os.File) error { _, err := f.Write(svg); return err }},
		{base + ".png", func(f *os.File) error { _, err := png.WriteTo(f); return err }},
	} {
		if err := writeFile(out.path, out.write); err != nil {
			return fmt.Errorf("write the plot: %w", err)
		}
	}
	return nil
}

func writeFile(path string, write func(*os.File) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return fmt.Errorf("%s: %w", path, err)
	}
	return f.Close()
}

func (d drawing) draw(c draw.Canvas) {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	around, gap := margin, vg.Length(16)
	if d.title == "" { // part of a page that has headings and margins itself
		around, gap = 4, 0
		if d.subtitle != "" {
			gap = 5
		}
	}
	c = draw.Crop(c, around, -around, around, -around)
	top := c.Max.Y
	if d.title != "" {
		heading := label(14, ink, true)
		top -= heading.Font.Size
		c.FillText(heading, vg.Point{X: c.Min.X, Y: top}, d.title)
	}
	if d.subtitle != "" {
		sub := label(10, faint, false)
		top -= sub.Font.Size + 6
		c.FillText(sub, vg.Point{X: c.Min.X, Y: top}, d.subtitle)
	}
	area := draw.Crop(c, 0, -d.right, 0, top-c.Max.Y-gap)
	d.plot.Draw(area)
	if d.over != nil {
		d.over(c, d.plot.DataCanvas(area))
	}
}

// rules are the lines behind the data at each labelled tick of an axis.
type rules struct{ vertical bool }

// Plot implements plot.Plotter.
func (r rules) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	axis := p.Y
	if r.vertical {
		axis = p.X
	}
	for _, tick := range axis.Tick.Marker.Ticks(axis.Min, axis.Max) {
		switch {
		case tick.IsMinor() || tick.Value < axis.Min || tick.Value > axis.Max:
		case r.vertical:
			c.StrokeLine2(thin(rule), x(tick.Value), c.Min.Y, x(tick.Value), c.Max.Y)
		default:
			c.StrokeLine2(thin(rule), c.Min.X, y(tick.Value), c.Max.X, y(tick.Value))
		}
	}
}

// number writes a value with as many decimals as a reader needs.
func number(v float64) string {
	if v >= 99.995 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
