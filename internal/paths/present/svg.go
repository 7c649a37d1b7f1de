package present

import (
	"bufio"
	"fmt"
	"html"
	"io"
)

// Sizes of the drawing, in pixels.
const (
	columnWidth  = 170
	rowHeight    = 56
	boxWidth     = 130
	boxHeight    = 34
	drawingEdge  = 20
	addressWidth = 8 // approximate width of a character
)

// SVG draws a report. Each distance is a column; distances grow from left to right.
func SVG(out io.Writer, r Report) error {
	w := bufio.NewWriter(out)
	g := r.Graph
	rows, box := 1, boxWidth
	for _, h := range g.Hops {
		rows = max(rows, len(h.Vertices))
		for _, v := range h.Vertices {
			box = max(box, addressWidth*len(shown(v.Addr))+addressWidth)
		}
	}
	column := columnWidth - boxWidth + box
	width, height := 2*drawingEdge+(len(g.Hops)+1)*column, 2*drawingEdge+rows*rowHeight
	at := map[place][2]int{}
	centre := func(i, n int) int { return drawingEdge + rowHeight*rows*(2*i+1)/(2*n) }
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="monospace" `+
		`font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(w, `<title>%s</title>`+"\n", html.EscapeString("Paths to "+r.Name))
	fmt.Fprintf(w, `<rect width="100%%" height="100%%" fill="white"/>`+"\n")
	source := [2]int{drawingEdge, centre(0, 1)}
	for _, h := range g.Hops {
		for i, v := range h.Vertices {
			at[place{h.Distance, v.Addr}] = [2]int{drawingEdge + h.Distance*column, centre(i, len(h.Vertices))}
		}
	}
	for _, h := range g.Hops {
		for _, v := range h.Vertices {
			to := at[place{h.Distance, v.Addr}]
			if h.Distance == 1 {
				edge(w, source, to, box)
			}
			for _, b := range v.Before {
				edge(w, at[place{h.Distance - 1, b}], to, box)
			}
		}
	}
	label(w, source, box, r.Source.String(), "", "#dbe9ff")
	for _, h := range g.Hops {
		for _, v := range h.Vertices {
			colour, rtt := "#f4f4f4", ""
			if v.Last {
				colour = "#dff5e1"
			}
			if v.RTT > 0 {
				rtt = fmt.Sprintf("%.1f ms", ms(v.RTT))
			}
			label(w, at[place{h.Distance, v.Addr}], box, shown(v.Addr), rtt, colour)
		}
	}
	fmt.Fprintln(w, "</svg>")
	return w.Flush()
}

func edge(w io.Writer, from, to [2]int, box int) {
	fmt.Fprintf(w, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#666"/>`+"\n", from[0]+box, from[1], to[0], to[1])
}

func label(w io.Writer, at [2]int, box int, text, below, colour string) {
	fmt.Fprintf(w, `<rect x="%d" y="%d" width="%d" height="%d" rx="5" fill="%s" stroke="#333"/>`+"\n",
		at[0], at[1]-boxHeight/2, box, boxHeight, colour)
	y := at[1] + 4
	if below != "" {
		y = at[1] - 2
		fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="middle" fill="#555" font-size="10">%s</text>`+"\n",
			at[0]+box/2, at[1]+12, below)
	}
	fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", at[0]+box/2, y, html.EscapeString(text))
}
