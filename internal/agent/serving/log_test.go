package serving

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

// Of very many connections the latest are returned, with the number of the others.
func TestLogTellsOfOlderConnections(t *testing.T) {
	file := filepath.Join(t.TempDir(), "attribution.jsonl")
	began := time.Now().Add(-time.Hour).Round(time.Second)
	sign := func(message func([][]byte) []byte) []byte { return message(nil) }
	l := attribution.Open(file, attribution.Author{Collective: "test", Waypoint: "bob", Sign: sign}, attribution.DefaultLimits, slog.New(slog.DiscardHandler))
	const more = 7
	for i := range mostFlows + more {
		l.Write(attribution.Entry{
			Time: began.Add(time.Duration(i) * time.Second), Event: attribution.FlowOpened, Member: "alice", Serial: "0a", Kind: "in-band",
			Client: netip.MustParseAddr("192.0.2.1"), ClientPort: uint16(10_000 + i), Port: 80, Server: netip.MustParseAddrPort("203.0.113.5:80"),
			Egress: netip.AddrPortFrom(netip.MustParseAddr("198.51.100.9"), uint16(20_000+i)),
		})
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := Log(file, api.LogRequest{})
	if err != nil || len(got.Flows) != mostFlows || got.Older != more || !got.Flows[0].Opened.Equal(began.Add(more*time.Second)) {
		t.Fatalf("%d connections, %d older, %v", len(got.Flows), got.Older, err)
	}
	if got, err := Log(file, api.LogRequest{Server: "203.0.113.6"}); err != nil || len(got.Flows)+got.Older > 0 {
		t.Errorf("of another server: %d connections, %d older, %v", len(got.Flows), got.Older, err)
	}
}
