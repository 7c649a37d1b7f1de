package analyse_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/detour-collective/dcol/internal/analyse"
	"github.com/detour-collective/dcol/internal/analyse/capture"
	"github.com/detour-collective/dcol/internal/analyse/track"
)

// BenchmarkAnalyse is of few connections; `make bench-analyse` measures many.
func BenchmarkAnalyse(b *testing.B) {
	list := many(200, 100)
	path := filepath.Join(b.TempDir(), "trace.pcap")
	if err := os.WriteFile(path, pcapOf(b, list, 128), 0o600); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	packets := 0
	for b.Loop() {
		files, err := capture.Open([]string{path})
		if err != nil {
			b.Fatal(err)
		}
		o := defaults()
		o.Done = func(int, *track.Record) {}
		if _, err := analyse.Run(context.Background(), files, o); err != nil {
			b.Fatal(err)
		}
		files.Close()
		packets += len(list)
	}
	b.ReportMetric(float64(packets)/b.Elapsed().Seconds()/1e6, "Mpackets/s")
}
