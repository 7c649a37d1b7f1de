// Package page writes a suite's result for people and for programs: report.html, one file that needs nothing else;
// result.json, with a row for each network, variant, procedure and congestion control; and result.csv, with the same rows.
// It computes and draws. lab/experiment measures.
//
// All suites have the same kind of page. Published numbers about their networks come as a report.Reference. The page's
// sentences are in page.html and words.txt.
package page

import (
	"bytes"
	"fmt"
	"path/filepath"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/lab/report"
)

// Names of the files.
const (
	HTMLFile = "report.html"
	JSONFile = "result.json"
	CSVFile  = "result.csv"
)

// Write writes the files of these names into dir, which must exist.
func Write(s *report.SuiteResult, ref report.Reference, dir string, files ...string) error {
	b := newBook(s, ref)
	write := map[string]func(*bytes.Buffer) error{HTMLFile: b.writeHTML, JSONFile: b.writeJSON, CSVFile: b.writeCSV}
	for _, file := range files {
		var out bytes.Buffer
		if err := write[file](&out); err != nil {
			return fmt.Errorf("make %s: %w", file, err)
		}
		if err := durable.Replace(filepath.Join(dir, file), out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// book has the data that all files are made from.
type book struct {
	suite     *report.SuiteResult
	reference report.Reference
	networks  []*network
}

func newBook(s *report.SuiteResult, ref report.Reference) *book {
	return &book{suite: s, reference: ref, networks: networksOf(s, ref)}
}

// network returns the measurements in the network of that name, or nil.
func (b *book) network(name string) *network {
	for _, n := range b.networks {
		if n.name == name {
			return n
		}
	}
	return nil
}

// published reports whether anything was published of the suite's networks.
func (b *book) published() bool {
	for _, n := range b.networks {
		if n.published() {
			return true
		}
	}
	return false
}
