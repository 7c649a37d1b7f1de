package top

import "fmt"

// column describes a column of a table.
type column struct {
	title string
	width int  // the least width, if it stretches
	most  int  // the greatest width; 0: it does not stretch
	right bool // aligned to the right, as numbers are
}

// cell is a text in a column.
type cell struct {
	text  string
	style Style
}

// table has columns that fit into a given width. The columns' widths do not depend on the cells, so columns stay where
// they are.
type table struct {
	columns []column
	widths  []int // 0: the column has no room
	gap     int
	cut     string
}

// newTable gives columns their widths. order lists the columns by importance: the first get room first.
func newTable(columns []column, order []int, total, gap int, cut string) table {
	t := table{columns: columns, widths: make([]int, len(columns)), gap: gap, cut: cut}
	left := total
	for n, i := range order {
		need := columns[i].width
		if n > 0 {
			need += gap
		}
		if need > left {
			if n == 0 {
				t.widths[i] = max(left, 0)
			}
			break
		}
		t.widths[i] = columns[i].width
		left -= need
	}
	last := -1
	for _, i := range order {
		if c := columns[i]; c.most > 0 && t.widths[i] > 0 {
			more := max(min(left, c.most-t.widths[i]), 0)
			t.widths[i] += more
			left -= more
			last = i
		}
	}
	if last >= 0 {
		t.widths[last] += max(left, 0)
	}
	return t
}

// header returns the titles. The first says how many rows there is no room for, if the number fits.
func (t table) header(hidden int) Line {
	cells := make([]cell, len(t.columns))
	for i, c := range t.columns {
		cells[i] = cell{c.title, Title}
	}
	if mark := fmt.Sprintf(" +%d", hidden); hidden > 0 && len(cells[0].text)+len(mark) <= t.widths[0] {
		cells[0].text += mark
	}
	return t.row(cells)
}

// row returns the cells in their columns.
func (t table) row(cells []cell) Line {
	var line Line
	for i, c := range cells {
		if t.widths[i] == 0 {
			continue
		}
		text := fit(c.text, t.widths[i], t.columns[i].right, t.cut)
		if len(line) > 0 {
			line = append(line, Span{"  "[:t.gap], Plain})
		}
		line = append(line, Span{text, c.style})
	}
	return line
}
