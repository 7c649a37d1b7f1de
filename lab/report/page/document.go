package page

import (
	"bytes"
	_ "embed"
	"html/template"
	"strings"
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
	Tables    []table
	Figures   []figure
}

// figure is a plot; its caption stands for it where it cannot be seen.
type figure struct {
	Title   string
	Caption string // what is in it, in numbers
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

func (b *book) writeHTML(out *bytes.Buffer) error {
	doc := document{Title: b.suite.Name, Lead: b.suite.Description, Style: template.CSS(pageStyle)}
	for _, make := range []func() ([]section, error){
		b.verdict,
		b.boxPlots,
		b.table1,
		b.table2,
		b.congestion,
		b.sweeps,
		b.latencies,
		b.series,
		b.differences,
		b.fidelity,
		b.environment,
	} {
		sections, err := make()
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
