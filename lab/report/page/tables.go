package page

import (
	"fmt"
	"slices"

	"github.com/detour-collective/dcol/lab/report"
)

// table1 lays Table 1 of 2017 beside ours: a line for each network, a column for
// each procedure.
func (b *book) table1() ([]section, error) {
	s := section{
		ID: "table1", Title: "Table 1: goodput beside the published",
		Text: []string{"Each cell: our mean in Mbit/s with the standard deviation in brackets; below it the same of 2017; below " +
			"that the ratio of ours to theirs. The MPTCP of 2017 was coupled by LIA; its plain TCP used CUBIC."},
	}
	for _, n := range b.networks {
		if n.inPapers() {
			s.Tables = append(s.Tables, n.goodputTable())
		}
	}
	for _, n := range b.networks {
		if !n.inPapers() && len(n.axes()) == 0 && !n.hasLatency() && len(n.shown()) > 0 {
			t := n.goodputTable()
			t.Note = "Nothing to compare with was published."
			s.Tables = append(s.Tables, t)
		}
	}
	if len(s.Tables) == 0 {
		return nil, nil
	}
	if !b.inPapers() {
		s.Title, s.Text = "Goodput in numbers", []string{"Each cell: the mean in Mbit/s with the standard deviation in brackets, if there is more than one run."}
		for i := range s.Tables {
			s.Tables[i].Note = ""
		}
	}
	return []section{s}, nil
}

func (b *book) inPapers() bool {
	for _, n := range b.networks {
		if n.inPapers() {
			return true
		}
	}
	return false
}

func (n *network) goodputTable() table {
	congestion := n.congestions[0]
	t := table{Title: fmt.Sprintf("%s, %s", n.name, congestion), Words: 1, Head: append([]string{""}, n.procedures...)}
	t.Head = append(t.Head, "runs")
	for _, v := range n.variants {
		line := words(title(v))
		least, most := -1, 0
		for _, procedure := range n.procedures {
			row, measured := n.row(cell{v.Name, procedure, congestion})
			line = append(line, compared(row, measured))
			if measured {
				most = max(most, row.N)
				if least < 0 || row.N < least {
					least = row.N
				}
			}
		}
		runs := fmt.Sprint(most)
		if least >= 0 && least < most {
			runs = fmt.Sprintf("%d–%d", least, most)
		}
		t.Rows = append(t.Rows, append(line, entry{Text: runs}))
	}
	return t
}

// compared is a cell of Table 1.
func compared(r Row, measured bool) entry {
	if !measured {
		return none()
	}
	e := entry{Text: meanSD(*r.Mean, *r.SD)}
	if r.N == 1 { // of one run there is no deviation
		e.Text = fmt.Sprintf("%.2f", *r.Mean)
	}
	if r.PublishedMean != nil {
		e.Below = []string{meanSD(*r.PublishedMean, *r.PublishedSD), fmt.Sprintf("× %.3f", *r.Ratio)}
	}
	return e
}

func meanSD(mean, sd float64) string { return fmt.Sprintf("%.2f (%.2f)", mean, sd) }

// table2 lays Table 2 of 2017 beside ours: how the bytes were split between the
// paths.
func (b *book) table2() ([]section, error) {
	s := section{
		ID: "table2", Title: "Table 2: bytes by path",
		Text: []string{"Bytes in millions, medians of our runs. Ours are what the client's TCP sent of the program's bytes and MPTCP " +
			"repeated on the other path, read from its sockets. Those of 2017 are of one trial, counted in packet captures. So the shares " +
			"are what compares, not the sums."},
	}
	for _, n := range b.networks {
		if !n.inPapers() || len(n.paths) < 2 {
			continue
		}
		if t := n.splitTable(); len(t.Rows) > 0 {
			s.Tables = append(s.Tables, t)
		}
	}
	if len(s.Tables) == 0 {
		return nil, nil
	}
	return []section{s}, nil
}

func (n *network) splitTable() table {
	t := table{Title: fmt.Sprintf("%s, %s", n.name, n.congestions[0]), Words: 2, Head: []string{"link 2", "procedure"}}
	for _, path := range n.paths {
		t.Head = append(t.Head, "MB "+path)
	}
	for _, path := range n.paths[1:] {
		t.Head = append(t.Head, "% "+path)
	}
	t.Head = append(t.Head, "2017: MB direct", "MB detour", "% detour")
	for _, v := range n.variants {
		if !n.splitPublished(v) {
			continue // those are in the files
		}
		for _, procedure := range n.procedures {
			if line, ok := n.splitLine(v, procedure); ok {
				t.Rows = append(t.Rows, line)
			}
		}
	}
	return t.grouped()
}

func (n *network) splitPublished(v report.Variant) bool {
	return slices.ContainsFunc(n.rows, func(r Row) bool { return r.Variant == v.Name && r.PublishedBytesPerPath != nil })
}

// splitLine is a procedure's line, if it used more than one path or one was
// published.
func (n *network) splitLine(v report.Variant, procedure string) ([]entry, bool) {
	row, measured := n.row(cell{v.Name, procedure, n.congestions[0]})
	if !measured || len(row.BytesPerPath) < 2 && row.PublishedBytesPerPath == nil {
		return nil, false
	}
	total := 0.0
	for _, bytes := range row.BytesPerPath {
		total += bytes
	}
	line := words(title(v), procedure)
	for _, path := range n.paths {
		line = append(line, entry{Text: megabytes(row.BytesPerPath[path])})
	}
	for _, path := range n.paths[1:] {
		line = append(line, entry{Text: fmt.Sprintf("%.1f", 100*row.BytesPerPath[path]/max(total, 1))})
	}
	p := row.PublishedBytesPerPath
	if p == nil {
		return append(line, none(), none(), none()), true
	}
	direct, detour := p[n.paths[0]], p[n.paths[1]]
	return append(line,
		entry{Text: megabytes(direct)}, entry{Text: megabytes(detour)},
		entry{Text: fmt.Sprintf("%.1f", 100*detour/(direct+detour))}), true
}

func megabytes(bytes float64) string { return fmt.Sprintf("%.2f", bytes/1e6) }
