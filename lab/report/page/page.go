// Package page makes of a suite's result what people read and programs take
// further: report.html, one file that needs nothing else, with what was to be
// shown, plots and tables beside the published numbers of 2017; result.json with
// one row for each network, procedure and congestion control; and result.csv with
// the same rows. It computes and draws; lab/experiment measures.
//
// A page is sections, each made by a function of its own from the same network
// values; a section that has nothing to say is left out. So the page of a suite
// that was interrupted half way is that of what there is.
package page

import (
	"bytes"
	"fmt"
	"path/filepath"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/report/published"
)

// Names of the files.
const (
	HTMLFile = "report.html"
	JSONFile = "result.json"
	CSVFile  = "result.csv"
)

// Write writes the three files into dir, which must exist. A page for a single
// scenario is that of a suite with one part.
func Write(s *report.SuiteResult, dir string) error {
	tables, err := published.Load()
	if err != nil {
		return err
	}
	b := newBook(s, tables)
	for _, file := range []struct {
		name  string
		write func(*bytes.Buffer) error
	}{
		{JSONFile, b.writeJSON},
		{CSVFile, b.writeCSV},
		{HTMLFile, b.writeHTML},
	} {
		var out bytes.Buffer
		if err := file.write(&out); err != nil {
			return fmt.Errorf("make %s: %w", file.name, err)
		}
		if err := durable.Replace(filepath.Join(dir, file.name), out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// book is what all sections are made from.
type book struct {
	suite     *report.SuiteResult
	published *published.Tables
	networks  []*network
}

func newBook(s *report.SuiteResult, tables *published.Tables) *book {
	return &book{suite: s, published: tables, networks: networksOf(s, tables)}
}

// network is what was measured in the network of that name, or nil.
func (b *book) network(name string) *network {
	for _, n := range b.networks {
		if n.name == name {
			return n
		}
	}
	return nil
}
