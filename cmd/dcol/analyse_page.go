package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/detour-collective/dcol/internal/analyse"
	"github.com/detour-collective/dcol/internal/analyse/capture"
	"github.com/detour-collective/dcol/internal/analyse/report"
	"github.com/detour-collective/dcol/internal/analyse/track"
)

// writeList prints connections in the order of their numbers.
func (s *sink) writeList(out io.Writer) error {
	slices.SortFunc(s.listed, func(a, b *track.Record) int { return cmp.Compare(a.Number, b.Number) })
	for _, r := range s.listed {
		if err := report.WriteConnection(out, r); err != nil {
			return err
		}
	}
	return nil
}

// plot writes the page. It reads the files a second time to plot a connection's packets, because only the
// end of the first reading shows which connection has the most data.
func (s *sink) plot(ctx context.Context, paths []string, counts analyse.Counts, total *report.Totals, notes io.Writer) error {
	if s.traced == nil && s.largest.number != 0 && s.chosen == 0 {
		if again := readableAgain(paths); again != nil {
			fmt.Fprintf(notes, "note: the page has no plot of a connection: %v; choose one by --connection\n", again)
		} else if err := s.trace(ctx, paths); err != nil {
			return err
		}
	}
	if s.chosen != 0 && s.traced == nil {
		return fmt.Errorf("there is no connection %d among those that were chosen; --list shows their numbers", s.chosen)
	}
	f, err := os.Create(s.page)
	if err != nil {
		return err
	}
	if err := report.WritePage(f, counts, total, s.traced); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

func (s *sink) trace(ctx context.Context, paths []string) error {
	files, err := capture.Open(paths)
	if err != nil {
		return err
	}
	defer files.Close()
	copied := *s.analysis
	copied.csv, copied.json, copied.list = "", false, false
	second := &sink{analysis: &copied, anonymiser: s.anonymiser, totals: make([]report.Totals, s.workers)}
	if _, err := second.read(ctx, files, s.largest.number); err != nil {
		return err
	}
	s.traced = second.traced
	return nil
}

// readableAgain returns why the files cannot be read a second time.
func readableAgain(paths []string) error {
	for _, path := range paths {
		if path == capture.Stdin {
			return fmt.Errorf("the standard input can be read only once")
		}
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			return fmt.Errorf("%s can be read only once", path)
		}
	}
	return nil
}
