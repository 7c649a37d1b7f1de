package page

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"
)

//go:embed page.html
var pageTemplate string

//go:embed page.css
var pageStyle string

// document is what the template lays out: sections of text, plots and tables.
type document struct {
	Title, Lead string
	Style       template.CSS
	Sections    []section
}

type section struct {
	ID, Title string
	Text      []string // paragraphs
	Legend    string   // how to read the figures; stands once for all sections that have the same
	Tables    []table
	Figures   []figure
}

// figure is a plot; its caption stands for it where it cannot be seen.
type figure struct {
	Title   string
	Caption string // what is in it, in numbers
	Note    string // the same for everyone, where the plot has it not
	SVG     template.HTML
}

// table has words in its first columns, as many as Words says, and numbers in the
// others.
type table struct {
	Title string
	Note  string
	Words int
	Head  []string
	Rows  [][]entry
}

// entry is a cell: a value, and below it smaller what it is to be seen with.
type entry struct {
	Text  string
	Below []string
	Mark  mark
	Lines int  // of the table that the cell stands for, if more than one
	Under bool // the cell above stands for this one too
}

// grouped has one cell stand for equal ones in the first column.
func (t table) grouped() table {
	first := 0
	for i := range t.Rows {
		if i > 0 && t.Rows[i][0].Text == t.Rows[first][0].Text {
			t.Rows[i][0].Under = true
			t.Rows[first][0].Lines = i - first + 1
			continue
		}
		first = i
	}
	return t
}

// mark is how a cell stands out; never by colour alone.
type mark string

const (
	plain mark = ""
	good  mark = "good"
	bad   mark = "bad"
	empty mark = "empty"
)

func words(texts ...string) []entry {
	entries := make([]entry, len(texts))
	for i, text := range texts {
		entries[i].Text = text
	}
	return entries
}

// none is the cell of something that was not measured.
func none() entry { return entry{Text: "–", Mark: empty} }

// eachNetwork has the plots, network by network. How to read them stands with the
// first that are to be read so.
func (b *book) eachNetwork() ([]section, error) {
	var sections []section
	explained := map[string]string{} // legends, with the title of the section that has them
	for _, n := range b.networks {
		for _, part := range []func(*network) (section, bool, error){boxPlots, sweep, latencies, series} {
			s, ok, err := part(n)
			if err != nil {
				return nil, fmt.Errorf("plot %s: %w", n.name, err)
			}
			if !ok {
				continue
			}
			legend := s.Legend
			if first, ok := explained[legend]; ok {
				legend = fmt.Sprintf("To be read as \u201c%s\u201d above.", first)
			} else {
				explained[legend] = s.Title
			}
			s.Text = slices.Insert(s.Text, 1, legend) // after the network's description
			sections = append(sections, s)
		}
	}
	return sections, nil
}

// heading is the suite's description, of which what comes before a colon is the title,
// and the suite's name.
func (b *book) heading() (title, lead string) {
	title, lead, _ = strings.Cut(strings.TrimSuffix(b.suite.Description, "."), ": ")
	if lead != "" {
		lead = capital(lead) + ". "
	}
	return cmp.Or(title, b.suite.Name), fmt.Sprintf("%sThis is the report of %s, begun on %s.",
		lead, b.suite.Name, b.suite.Started.UTC().Format(time.DateOnly))
}

func (b *book) writeHTML(out *bytes.Buffer) error {
	title, lead := b.heading()
	doc := document{Title: title, Lead: lead, Style: template.CSS(pageStyle)}
	for _, part := range []func() ([]section, error){
		b.verdict,
		b.procedures,
		b.eachNetwork,
		b.table1,
		b.table2,
		b.congestion,
		b.costs,
		b.differences,
		b.held,
		b.fidelity,
		b.environment,
	} {
		sections, err := part()
		if err != nil {
			return err
		}
		doc.Sections = append(doc.Sections, sections...)
	}
	t, err := template.New("page").Funcs(template.FuncMap{"join": strings.Join}).Parse(pageTemplate)
	if err != nil {
		return err
	}
	return t.Execute(out, doc)
}
