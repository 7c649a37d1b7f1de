package page

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"strings"
	text "text/template"
	"time"

	"github.com/detour-collective/dcol/lab/report"
)

//go:embed page.html
var pageTemplate string

//go:embed page.css
var pageStyle string

//go:embed words.txt
var wordsTemplate string

// words has the sentences that depend on the measurements.
var words = text.Must(text.New("words").Parse(wordsTemplate))

// say returns the named sentence, filled with data.
func say(name string, data any) string {
	var b strings.Builder
	if err := words.ExecuteTemplate(&b, name, data); err != nil {
		panic(err) // the sentences are ours, and the tests say each of them
	}
	return strings.TrimSpace(b.String())
}

// document has the data of the page's template.
type document struct {
	Title, Lead string
	Style       template.CSS
	Suite       *report.SuiteResult
	Took        time.Duration
	Sections    []section     // what was found
	Notes       template.HTML // of what was published, if anything was
	Procedures  []procedure
	Links       []table
}

type section struct {
	ID, Title string
	Text      []string // paragraphs
	Figures   []figure
	Tables    []table
}

// figure is a plot. Its caption replaces it where it cannot be seen.
type figure struct {
	Title   string
	Caption string // describes the contents in numbers
	Note    string // shown to everyone, for facts that the plot does not have
	SVG     template.HTML
}

// table has words in its first Words columns, and numbers in the others.
type table struct {
	Title string
	Note  string
	Words int
	Head  []string
	Rows  [][]entry
}

// entry is a cell: a value, and smaller text below it.
type entry struct {
	Text  string
	Below []string
	Mark  mark
	Lines int  // the number of rows that the cell spans, if more than one
	Under bool // the cell above stands for this one too
}

// grouped merges equal cells of the first column.
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

// mark selects how a cell is highlighted, never by colour alone.
type mark string

const (
	good  mark = "good"
	bad   mark = "bad"
	empty mark = "empty"
)

func entries(texts ...string) []entry {
	line := make([]entry, len(texts))
	for i, text := range texts {
		line[i].Text = text
	}
	return line
}

// none returns the cell of a value that was not measured.
func none() entry { return entry{Text: "–", Mark: empty} }

// value returns the cell of a number.
func value(v *float64) entry {
	if v == nil {
		return none()
	}
	return entry{Text: digits(*v)}
}

// digits formats a number with as many decimals as a reader needs.
func digits(v float64) string {
	switch size := math.Abs(v); {
	case size >= 1000:
		return fmt.Sprintf("%.0f", v)
	case size >= 100:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// duration formats a time in a suitable unit.
func duration(ms float64) string {
	switch {
	case ms >= 9995:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms >= 999.5:
		return fmt.Sprintf("%.2f s", ms/1000)
	case ms >= 99.95:
		return fmt.Sprintf("%.0f ms", ms)
	default:
		return fmt.Sprintf("%.1f ms", ms)
	}
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// capital returns the text with a capital letter.
func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// heading returns the title, which is the suite's description up to a colon, and the rest
// with the suite's name.
func (b *book) heading() (title, lead string) {
	title, lead, _ = strings.Cut(strings.TrimSuffix(b.suite.Description, "."), ": ")
	if lead != "" {
		if lead = capital(lead); !strings.HasSuffix(lead, "?") {
			lead += "."
		}
		lead += " "
	}
	return cmp.Or(title, b.suite.Name), fmt.Sprintf("%sThis is the report of %s, begun on %s.",
		lead, b.suite.Name, b.suite.Started.UTC().Format(time.DateOnly))
}

func (b *book) writeHTML(out *bytes.Buffer) error {
	title, lead := b.heading()
	doc := document{
		Title: title, Lead: lead, Style: template.CSS(pageStyle), Suite: b.suite,
		Took: time.Duration(b.suite.Seconds * float64(time.Second)).Round(time.Second), Procedures: b.procedures(),
	}
	if b.published() {
		doc.Notes = b.reference.Notes()
	}
	summary, err := b.summary()
	if err != nil {
		return err
	}
	doc.Sections = append(doc.Sections, summary)
	networks, err := b.networkSections()
	if err != nil {
		return err
	}
	doc.Sections = append(doc.Sections, networks...)
	for _, s := range []section{b.repeated(), b.behind(), b.held()} {
		if len(s.Text)+len(s.Tables) > 0 {
			doc.Sections = append(doc.Sections, s)
		}
	}
	for _, n := range b.networks {
		if links := n.linkTable(); len(links.Rows) > 0 {
			doc.Links = append(doc.Links, links)
		}
	}
	t, err := template.New("page").Funcs(template.FuncMap{
		"percent": func(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) },
		"ms":      func(v float64) string { return fmt.Sprintf("%.2f ms", v) },
	}).Parse(pageTemplate)
	if err != nil {
		return err
	}
	return t.Execute(out, doc)
}
